"""What the policy reads of a command that was run, and of the folder that it begins in.

What it does: `of_command`, `of_start`. What it leaves out: cutting long output, which the sandbox did already.
"""

import re

from serve.environments.sandbox import CommandResult
from serve.environments.terminal.interactive import note

LISTED = 20  # entries of the folder that the first observation names
BINARY_SHARE = 0.05  # of strange characters, from which on output is called binary
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?>]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[=>()][0-9A-B]?)")  # a terminal's
_STRANGE = re.compile(r"[\x00-\x07\x0e-\x1a\x1c-\x1f\x7f\ufffd]")


def of_start(names: list[str], count: int) -> str:
    """The first observation: where the shell is, and what lies there. Folders end in a slash."""
    if not count:
        return "The shell is in /work, which is empty."
    more = f" and {count - LISTED} more" if count > LISTED else ""
    return f"The shell is in /work, where these lie: {'  '.join(names[:LISTED])}{more}"


def of_command(command: str, result: CommandResult, cwd_before: str, limit_s: float) -> str:
    """Its output, its errors apart, how it ended, and hints."""
    parts = [shown(result.stdout, result.stdout_cut), shown(result.stderr, result.stderr_cut)]
    lines = [parts[0]] if parts[0] else []
    if parts[1]:
        lines.append(f"stderr:\n{parts[1]}")
    if not any(parts):
        lines.append("(no output)")
    lines.append(_ending(result, limit_s))
    if result.cwd != cwd_before:
        lines.append(f"cwd: {result.cwd}")
    if result.shell_restarted:
        lines.append(f"The shell was started anew in {result.cwd}: its variables and functions are gone; files stay.")
    failed = result.exit_code != 0 or result.timed_out
    if (failed or not result.stdout.strip()) and (hint := note(command)):
        lines.append(hint)
    return "\n".join(lines)


def shown(text: str, cut: int) -> str:
    """An output as the policy sees it: binary is said, not shown."""
    text = text.rstrip("\n") if text.strip("\n") else ""
    text = _ESCAPES.sub("", text)
    strange = len(_STRANGE.findall(text))
    if "\0" in text or strange > BINARY_SHARE * len(text):
        size = cut + sum(1 if char == "\ufffd" else len(char.encode("utf-8", "replace")) for char in text)
        return f"(binary output, about {size} bytes, not shown: look at it with od -c or base64)"
    return text


def _ending(result: CommandResult, limit_s: float) -> str:
    if result.timed_out:
        lives = "the shell had to be ended too" if result.shell_restarted else "the shell lives on"
        return f"timed out: stopped after {limit_s:g} s; {lives}"
    ended = f" ({result.ended})" if result.ended else ""
    if result.exit_code is None:
        return f"stopped{ended}"
    signal = f", by signal {-result.exit_code}" if result.exit_code < 0 else ""
    return f"exit code: {result.exit_code}{signal}{ended}"
