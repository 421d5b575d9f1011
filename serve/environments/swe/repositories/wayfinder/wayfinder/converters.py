"""Converters: which texts a part of a rule takes, and what they mean."""

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote


@dataclass(frozen=True)
class Converter:
    """A kind of part."""

    pattern: str
    rank: int  # the lower, the more specific
    safe: str = ""  # characters that are not encoded

    def read(self, text: str) -> Any:
        """What a part of a path means."""
        return unquote(text)

    def write(self, value: Any) -> str:
        """The part of a path for a value."""
        text = quote(str(value), safe=self.safe)
        if not re.fullmatch(self.pattern, text):
            raise ValueError(f"{value!r} does not fit")
        return text


class IntConverter(Converter):
    """Whole numbers."""

    def read(self, text: str) -> int:
        return int(text)

    def write(self, value: Any) -> str:
        return super().write(int(value))


CONVERTERS = {
    "int": IntConverter(r"-?\d+", rank=1),
    "segment": Converter(r"[^/]+", rank=2),
    "path": Converter(r".+", rank=3, safe="/"),
}
