r"""Text with terminal colours as plain text that keeps what the colours say: `readable`.

Many boards mark the player's place by colour alone. `\x1b[41mS\x1b[0m` becomes `<on-red>S</>`, `\x1b[34;1mB\x1b[0m`
becomes `<blue-bold>B</>`. What it leaves out: other terminal codes; they are taken away.
"""

import re

from serve.environments.protocol import EnvironmentFailed

COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
NAMES = {1: "bold"} | {30 + number: name for number, name in enumerate(COLOURS)}
NAMES |= {40 + number: f"on-{name}" for number, name in enumerate(COLOURS)}
_COLOUR = re.compile(r"\x1b\[([0-9;]*)m")
_OTHER = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def readable(text: object) -> str:
    """Colours as marks; blank lines before and after are taken away.

    Raises:
        EnvironmentFailed: what was rendered is no text.
    """
    if not isinstance(text, str):
        raise EnvironmentFailed(f'render gave a {type(text).__name__}: with render_mode="ansi" it must be a text')
    marked = False

    def mark(match: re.Match[str]) -> str:
        nonlocal marked
        codes = [int(code or 0) for code in match[1].split(";")]
        before = "</>" if marked and 0 in codes else ""
        marked = marked and 0 not in codes
        if names := [NAMES[code] for code in codes if code in NAMES]:
            marked = True
            return f"{before}<{'-'.join(names)}>"
        return before

    plain = _OTHER.sub("", _COLOUR.sub(mark, text))
    return "\n".join(line.rstrip() for line in plain.splitlines()).strip("\n")
