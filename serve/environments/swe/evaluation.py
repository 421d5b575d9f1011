"""What a patch is worth: the listed tests, run on a fresh checkout in a new sandbox.

What it does: `judge` gives the outcome of a patch; `verify` makes sure that a task can be judged at all.
What it leaves out: taking the patch (`patches.py`), and how tests are run so that a patch can't cheat (`inside.py`).

The score. With every test of FAIL_TO_PASS and PASS_TO_PASS passing it is 1. Else the share s of FAIL_TO_PASS that pass
counts: 2 s - 1 where all of PASS_TO_PASS still pass, and s - 1, so 0 at most, where one of them broke; never 1. A patch
that is empty, does not apply, or ends the run before its end gets -1.
"""

import base64
import dataclasses
import hashlib
import json
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from serve.environments.protocol import Check, EnvironmentFailed, Outcome
from serve.environments.sandbox import CommandResult, Sandbox
from serve.environments.swe.patches import unpack
from serve.environments.swe.payload import Payload, patch_paths
from serve.environments.swe.repository import Base
from serve.environments.tasks import Limits, TaskError

Start = Callable[..., Awaitable[Sandbox]]
PACKAGES = ("pytest",)
INSIDE = tuple(Path(__file__).with_name(name) for name in ("inside.py", "twins.py"))
RESULT_CHARS = 8 << 20
CONTROL_S = 5.0  # for a program that does nothing
BEGIN_S = 60.0  # to apply the patches, besides the tests' own time
SHOWN = 5
VERIFIED: set[str] = set()  # digests of payloads that were found to be judgeable


async def judge(start: Start, limits: Limits, base: Base, payload: Payload, patch: bytes) -> Outcome:
    """The outcome of a patch.

    Raises:
        EnvironmentFailed: it can't be judged, and that is not the patch's doing.
    """
    if not patch.strip():
        why = f"nothing differs from the commit {base.commit[:12]}"
        return Outcome(score=-1.0, checks=(Check(name="a patch was made", passed=False, detail=why),))
    answer = await run_tests(start, limits, base, payload, patch)
    if answer["stage"] == "tests" and not answer["ended"] and not answer["timed_out"]:
        # the patch's doing, or somebody's outside (a host without memory ends processes): the patch does it again
        answer = await run_tests(start, limits, base, payload, patch)
    if answer["stage"] == "patch":
        why = f"git apply: {answer['why']}"
        return Outcome(score=-1.0, checks=(Check(name="the patch applies", passed=False, detail=why),))
    if answer["stage"] == "test_patch":
        raise EnvironmentFailed(f"the tests can't be put in place: git apply: {answer['why']}")
    return outcome_of(answer, payload)


def outcome_of(answer: dict[str, Any], payload: Payload) -> Outcome:
    """Score and checks from what a run of the tests gave."""
    run = _run_check(answer, payload.test_s)
    passed = answer["passed"] if run.passed else [False] * len(answer["passed"])
    count = len(payload.fail_to_pass)
    mended, kept = passed[:count], passed[count:]
    checks = [run]
    for name, good in zip(payload.fail_to_pass, mended, strict=True):
        detail = answer["details"].get(name, "") if run.passed and not good else ""
        checks.append(Check(name=name, passed=good, detail=detail))
    broken = [name for name, good in zip(payload.pass_to_pass, kept, strict=True) if not good]
    if payload.pass_to_pass:
        told = ", ".join(broken[:SHOWN]) + (f" and {len(broken) - SHOWN} more" if len(broken) > SHOWN else "")
        why = f"{len(broken)} of {len(kept)} fail: {told}" if broken else ""
        checks.append(Check(name="what passed before passes", passed=not broken, detail=why))
    if all(check.passed for check in checks):
        return Outcome(score=1.0, checks=tuple(checks))
    share = sum(mended) / count
    return Outcome(score=share - 1 if broken else min(2 * share - 1, 0.99), checks=tuple(checks))


def _run_check(answer: dict[str, Any], test_s: float) -> Check:
    """Whether the run of the tests came to its end and can be believed."""
    why = ""
    if answer["timed_out"]:
        why = f"the tests did not end within {test_s:g} s"
    elif not answer["ended"]:
        why = "the tests' process ended before they did"
    elif not answer["honest"]:
        why = "copies of tests that must fail passed or did not run: the patch meddles with how tests are run"
    return Check(name="the test run can be believed", passed=not why, detail=why)


