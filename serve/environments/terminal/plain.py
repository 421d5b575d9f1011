"""Actions as plain text, for models that call no tools: one bash block an answer, or the word DONE.

What it does: `parse_plain` (never raises), `plain_text`, its reverse. What it leaves out: `timeout_s`, which has no
plain form.

Reasoning in `<think>` tags before the answer is not read. A fence may be longer than three backticks, for commands
with fences in them. The block may be marked bash, sh, shell or console, or not at all.
"""

import re

from serve.environments.protocol import Action, Call

RIGHT = "Answer with one block:\n```bash\nls\n```\nor with the single word DONE when the task is finished."
LANGUAGES = ("", "bash", "sh", "shell", "console", "zsh")
_FENCE = re.compile(r" {0,3}(`{3,})([^`]*)$")
_DONE = re.compile(r"[\W_]*done[\W_]*", re.IGNORECASE)


def parse_plain(text: str) -> Action:
    """The action of an answer; `fault` says what is wrong with one that can't be read."""
    answer = text
    if text.lstrip().startswith("<think>") and "</think>" in text:
        answer = text.partition("</think>")[2]
    blocks, outside, closed = _blocks(answer)
    lines = [line for line in outside if line.strip()]
    done = bool(lines) and bool(_DONE.fullmatch(lines[-1]))
    if not blocks and done:
        return Action(text=text, calls=(Call(name="done", arguments={}),))
    if not answer.strip():
        return _fault(text, "The answer is empty.")
    if not blocks:
        return _fault(text, "The answer has no ```bash block.")
    if not closed:
        return _fault(text, "The block has no end: a line ``` is missing after the command.")
    if len(blocks) > 1:
        return _fault(text, f"The answer has {len(blocks)} blocks; only one command block an answer is read.")
    language, command = blocks[0]
    if language not in LANGUAGES:
        return _fault(text, f"The block is marked {language[:20]!r}: only bash is run.")
    if not command.strip():
        return _fault(text, "The block is empty.")
    if done:
        return _fault(
            text, "The answer has both a block and DONE: look at what the command gives, and say DONE after it."
        )
    return Action(text=text, calls=(Call(name="bash", arguments={"command": command}),))


def plain_text(action: Action) -> str:
    """The plain form of an action with one call; of one without a call, its text."""
    if not action.calls:
        return action.text
    if len(action.calls) > 1:
        raise ValueError(f"{len(action.calls)} calls have no plain form: only one command an answer is read")
    call = action.calls[0]
    if call.name == "done":
        return "DONE"
    command = call.arguments["command"]
    longest = max((len(run) for run in re.findall("`+", command)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}bash\n{command}\n{fence}"


def _fault(text: str, what: str) -> Action:
    return Action(text=text, fault=f"{what} {RIGHT}")


def _blocks(text: str) -> tuple[list[tuple[str, str]], list[str], bool]:
    """(language, content) of each fenced block, the lines outside of them, and whether the last block has its end."""
    blocks: list[tuple[str, str]] = []
    outside: list[str] = []
    fence, language, inside = "", "", []
    for line in text.split("\n"):
        match = _FENCE.match(line.rstrip("\r"))
        if not fence and match:
            fence, language, inside = match[1], match[2].strip().lower(), []
        elif fence and match and len(match[1]) >= len(fence) and not match[2].strip():
            blocks.append((language, "\n".join(inside)))
            fence = ""
        else:
            (inside if fence else outside).append(line)
    if fence:
        blocks.append((language, "\n".join(inside)))
    return blocks, outside, not fence
