"""What stands in an action's text, as far as the rules need it.

What it does: finds the calls in an action (<tool_call> blocks, else fenced blocks, else the text without thinking), the
names they call, the commands they run, and how many tests a run of tests passed.
What it leaves out: parsing shell. A command is recognised by its words.

The texts are a policy's, of any length: each pattern takes a time in proportion to the text. None has two repetitions
side by side that both take the same characters, nor one that runs on to the end of the text from many places.
"""

import json
import re
from dataclasses import dataclass

_THINKING = re.compile(r"<(think|thinking|reasoning)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_CALLS = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_BLOCKS = re.compile(r"^```[^\n]*\n(.*?)(?:^```|\Z)", re.DOTALL | re.MULTILINE)
_TEST_RUN = re.compile(
    r"\b(?:pytest|py\.test|unittest|tox|nox|ctest|jest|vitest|mocha|rspec|phpunit)\b"
    r"|\b(?:make|npm|yarn|pnpm|cargo|go|mvn|gradle|dotnet)\s+(?:run\s+)?(?:test|check)\b"
)
_EDIT_COMMAND = re.compile(r"\bsed\s+(?:-\w+\s+)*-\w*i|\bgit\s+apply\b|(?:^|[|;&]\s*)patch\s", re.MULTILINE)
_EDIT_NAMES = ("edit", "str_replace", "insert", "apply", "replace")
_END_NAMES = ("done", "finish", "answer", "submit", "submit_answer", "stop")
# What may leave the screen as it is: looking, waiting, pointing, and the end.
_QUIET_NAMES = ("wait", "sleep", "screenshot", "observe", "look", "read", "hover", "move", *_END_NAMES)
_ANSWERING = re.compile(  # commands whose exit code 1 is an answer: no match, not equal, not there
    r"(?:\A\s*|\bgit\s+)(grep|egrep|fgrep|rg|diff|cmp|test|\[|pgrep|which|type|command\s+-v)\b"
)
_PROGRAM = re.compile(r"(?:^|[|;&(]\s*)(?:\./\S|(?:bash|sh|python3?|node|perl|ruby|make)\b(?!\s+-))", re.MULTILINE)
_PASSED = re.compile(r"\b(\d+) (?:tests? )?pass(?:ed|ing)\b")
_FAILED = re.compile(r"\b(\d+) (?:tests? )?(?:failed|failing|errors?)\b")
_UNITTEST_RAN = re.compile(r"^Ran (\d+) tests? in ", re.MULTILINE)
_UNITTEST_SAID = re.compile(r"^(?:OK|FAILED)\b(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Counts:
    """What a run of tests said."""

    passed: int
    failed: int  # errors too


def core(action: str) -> str:
    """The calls alone, white space folded: what makes two actions the same whatever was thought."""
    plain = _THINKING.sub("", action)
    found = _calls(plain) or _BLOCKS.findall(plain) or [plain]
    return "\n".join(" ".join(part.split()) for part in found if part.strip())


def names(action: str) -> tuple[str, ...]:
    """The names that the action calls; of an action in plain text, the first word of its last line."""
    plain = _THINKING.sub("", action).strip()
    if blocks := _calls(plain):
        found = [_as_call(block)[0] for block in blocks]
    else:
        lines = (_BLOCKS.findall(plain) or [plain])[-1].strip().splitlines() or [""]
        found = [re.split(r"[\s(:;,.]", lines[-1].strip(), maxsplit=1)[0].lower()]
    return tuple(name for name in found if name)


def commands(action: str) -> str:
    """The text of what the action runs: the text arguments of its calls, else its blocks."""
    plain = _THINKING.sub("", action)
    if blocks := _calls(plain):
        return "\n".join(_as_call(block)[1] for block in blocks)
    return "\n".join(_BLOCKS.findall(plain) or [plain]).strip()


def _calls(text: str) -> list[str]:
    return [found.strip() for found in _CALLS.findall(text)]


def _as_call(block: str) -> tuple[str, str]:
    """(name, text of the arguments) of a call in JSON; its raw text where it is none."""
    try:
        value = json.loads(block)
    except ValueError:
        return "", block
    if not isinstance(value, dict):
        return "", block
    arguments = value.get("arguments")
    texts = [item for item in arguments.values() if isinstance(item, str)] if isinstance(arguments, dict) else []
    return str(value.get("name", "")).lower(), "\n".join(texts)


def runs_tests(action: str) -> bool:
    """Whether a known test runner is called."""
    return _TEST_RUN.search(commands(action)) is not None


def edits(action: str) -> bool:
    """Whether the action means to change a file."""
    return any(name.startswith(_EDIT_NAMES) for name in names(action)) or bool(_EDIT_COMMAND.search(commands(action)))


def is_quiet(action: str) -> bool:
    """Whether every call of the action may well leave the screen as it is."""
    called = names(action)
    return bool(called) and all(name in _QUIET_NAMES for name in called)


def runs_program(action: str) -> bool:
    """Whether a script or program from a file is run, whose failure may be what is to be seen."""
    return _PROGRAM.search(commands(action)) is not None


def ends(action: str) -> bool:
    """Whether the action says that the task is finished, or gives the final answer."""
    return any(name in _END_NAMES for name in names(action))


def asks_by_exit_code(action: str) -> str | None:
    """The command whose exit code 1 is a normal answer, where the action ends on one."""
    found = _ANSWERING.search(re.split(r"[|;&]", commands(action))[-1].strip())
    return " ".join(found.group(1).split()) if found else None


def count_tests(action: str, result: str) -> Counts | None:
    """How many tests passed and failed, by what a test runner printed; None where none ran."""
    if not runs_tests(action):
        return None
    if (ran := _UNITTEST_RAN.search(result)) and (said := _UNITTEST_SAID.search(result, ran.end())):
        failed = sum(int(number) for number in re.findall(r"(?:failures|errors)=(\d+)", said.group(1)))
        return Counts(int(ran.group(1)) - failed, failed)
    lines = [line for line in result.splitlines() if _PASSED.search(line) or _FAILED.search(line)]
    if not lines:
        return None
    passed, failed = (sum(map(int, pattern.findall(lines[-1]))) for pattern in (_PASSED, _FAILED))
    return Counts(passed, failed)
