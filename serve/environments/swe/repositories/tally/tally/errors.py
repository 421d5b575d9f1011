"""The one error."""


class CalcError(Exception):
    """What is wrong with a line, and where."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(f"{message} (at {position})")
        self.position = position
