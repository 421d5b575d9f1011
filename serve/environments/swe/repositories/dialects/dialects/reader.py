"""Reading."""

from dialects.dialect import Dialect, DialectError

Field = str | None


class Reader:
    """Goes through a text character by character."""

    def __init__(self, text: str, dialect: Dialect) -> None:
        self.text = text.removeprefix("\ufeff").replace("\r\n", "\n")
        self.dialect = dialect
        self.position = 0
        self.line = 1

    def rows(self) -> list[list[Field]]:
        """All rows."""
        rows = []
        while self.position < len(self.text):
            row = self.row()
            if row is not None:
                rows.append(row)
        return rows

    def row(self) -> list[Field] | None:
        """The fields up to the end of the line; None for a blank line."""
        if self.text[self.position] == "\n":
            self.position += 1
            self.line += 1
            return None
        fields = [self.field()]
        while self.position < len(self.text) and self.text[self.position] == self.dialect.delimiter:
            self.position += 1
            fields.append(self.field())
        self.position += 1
        self.line += 1
        return fields

    def field(self) -> Field:
        """One field; the position is then at a delimiter, a line's end or the end."""
        if self.text[self.position : self.position + 1] == self.dialect.quote:
            return self.quoted()
        start = self.position
        while self.position < len(self.text) and self.text[self.position] not in (self.dialect.delimiter, "\n"):
            self.position += 1
        value = self.text[start : self.position]
        return None if self.dialect.nulls and not value else value

    def quoted(self) -> str:
        """One quoted field."""
        quote, opened = self.dialect.quote, self.line
        parts = []
        self.position += 1
        while True:
            end = self.text.find(quote, self.position)
            if end < 0:
                raise DialectError("a quote is never closed", opened)
            parts.append(self.text[self.position : end])
            self.line += parts[-1].count("\n")
            self.position = end + 1
            if self.text[self.position : self.position + 1] != quote:
                break
            parts.append(quote)
            self.position += 1
        if self.text[self.position : self.position + 1] not in ("", "\n", self.dialect.delimiter):
            raise DialectError("text after a closing quote", self.line)
        return "".join(parts)


def read(text: str, dialect: Dialect | None = None) -> list[list[Field]]:
    """All rows of a text.

    Raises:
        DialectError: a quote is never closed, or has text behind it.
    """
    return Reader(text, dialect or Dialect()).rows()


def read_dicts(text: str, dialect: Dialect | None = None) -> list[dict[str, Field]]:
    """All rows by the names in the first one.

    Raises:
        DialectError: as `read`, or a row has more fields than there are names.
    """
    rows = read(text, dialect)
    if not rows:
        return []
    names = [name or "" for name in rows[0]]
    found = []
    for number, row in enumerate(rows[1:], 2):
        if len(row) > len(names):
            raise DialectError(f"row {number} has {len(row)} fields for {len(names)} names", number)
        found.append(dict(zip(names, row + [None] * (len(names) - len(row)), strict=True)))
    return found
