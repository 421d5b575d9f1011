"""Tables."""

from gridtext.width import cells, pad

GAP = "  "


class Table:
    """Names of columns, and rows."""

    def __init__(self, names: list[str], align: str = "") -> None:
        if unknown := set(align) - set("lrc"):
            raise ValueError(f"align has {sorted(unknown)[0]!r}: only l, r and c are known")
        self.names = list(names)
        self.align = align.ljust(len(names), "l")
        self.rows: list[list[object]] = []

    def add(self, *values: object) -> None:
        """Add a row.

        Raises:
            ValueError: there are more values than columns.
        """
        if len(values) > len(self.names):
            raise ValueError(f"{len(values)} values for {len(self.names)} columns")
        self.rows.append(list(values))

    def sort(self, column: str, reverse: bool = False) -> None:
        """Sort the rows by a column: numbers, then texts, then what is missing."""
        place = self.names.index(column)

        def key(row: list[object]) -> tuple[int, float, str]:
            value = row[place] if place < len(row) else None
            if isinstance(value, int | float):
                return 0, value, ""
            return (2, 0, "") if value is None else (1, 0, str(value))

        self.rows.sort(key=key, reverse=reverse)

    def _texts(self) -> list[list[str]]:
        texts = []
        for row in self.rows:
            row_texts = ["" if value is None else str(value) for value in row]
            texts.append(row_texts + [""] * (len(self.names) - len(row)))
        return texts

    def widths(self) -> list[int]:
        """How wide each column is."""
        columns = zip(self.names, *self._texts(), strict=True)
        return [max(cells(text) for text in column) for column in columns]

    def render(self) -> str:
        """The table as text, without a line end at its end."""
        widths = self.widths()
        lines = [self._line(self.names, widths), GAP.join("-" * width for width in widths)]
        lines += [self._line(row, widths) for row in self._texts()]
        return "\n".join(lines)

    def _line(self, texts: list[str], widths: list[int]) -> str:
        parts = zip(texts, widths, self.align, strict=True)
        return GAP.join(pad(text, width, align) for text, width, align in parts).rstrip()
