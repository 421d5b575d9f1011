"""What a tool's output or an environment's screen says about the answer that led to it.

What it does: reads exit codes, test verdicts, error reports and JSON results; the strongest sign decides.
What it leaves out: judging data. Output with no sign of success or failure is 0.
"""

import json
import re
from collections.abc import Iterator

from judge.prompts import clip
from judge.replies import Reading

MAX_READ_CHARS = 20_000  # the middle of longer output is not read


def _any_of(*parts: str, flags: int = re.MULTILINE) -> re.Pattern[str]:
    return re.compile("|".join(parts), flags)


_EXIT = re.compile(
    r"(?:exit(?:ed)?(?:[ _-]?(?:code|status))?(?: with)?(?: code| status)?|return ?code|\brc|status code)"
    r"\s*[:=]?\s*(-?\d+)\b",
    re.IGNORECASE,
)
_TESTS_FAILED = _any_of(
    r"\b[1-9]\d* (?:tests? )?(?:failed|failures?|errors?)\b(?! 0)|\bFAILED\b|^--- FAIL|^FAIL\b|test result: FAILED",
    r"\b(?:tests?|build|checks?) (?:have |has |did )?(?:failed|failing)\b|BUILD FAILURE|AssertionError|✗ |✕ ",
)
_TESTS_PASSED = _any_of(
    r"\b\d+ (?:tests? )?(?:passed|passing)\b|\ball (?:\d+ )?(?:tests?|checks) (?:have |are )?pass(?:ed|ing)?\b",
    r"test result: ok|^ok\s+\S+\s+(?:\d|\(cached)|(?-i:^OK\b(?: \(|$))|BUILD SUCCESS|^PASS\b|✓ ",
    flags=re.MULTILINE | re.IGNORECASE,
)
_ERROR = _any_of(
    r"^Traceback \(most recent call last\)|^\s*(?:\w+\.)*\w*(?:Error|Exception)\b\s*(?::|\()",
    r"^(?:[\w./-]+: )?(?:fatal|panic|error)\b\s*(?:\[\w+\])?:|\berror: |\bERROR:|command not found",
    r"No such file or directory|permission denied|segmentation fault|core dumped|\b(?:timed out|timeout exceeded)\b",
    r"\bHTTP(?:/[\d.]+)? [45]\d\d\b|\b4\d\d (?:Bad Request|Unauthorized|Forbidden|Not Found|Too Many Requests)",
    r"\b5\d\d (?:Internal Server Error|Bad Gateway|Service Unavailable|Gateway Timeout)",
    r"^(?:invalid|missing|unknown|unrecognized) (?:\w+ )*(?:argument|parameter|option|field|tool|command|input)s?\b",
    r"is not recognized as|cannot find|\bunhandled (?:exception|promise)|\*\*\* \[.*\] Error \d+|^usage: ",
    flags=re.MULTILINE | re.IGNORECASE,
)
_SUCCESS = _any_of(
    r"^successfully\b|^(?:done|success|succeeded)[.!]?$|\b0 errors?\b|^(?:file )?(?:saved|written|created|updated) ",
    r"\b(?:completed|installed|created|updated|saved|written|deleted|deployed|merged|uploaded|built) successfully\b",
    flags=re.MULTILINE | re.IGNORECASE,
)
_FAILED_WORDS = frozenset({"error", "failed", "failure", "fail", "timeout", "denied", "invalid"})
_GOOD_WORDS = frozenset({"ok", "success", "succeeded", "passed", "completed", "done"})


def read_outcome(output: str) -> Reading:
    """JSON results first, then test verdicts, then exit codes, then errors, then words of success."""
    text = output.strip()
    if not text:
        return Reading(0, "no output")
    if readings := [reading for value in _json_objects(text) if (reading := _from_json(value))]:
        return min(readings, key=lambda reading: reading.score)  # of several results the failed one counts
    text = clip(text, MAX_READ_CHARS)
    if found := _TESTS_FAILED.search(text):
        return Reading(-1, f"tests failed: {found.group().strip()}")
    exits = _EXIT.findall(text)
    if exits and any(int(code) != 0 for code in exits):
        return Reading(-1, f"exit code {next(code for code in exits if int(code) != 0)}")
    if found := _TESTS_PASSED.search(text):
        return Reading(1, f"tests passed: {found.group().strip()}")
    if exits:
        return Reading(1, "exit code 0")
    if found := _ERROR.search(text):
        return Reading(-1, f"error: {found.group().strip()}")
    if found := _SUCCESS.search(text):
        return Reading(1, f"success: {found.group().strip()}")
    return Reading(0, "output without a sign of success or failure")


def _json_objects(text: str) -> Iterator[dict]:
    """The output as a whole, or each line, where that is a JSON object."""
    for part in (text, *text.splitlines()[:200]) if "\n" in text else (text,):
        if part.lstrip().startswith("{"):
            try:
                value = json.loads(part)
            except ValueError:
                continue
            if isinstance(value, dict):
                yield value


def _from_json(value: dict) -> Reading | None:
    """Looks at the top level only: an `error: null` deep in search results says nothing."""
    for key in ("exit_code", "exitCode", "returncode", "return_code", "exit_status"):
        if isinstance(code := value.get(key), int) and not isinstance(code, bool):
            return Reading(1 if code == 0 else -1, f"exit code {code}")
    for key in ("error", "errors", "exception"):
        if value.get(key):
            return Reading(-1, f"error field: {str(value[key])[:80]}")
    for key in ("isError", "is_error"):
        if isinstance(value.get(key), bool):
            return Reading(-1, f"{key}: true") if value[key] else None
    for key in ("ok", "success", "passed"):
        if isinstance(value.get(key), bool):
            return Reading(1 if value[key] else -1, f"{key}: {str(value[key]).lower()}")
    word = str(value.get("status", "")).lower()
    if word in _FAILED_WORDS or word in _GOOD_WORDS:
        return Reading(1 if word in _GOOD_WORDS else -1, f"status: {word}")
    return None
