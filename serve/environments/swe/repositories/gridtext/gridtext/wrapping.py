"""Wrapping text into lines."""

from gridtext.width import cells, cut


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most so many cells. Blank lines stay; other line ends are blanks.

    Raises:
        ValueError: the width is below 2, so that a wide character would not fit.
    """
    if width < 2:
        raise ValueError(f"width is {width}: at least 2 is needed")
    lines: list[str] = []
    paragraph: list[str] = []
    for line in text.splitlines():
        if line.strip():
            paragraph += line.split()
            continue
        lines += fill(paragraph, width)
        lines.append("")
        paragraph = []
    return lines + fill(paragraph, width)


def fill(words: list[str], width: int) -> list[str]:
    """The words in as few lines as they fit into."""
    lines: list[str] = []
    current = ""
    for word in words:
        for piece in pieces(word, width):
            if not current:
                current = piece
            elif cells(current) + 1 + cells(piece) <= width:
                current += " " + piece
            else:
                lines.append(current)
                current = piece
    return [*lines, current] if current else lines


def pieces(word: str, width: int) -> list[str]:
    """The word, broken where it is too long."""
    found = []
    while cells(word) > width:
        head = cut(word, width)
        found.append(head)
        word = word[len(head) :]
    return [*found, word] if word else found
