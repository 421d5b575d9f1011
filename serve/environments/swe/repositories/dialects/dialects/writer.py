"""Writing."""

from collections.abc import Iterable, Sequence

from dialects.dialect import Dialect


def write(rows: Iterable[Sequence[object]], dialect: Dialect | None = None) -> str:
    """The rows as a text that `read` reads back."""
    chosen = dialect or Dialect()
    lines = []
    for row in rows:
        fields = [format_field(value, chosen) for value in row]
        if fields == [""]:
            fields = [chosen.quote * 2]
        lines.append(chosen.delimiter.join(fields) + chosen.line_end)
    return "".join(lines)


def format_field(value: object, dialect: Dialect) -> str:
    """One field, quoted where that is needed."""
    if value is None:
        return ""
    text = str(value)
    if needs_quotes(text, dialect):
        return dialect.quote + text.replace(dialect.quote, dialect.quote * 2) + dialect.quote
    return text


def needs_quotes(text: str, dialect: Dialect) -> bool:
    """Whether a field would be read differently without quotes."""
    special = (dialect.delimiter, dialect.quote, "\n", "\r")
    return any(character in text for character in special) or (dialect.nulls and not text)
