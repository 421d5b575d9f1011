"""The verdict of a folder task's tests (`tests/test.sh`, or pytest on `tests/test_*.py`).

What it does: writes the task's tests into a folder that did not exist before, has them run in /work (`runner.py`),
reads their verdict. What it leaves out: checks of our own task files (`evaluation.py`).

The verdict of a test script, the first of these that is there:
1. A reward file, `/logs/verifier/reward.json` (names and numbers; one check a name) or `/logs/verifier/reward.txt` (one
   number), where a text of the tests speaks of /logs/verifier. Numbers lie within 0 and 1; the score is 2 * (their
   mean) - 1, and 1 passes. Others: `EnvironmentFailed`. Where it says 1 and a line as below says FAILED, lines count.
2. Lines `PASSED name`, `FAILED name`, `ERROR name` in what it prints, as `pytest -rA` writes them; after the last line
   `short test summary info`, if one is there. Where the exit code is 0 but a line says FAILED, or is not 0 while no
   line does, one more failed check, `test.sh`, says so.
3. The exit code: 0 is passed. 126 and 127 (a command was not found) are an `EnvironmentFailed`: it can't be run.
A script that a signal ended has not passed, whatever it said before. Where there is no test script, each test of pytest
is a check, read from a signed report; without a report, nothing has passed.

`/tests` and `/logs/verifier` are named in the scripts as Harbor names them. Neither path exists here: in every text
file of the tests they are replaced by the true names of folders, each random, so that nothing could lie there before.
No variable names them.

What is not kept out, as the policy's scripts run as the user who runs the tests: they can look for the tests' folders
(in /tmp, or in the arguments of programs), read and change the tests that come later, and end any process, which makes
the tests fail. A script whose output a test script does not catch can print lines of verdicts. Where a task wants a
reward file, a process that outlives the script can write another reward after it: prefer exit codes, or pytest without
test.sh. Tests that import the policy's modules run them in their own process, where those can change every result.
"""

import hashlib
import hmac
import json
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serve.environments.protocol import Check, EnvironmentFailed, Outcome
from serve.environments.sandbox import CommandResult, Sandbox
from serve.environments.terminal.evaluation import CLEAN, detail, passed, script
from serve.environments.terminal.payload import contents

MADE_PATHS = re.compile(r"(?<![\w./$}-])(/tests|/logs/verifier)(?![\w.-])")
VERDICT = re.compile(r"^(PASSED|FAILED|ERROR)\s+(\S.*?)(?: - .*)?\s*$", re.MULTILINE)
SUMMARY = "short test summary info"
LOGS = "/logs/verifier"
SCRIPT = "test.sh"  # the check that tells of the run as a whole
RUNNER = (Path(__file__).with_name("runner.py")).read_text("utf-8")
PYTHON = ("/usr/bin/python3", "-c", "import sys; exec(compile(sys.stdin.read(), 'runner', 'exec'))")
NOT_RUN = 3  # pytest's exit codes from here up say that it could not run the tests
REPORT_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Places:
    """Folders that did not exist before the tests, none of whose names tells another."""

    tests: str
    logs: str
    own: str  # with home and tmp, which what is run is told

    @classmethod
    def made_up(cls) -> "Places":
        """Random names."""
        return cls(*(f"/tmp/{secrets.token_hex(12)}" for _ in range(3)))


async def run_tests(sandbox: Sandbox, tests: dict[str, Any]) -> Outcome:
    """The outcome that the task's tests give. Other processes must have been ended.

    Raises:
        EnvironmentFailed: they can't be run, or say nothing that can be read.
    """
    places = Places.made_up()
    if reason := await _place(sandbox, places, tests["files"]):
        return _failed(reason)
    if SCRIPT not in tests["files"]:
        return await _pytest(sandbox, places, tests["timeout_s"])
    result = await _run(sandbox, places, f"run_script({places.tests + '/test.sh'!r})", tests["timeout_s"])
    well = await passed(sandbox, result)
    if result.timed_out or result.ended or (result.exit_code or 0) < 0:
        return _failed(detail(result))
    checks = read_lines(result.stdout, well)
    if wants_reward(tests["files"]) and (rewards := await _rewards(sandbox, places.logs)):
        return _of_rewards(rewards, checks)
    if checks:
        return Outcome.of(checks)
    if result.exit_code in (126, 127):
        raise EnvironmentFailed(f"the test script could not be run: {detail(result)}")
    return Outcome.of((Check(name=SCRIPT, passed=well, detail=detail(result)),))


def _failed(why: str) -> Outcome:
    return Outcome.of((Check(name=SCRIPT, passed=False, detail=why),))


async def _run(sandbox: Sandbox, places: Places, call: str, timeout_s: float) -> CommandResult:
    """Have `runner.py` make a call. Its text goes through stdin: what it is told is in no file and no argument."""
    env = CLEAN | {"HOME": f"{places.own}/home", "TMPDIR": f"{places.own}/tmp"}
    code = f"{RUNNER}\n\n{call}\n"
    return await sandbox.run(PYTHON, stdin=code.encode(), env=env, timeout_s=timeout_s)


