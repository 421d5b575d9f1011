"""How wide a text is, and making it so wide."""

import unicodedata


def cells(text: str) -> int:
    """How many cells of a terminal the text takes."""
    return sum(character_cells(character) for character in text)


def character_cells(character: str) -> int:
    """0 for combining marks, 2 for wide characters, else 1."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def cut(text: str, width: int) -> str:
    """As many of the first characters as fit into the width."""
    taken = 0
    for place, character in enumerate(text):
        taken += character_cells(character)
        if taken > width:
            return text[:place]
    return text


def pad(text: str, width: int, align: str = "l") -> str:
    """The text with blanks up to the width: left (`l`), right (`r`) or in the middle (`c`)."""
    missing = max(width - cells(text), 0)
    if align == "r":
        return " " * missing + text
    if align == "c":
        left = missing // 2
        return " " * left + text + " " * (missing - left)
    return text + " " * missing
