"""Actions as plain text, for models that call no tools: one bash block an answer, or the word DONE.

What it does: `parse_plain` (never raises), `plain_text`, its reverse. What it leaves out: `timeout_s`, which has no
plain form.

Reasoning in `<think>` tags before the answer is not read. A fence may be longer than three backticks, for commands
with fences in them. The block may be marked bash, sh, shell or console, or not at all.
"""

import re

from serve.environments.protocol import Action, Call

RIGHT = "Answer with one block:\n```bash\nls\n```\nor with the single word {word} when the task is finished."
BOTH = "The answer has both a block and {word}: look at what the command gives, and say {word} after it."
LANGUAGES = ("", "bash", "sh", "shell", "console", "zsh")
_FENCE = re.compile(r" {0,3}(`{3,})([^`]*)$")
_DONE = re.compile(r"[\W_]*done[\W_]*", re.IGNORECASE)


def answer_of(text: str) -> str:
    """A text without the reasoning before it."""
    if text.lstrip().startswith("<think>") and "</think>" in text:
        return text.partition("</think>")[2]
    return text


def parse_plain(text: str, word: str = "DONE") -> Action:
    """The action of an answer; `fault` says what is wrong with one that can't be read, and calls DONE `word`."""
    answer = answer_of(text)
    blocks, outside, closed = _blocks(answer)
    lines = [line for line in outside if line.strip()]
    done = bool(lines) and bool(_DONE.fullmatch(lines[-1]))
    if not blocks and done:
        return Action(text=text, calls=(Call(name="done", arguments={}),))
    if not answer.strip():
        return fault(text, "The answer is empty.", word)
    if not blocks:
        return fault(text, "The answer has no ```bash block.", word)
    if not closed:
        return fault(text, "The block has no end: a line ``` is missing after the command.", word)
    if len(blocks) > 1:
        return fault(text, f"The answer has {len(blocks)} blocks; only one command block an answer is read.", word)
    language, command = blocks[0]
    if language not in LANGUAGES:
        return fault(text, f"The block is marked {language[:20]!r}: only bash is run.", word)
    if not command.strip():
        return fault(text, "The block is empty.", word)
    if done:
        return fault(text, BOTH.format(word=word), word)
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


def fault(text: str, what: str, word: str) -> Action:
    """An answer that can't be read: what is wrong with it, and the right form."""
    return Action(text=text, fault=f"{what} {RIGHT.format(word=word)}")


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