async def _pytest(sandbox: Sandbox, places: Places, timeout_s: float) -> Outcome:
    """The outcome of pytest on the tests' folder, from its report."""
    report, key = f"/tmp/{secrets.token_hex(12)}", secrets.token_hex(32)
    result = await _run(sandbox, places, f"run_pytest({places.tests!r}, {report!r}, {key!r})", timeout_s)
    await passed(sandbox, result)
    if result.timed_out or result.ended:
        return _failed(detail(result))
    if result.exit_code == 127:
        raise EnvironmentFailed("the tests could not be run: pytest is not there")
    await sandbox.clear()
    try:
        data = await sandbox.read(report, limit=REPORT_BYTES)
    except (OSError, ValueError) as error:
        return _failed(f"the tests ended without a report: {detail(result) or error}")
    given, text = data[:64].decode("ascii", "replace"), data[64:]
    if not hmac.compare_digest(given.encode(), hmac.new(key.encode(), text, hashlib.sha256).hexdigest().encode()):
        return _failed("the report of the tests was written by somebody else")
    told = json.loads(text)
    if told["code"] >= NOT_RUN and all(good for _, good, _ in told["results"]):
        raise EnvironmentFailed(f"the tests could not be run: pytest's exit code is {told['code']}")
    if not told["results"]:
        return _failed("every test was skipped")
    found: dict[str, tuple[bool, str]] = {}
    for name, good, why in told["results"]:
        before, said = found.get(name, (True, ""))
        found[name] = (before and good, said or why)
    return Outcome.of(tuple(Check(name=name, passed=good, detail=why) for name, (good, why) in found.items()))


async def _place(sandbox: Sandbox, places: Places, files: dict[str, dict[str, Any]]) -> str:
    """Write the tests; a reason where what the policy left does not let us."""
    made = f"mkdir -m 700 {places.tests} {places.logs} {places.own} && mkdir {places.own}/home {places.own}/tmp"
    ready = await script(sandbox, f"chmod 1777 /tmp; {made}", 10.0, CLEAN)
    if ready.exit_code != 0:
        return f"no room for the tests: {detail(ready)}"
    by_mode: dict[int, dict[str, bytes]] = {}
    for path, file in files.items():
        by_mode.setdefault(file["mode"], {})[f"{places.tests}/{path}"] = placed(file, places)
    for mode, some in by_mode.items():
        try:
            await sandbox.write(some, mode=mode)
        except OSError as error:
            return f"no room for the tests: {error}"
    return ""


def wants_reward(files: dict[str, dict[str, Any]]) -> bool:
    """Whether a text of the tests speaks of the folder for rewards."""
    return any(LOGS in MADE_PATHS.findall(file.get("text", "")) for file in files.values())


def placed(file: dict[str, Any], places: Places) -> bytes:
    """A test file's content, with the true names of the folders that it speaks of."""
    if "text" not in file:
        return contents(file)
    true = {"/tests": places.tests, LOGS: places.logs}
    return MADE_PATHS.sub(lambda match: true[match[1]], file["text"]).encode()


async def _rewards(sandbox: Sandbox, folder: str) -> dict[str, float]:
    """What stands in the reward file; nothing where there is none."""
    for name in ("reward.json", "reward.txt"):
        try:
            text = (await sandbox.read(f"{folder}/{name}", limit=100_000)).decode("utf-8", "replace")
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise EnvironmentFailed(f"the reward file {name} can't be read: {error}") from error
        return read_rewards(name, text)
    return {}


def read_rewards(name: str, text: str) -> dict[str, float]:
    """Names and rewards within 0 and 1.

    Raises:
        EnvironmentFailed: it holds none.
    """
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    given = value if isinstance(value, dict) else {"reward": value}
    numbers = [one for one in given.values() if isinstance(one, int | float) and 0 <= one <= 1]
    if not given or len(numbers) < len(given):
        raise EnvironmentFailed(f"the reward file {name} says {text.strip()[:200]!r}: numbers from 0 to 1 are needed")
    return {key: float(one) for key, one in given.items()}


def _of_rewards(rewards: dict[str, float], lines: tuple[Check, ...]) -> Outcome:
    """What the rewards say; where they are all 1 and a line is not, what the lines say."""
    if all(value == 1 for value in rewards.values()) and not all(
        check.passed for check in lines if check.name != SCRIPT
    ):
        return Outcome.of(lines)
    checks = (Check(name=name, passed=value == 1, detail=f"reward {value:g}") for name, value in rewards.items())
    return Outcome(score=2 * sum(rewards.values()) / len(rewards) - 1, checks=tuple(checks))


def read_lines(output: str, well: bool) -> tuple[Check, ...]:
    """Checks from lines such as `PASSED test_a.py::test_one`; a name that stands twice must have passed both times."""
    verdicts: dict[str, bool] = {}
    for word, name in VERDICT.findall(output[max(output.rfind(SUMMARY), 0) :]):
        verdicts[name] = verdicts.get(name, True) and word == "PASSED"
    checks = [Check(name=name, passed=ok, detail="" if ok else "FAILED") for name, ok in verdicts.items()]
    if checks and well != all(verdicts.values()):
        checks.append(Check(name=SCRIPT, passed=False, detail=f"its exit code is {'0' if well else 'not 0'}"))
    return tuple(checks)
