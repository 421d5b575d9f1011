"""What a dialect is."""

from dataclasses import dataclass


class DialectError(ValueError):
    """A text that can't be read, and the line where it goes wrong."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line


@dataclass(frozen=True)
class Dialect:
    """How fields are separated and quoted."""

    delimiter: str = ","
    quote: str = '"'
    line_end: str = "\n"
    nulls: bool = False  # an empty field without quotes is None

    def __post_init__(self) -> None:
        for name in ("delimiter", "quote"):
            if len(getattr(self, name)) != 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}: one character is needed")
        if self.delimiter == self.quote:
            raise ValueError("delimiter and quote must differ")
