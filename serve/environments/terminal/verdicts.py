"""The verdict of a folder task's test script (`tests/test.sh`).

What it does: writes the task's tests into a folder that did not exist before, runs `test.sh` in /work, reads its
verdict. What it leaves out: checks of our own task files (`evaluation.py`).

The verdict, the first of these that is there:
1. A reward file, `/logs/verifier/reward.json` (names and numbers; one check a name) or `/logs/verifier/reward.txt` (one
   number). Numbers lie within 0 and 1; the score is 2 * (their mean) - 1, and 1 passes. Others: `EnvironmentFailed`.
2. Lines `PASSED name`, `FAILED name`, `ERROR name` in what it prints, as `pytest -rA` writes them; after the last line
   `short test summary info`, if one is there. Where the exit code is 0 but a line says FAILED, or is not 0 while no
   line does, one more failed check, `test.sh`, says so.
3. The exit code: 0 is passed. 126 and 127 (a command was not found) are an `EnvironmentFailed`: it can't be run.

`/tests` and `/logs/verifier` are named in the scripts as Harbor names them. Neither path exists here: in every text
file of the tests they are replaced by the folder's true name, which is random, so that nothing could lie there before.
"""

import json
import re
import secrets
from typing import Any

from serve.environments.protocol import Check, EnvironmentFailed, Outcome
from serve.environments.sandbox import Sandbox
from serve.environments.terminal.evaluation import CLEAN, detail, passed, script
from serve.environments.terminal.payload import contents

MADE_PATHS = re.compile(r"(?<![\w./$}-])(/tests|/logs/verifier)(?![\w.-])")
VERDICT = re.compile(r"^(PASSED|FAILED|ERROR)\s+(\S.*?)(?: - .*)?\s*$", re.MULTILINE)
SUMMARY = "short test summary info"
# where test.sh is missing; pytest's exit codes from 3 up say that it could not run the tests
PYTEST = """\
/usr/bin/python3 -m pytest --noconftest -c /dev/null -p no:cacheprovider --no-header -rA /tests
code=$?; (( code < 3 )) || code=127; exit $code
"""


async def run_tests(sandbox: Sandbox, tests: dict[str, Any]) -> Outcome:
    """The outcome that the task's test script gives. Other processes must have been ended.

    Raises:
        EnvironmentFailed: the script can't be run, or says nothing that can be read.
    """
    folder = f"/tmp/{secrets.token_hex(12)}"
    if reason := await _place(sandbox, folder, tests["files"]):
        return Outcome.of((Check(name="test.sh", passed=False, detail=reason),))
    env = CLEAN | {"HOME": f"{folder}/home", "TMPDIR": f"{folder}/tmp", "TESTS": f"{folder}/tests"}
    result = await sandbox.run(
        ("/usr/bin/bash", "--noprofile", "--norc", f"{folder}/tests/test.sh"), env=env, timeout_s=tests["timeout_s"]
    )
    well = await passed(sandbox, result)
    if result.timed_out or result.ended:
        return Outcome.of((Check(name="test.sh", passed=False, detail=detail(result)),))
    if rewards := await _rewards(sandbox, f"{folder}/logs/verifier"):
        return _of_rewards(rewards)
    if checks := read_lines(result.stdout, well):
        return Outcome.of(checks)
    if result.exit_code in (126, 127):
        raise EnvironmentFailed(f"the test script could not be run: {detail(result)}")
    return Outcome.of((Check(name="test.sh", passed=well, detail=detail(result)),))


async def _place(sandbox: Sandbox, folder: str, files: dict[str, dict[str, Any]]) -> str:
    """Write the tests; a reason where what the policy left does not let us."""
    made = " ".join(f"{folder}/{name}" for name in ("tests", "logs/verifier", "home", "tmp"))
    ready = await script(sandbox, f"chmod 1777 /tmp; test ! -e {folder} && mkdir -p {made}", 10.0, CLEAN)
    if ready.exit_code != 0:
        return f"no room for the tests: {detail(ready)}"
    by_mode: dict[int, dict[str, bytes]] = {}
    for path, file in files.items():
        by_mode.setdefault(file["mode"], {})[f"{folder}/tests/{path}"] = placed(file, folder)
    for mode, some in by_mode.items():
        try:
            await sandbox.write(some, mode=mode)
        except OSError as error:
            return f"no room for the tests: {error}"
    return ""


def placed(file: dict[str, Any], folder: str) -> bytes:
    """A test file's content, with the true names of the folders that it speaks of."""
    if "text" not in file:
        return contents(file)
    return MADE_PATHS.sub(lambda match: f"{folder}{match[1]}", file["text"]).encode()


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


def _of_rewards(rewards: dict[str, float]) -> Outcome:
    checks = (Check(name=name, passed=value == 1, detail=f"reward {value:g}") for name, value in rewards.items())
    return Outcome(score=2 * sum(rewards.values()) / len(rewards) - 1, checks=tuple(checks))


def read_lines(output: str, well: bool) -> tuple[Check, ...]:
    """Checks from lines such as `PASSED test_a.py::test_one`; a name that stands twice must have passed both times."""
    verdicts: dict[str, bool] = {}
    for word, name in VERDICT.findall(output[max(output.rfind(SUMMARY), 0) :]):
        verdicts[name] = verdicts.get(name, True) and word == "PASSED"
    checks = [Check(name=name, passed=ok, detail="" if ok else "FAILED") for name, ok in verdicts.items()]
    if checks and well != all(verdicts.values()):
        checks.append(Check(name="test.sh", passed=False, detail=f"its exit code is {'0' if well else 'not 0'}"))
    return tuple(checks)