async def run_tests(start: Start, limits: Limits, base: Base, payload: Payload, patch: bytes) -> dict[str, Any]:
    """Run the listed tests with a patch, in a sandbox of their own; what `inside.py` says of it.

    Raises:
        EnvironmentFailed: no sandbox starts, it ended, or it gave no result.
    """
    wanted = (*payload.fail_to_pass, *payload.pass_to_pass)
    folder = f"/tmp/judge-{secrets.token_hex(8)}"
    files = sorted({one.partition("::")[0] for one in wanted} | set(patch_paths(payload.test_patch)))
    request = {
        "patch": base64.b64encode(patch).decode(), "test_patch": payload.test_patch, "test_files": files,
        "wanted": wanted, "failing": payload.fail_to_pass, "arguments": payload.test_arguments,
        "test_s": payload.test_s, "ours": bool(payload.bug),
    }  # fmt: skip
    sandbox = await start(dataclasses.replace(limits, output_chars=RESULT_CHARS), packages=PACKAGES)
    try:
        await unpack(sandbox, base)
        await sandbox.write({f"{folder}/{path.name}": path.read_bytes() for path in INSIDE})
        done = await sandbox.run(
            ["python3", "-I", f"{folder}/inside.py", folder], stdin=json.dumps(request).encode(),
            timeout_s=payload.test_s + BEGIN_S,
        )  # fmt: skip
        if done.exit_code != 0 or done.timed_out:
            why = done.ended or ("it took too long" if done.timed_out else done.stderr.strip()[-500:])
            if not patch or not await _was_ended(sandbox, done):
                raise EnvironmentFailed(f"the tests can't be run: {why or f'exit code {done.exit_code}'}")
            return {
                "stage": "tests", "passed": [False] * len(wanted), "details": {}, "ended": False, "timed_out": False,
                "honest": True, "said": why,
            }  # fmt: skip
        answer = json.loads(done.stdout)
    except (OSError, ValueError) as error:
        raise EnvironmentFailed(f"the result of the tests can't be read: {error}") from error
    finally:
        await sandbox.close()
    if answer["stage"] == "start":
        raise EnvironmentFailed(f"pytest does not start in the sandbox: {answer['said'].strip()[-300:]}")
    return answer


async def _was_ended(sandbox: Sandbox, done: CommandResult) -> bool:
    """Whether a signal, a limit or its time ended what judges, in a sandbox that is well: tested code did that."""
    if not done.ended and not done.timed_out and (done.exit_code or -1) > 0:
        return False
    return (await sandbox.run(["true"], timeout_s=CONTROL_S)).exit_code == 0


async def verify(start: Start, limits: Limits, base: Base, payload: Payload, source: str) -> None:
    """Make sure, once in a process, that the task can be judged: without a patch all of FAIL_TO_PASS fail and all of
    PASS_TO_PASS pass; with the known patch, where there is one, all pass.

    Raises:
        TaskError: they don't; names field and tests.
        EnvironmentFailed: they can't be run.
    """
    digest = hashlib.sha256(repr((base.commit, payload)).encode()).hexdigest()
    if digest in VERIFIED:
        return
    answer = await run_tests(start, limits, base, payload, b"")
    if answer["stage"] != "tests":
        raise TaskError(f"{source}: test_patch: it does not apply to {base.commit[:12]}: {answer['why']}")
    if not (run := _run_check(answer, payload.test_s)).passed:
        raise TaskError(f"{source}: test_patch: on the base, {run.detail}: {answer['said'][-300:]}")
    count = len(payload.fail_to_pass)
    _refuse(source, "FAIL_TO_PASS", "pass already on the base", payload.fail_to_pass, answer["passed"][:count], True)
    kept = answer["passed"][count:]
    _refuse(source, "PASS_TO_PASS", "fail on the base", payload.pass_to_pass, kept, False, answer)
    if payload.patch.strip():
        outcome = await judge(start, limits, base, payload, payload.patch.encode())
        if not outcome.solved:
            bad = next(check for check in outcome.checks if not check.passed)
            raise TaskError(f"{source}: patch: it does not solve the task: {bad.name}: {bad.detail}")
    VERIFIED.add(digest)


def _refuse(
    source: str, field: str, what: str, names: tuple[str, ...], passed: list[bool], bad: bool,
    answer: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    found = [name for name, good in zip(names, passed, strict=True) if good is bad]
    if found:
        detail = (answer or {}).get("details", {}).get(found[0], "")
        raise TaskError(
            f"{source}: {field}: {len(found)} of {len(names)} {what}: {', '.join(found[:SHOWN])} {detail}".strip()
        )
