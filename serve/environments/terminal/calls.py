"""The calls of a track that is used through a shell: `bash`, and a word that ends the episode.

What it does: says what is wrong with calls, bounds what one answer may run and be shown, makes calls of a solution's
entries. The SWE track uses it too.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from serve.environments.protocol import MAX_CALLS, Action, Call
from serve.environments.tasks import Task, TaskError
from serve.environments.terminal.payload import brief, is_text

LEAST_S = 0.05  # a command that would get less of a step's time is not begun
TITLE_CHARS = 200  # of a command, above its output
LEAST_CHARS = 200  # of an output, whatever was shown before: how the command ended
WORDS_CHARS = 500  # of what is said of a command besides its output


def fault_of(calls: tuple[Call, ...], ending: str, when: str, takes: tuple[str, ...]) -> str | None:
    """What is wrong with these calls, said so that it can be mended; None where nothing is.

    Args:
        calls: of one answer.
        ending: the tool that ends the episode.
        when: it is to be called, as words.
        takes: the arguments of bash, "command" first.
    """
    if not calls:
        return f"No command was given: call bash with a command, or {ending} when {when}."
    for call in calls:
        if call.name == ending:
            continue
        if call.name != "bash":
            return f"There is no tool {call.name[:80]!r}: there are bash and {ending}. Nothing was run."
        command = call.arguments.get("command")
        if not isinstance(command, str) or not command.strip():
            return f"bash needs command, a text: {str(command)[:80]!r} is none. Nothing was run."
        if "\0" in command:
            return "The command holds a zero byte, which bash can't read. Nothing was run."
        if unknown := sorted(set(call.arguments) - set(takes)):
            return f"bash takes {' and '.join(takes)}, not {unknown[0][:80]!r}. Nothing was run."
        time_s = call.arguments.get("timeout_s", 1)
        if isinstance(time_s, bool) or not isinstance(time_s, int | float) or not 0 < time_s < 1e9:
            return f"timeout_s is {str(time_s)[:80]!r}: a number of seconds above 0 is needed. Nothing was run."
    return None


def title(command: str) -> str:
    """The line above a command's output, where an answer has several."""
    more = f"... ({len(command) - TITLE_CHARS} characters left out)" if len(command) > TITLE_CHARS else ""
    return f"$ {command[:TITLE_CHARS]}{more}\n"


def too_many(number: int) -> str:
    """What is said in place of running this call and those after it."""
    return f"[call {number} and later] not run: {MAX_CALLS} calls in one answer are the most"


class Room:
    """What is left for the outputs of one answer: twice `output_chars`, for stdout and stderr of one command."""

    def __init__(self, output_chars: int) -> None:
        self._most = self._left = 2 * output_chars + WORDS_CHARS

    def shown(self, text: str) -> str:
        """The text, its middle cut where it does not fit; its end is always there."""
        size = max(min(len(text), self._left), LEAST_CHARS)
        self._left = max(self._left - len(text), 0)
        if len(text) <= size:
            return text
        cut = f"... ({len(text) - size} characters left out: one answer is shown {self._most} at most) ..."
        return f"{text[: size - size // 2]}\n{cut}\n{text[-(size // 2) :]}"


def entry_action(entry: Any, ending: str, kind: str) -> Action:
    """An entry of `expert` or `wrong` as an action: a bash command, or the word that ends the episode.

    Raises:
        ValueError: it is no text.
    """
    if not is_text(entry) or not entry.strip():
        raise ValueError(f"{brief(entry)}: an entry of a {kind} task is a bash command, or {ending}")
    if entry == ending:
        return Action(text="", calls=(Call(name=ending, arguments={}),))
    return Action(text="", calls=(Call(name="bash", arguments={"command": entry}),))


def with_entries(tasks: Iterable[Task], ending: str, kind: str) -> Iterator[Task]:
    """The tasks, each entry of their solutions looked at.

    Raises:
        TaskError: one is no action; names file, line and field.
    """
    for task in tasks:
        for field in ("expert", "wrong"):
            for number, entry in enumerate(getattr(task, field), 1):
                try:
                    entry_action(entry, ending, kind)
                except ValueError as error:
                    raise TaskError(f"{task.source}: {field}: entry {number}: {error}") from error
        yield task
