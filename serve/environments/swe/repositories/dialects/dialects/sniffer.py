"""Guessing the dialect of a text."""

from dialects.dialect import Dialect

CANDIDATES = (",", ";", "\t", "|")


def sniff(text: str) -> Dialect:
    """The dialect that fits the lines best."""
    lines = [line for line in text.splitlines() if line.strip()]
    best, most = ",", 0
    for delimiter in CANDIDATES:
        counts = {count_outside_quotes(line, delimiter) for line in lines}
        if len(counts) == 1 and (count := counts.pop()) > most:
            best, most = delimiter, count
    return Dialect(delimiter=best)


def count_outside_quotes(line: str, character: str) -> int:
    """How often a character stands outside double quotes."""
    return sum(part.count(character) for part in line.split('"')[::2])
