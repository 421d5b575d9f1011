"""The error of a template."""


class TemplateError(Exception):
    """A fault in a template, and the line where it stands."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line
