"""Filters, and the escaping of HTML."""

from collections.abc import Callable

REPLACEMENTS = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;"))


class Safe(str):
    """A text that is HTML already."""

    __slots__ = ()


def escape(value: object) -> str:
    """The value as text, so that a browser shows it as it is."""
    if isinstance(value, Safe):
        return value
    text = str(value)
    for character, entity in REPLACEMENTS:
        text = text.replace(character, entity)
    return text


def default(value: object, other: object = "") -> object:
    """The value, or another one where it is missing. Zero and False are values."""
    return other if value is None or value == "" else value


def join(value: object, separator: object = ", ") -> str:
    """All items of a list as one text."""
    return str(separator).join(str(item) for item in value)  # type: ignore[attr-defined]


def truncate(value: object, length: object = 20) -> str:
    """At most so many characters, the last of them an ellipsis where some were left out."""
    text, most = str(value), int(str(length))
    return text if len(text) <= most else text[: most - 1] + "…"


FILTERS: dict[str, Callable[..., object]] = {
    "default": default,
    "join": join,
    "length": lambda value: len(value),
    "lower": lambda value: str(value).lower(),
    "safe": lambda value: Safe(value),
    "truncate": truncate,
    "upper": lambda value: str(value).upper(),
}
