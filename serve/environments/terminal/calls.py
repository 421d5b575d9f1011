"""The calls of a track that is used through a shell: `bash`, and a word that ends the episode.

What it does: says what is wrong with calls, makes calls of a solution's entries. The SWE track uses it too.
"""

from typing import Any

from serve.environments.protocol import Action, Call


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


def entry_action(entry: Any, ending: str, kind: str) -> Action:
    """An entry of `expert` or `wrong` as an action: a bash command, or the word that ends the episode.

    Raises:
        ValueError: it is no text.
    """
    if not isinstance(entry, str) or not entry.strip():
        raise ValueError(f"{entry!r}: an entry of a {kind} task is a bash command, or {ending}")
    if entry == ending:
        return Action(text="", calls=(Call(name=ending, arguments={}),))
    return Action(text="", calls=(Call(name="bash", arguments={"command": entry}),))
