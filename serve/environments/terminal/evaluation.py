"""What the policy left in the sandbox, looked at by the task's checks.

What it does: runs each check as a bash process of its own, with a clean environment, after every other process was
ended; reads their results. What it leaves out: test scripts of folders (`verdicts.py`).

How it stays sound against a policy that wrote anything it liked into /work, /tmp and its home folder:
- The check's text reaches bash through stdin and is nowhere else, neither in a file nor in a command line, so that a
  script of the policy that a check runs can't read what is expected of it. The result is the exit code: nothing that
  is printed can forge it. (What a check hands to a program as an argument can be seen while that program runs: compare
  in bash itself, with `gives` or [[ ]], what a script of the policy printed.)
- `bash --noprofile --norc` with a clean PATH, a HOME that does not exist, and settings that keep git from reading
  the policy's configuration. `python` in checks is `python3 -I -S`.
- What a check reads with the functions of `checks.sh` may be a link, a FIFO or a huge file: it is refused, not read.

Whose fault is a check that ran out of time? Checks take milliseconds on what was asked for. Where a bare bash right
after it answers at once, the sandbox is well, and something that the policy left blocks (a FIFO, an endless script):
the check failed. Where the bare bash does not, the sandbox is at fault: `EnvironmentFailed`. A check that was ended for
its memory or output failed too. What this can't keep out: a script of the policy, run by a check, that reads the
memory of the bash that called it.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from serve.environments.protocol import Check, EnvironmentFailed, Outcome
from serve.environments.sandbox import CommandResult, Sandbox

BASH = ("/usr/bin/bash", "--noprofile", "--norc", "-c", 'code=$(</dev/stdin); exec </dev/null; eval "$code"', "check")
CLEAN = {
    "PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8", "TMPDIR": "/tmp", "TERM": "dumb",
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_PAGER": "/usr/bin/cat", "PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1",
}  # fmt: skip
PRELUDE = (Path(__file__).with_name("checks.sh")).read_text("utf-8")
CONTROL_S = 2.0  # a bare bash answers in a hundredth of it
DETAIL_CHARS = 300


async def run_checks(sandbox: Sandbox, checks: list[dict[str, Any]]) -> Outcome:
    """The outcome: 2 * (share of checks passed) - 1. Other processes must have been ended (`sandbox.clear`).

    Raises:
        EnvironmentFailed: a check can't be run.
    """
    results = []
    for check in checks:
        result = await script(sandbox, f"{PRELUDE}\n{check['run']}\n", check["timeout_s"], CLEAN)
        results.append(Check(name=check["name"], passed=await passed(sandbox, result), detail=detail(result)))
    if not any(result.passed and not check["guard"] for check, result in zip(checks, results, strict=True)):
        results = [
            replace(one, passed=False, detail=one.detail or "nothing that was asked for is there") for one in results
        ]
    return Outcome.of(tuple(results))


async def script(sandbox: Sandbox, code: str, timeout_s: float, env: dict[str, str] | None) -> CommandResult:
    """A bash script in a fresh process, its text unseen by what it starts."""
    return await sandbox.run(BASH, stdin=code.encode("utf-8", "surrogateescape"), env=env, timeout_s=timeout_s)


async def passed(sandbox: Sandbox, result: CommandResult) -> bool:
    """Whether it ended well.

    Raises:
        EnvironmentFailed: it ran out of time, and so does a bare bash.
    """
    if result.timed_out:
        control = await script(sandbox, ":", CONTROL_S, CLEAN)
        if control.exit_code != 0:
            raise EnvironmentFailed(f"a check took over {result.duration_s:.0f} s, and then bash alone {CONTROL_S:g} s")
    return result.exit_code == 0 and not result.timed_out and not result.ended


def detail(result: CommandResult) -> str:
    """Why a check failed, in short."""
    if result.timed_out:
        return f"stopped after {result.duration_s:.1f} s: something that was left there blocks"
    said = (result.stderr.strip() or result.stdout.strip())[-DETAIL_CHARS:]
    return (
        "" if result.exit_code == 0 else "; ".join(filter(None, (f"exit code {result.exit_code}", result.ended, said)))
    )
