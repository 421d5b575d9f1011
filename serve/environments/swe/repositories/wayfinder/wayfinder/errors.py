"""Errors of routing."""


class RouteError(Exception):
    """Any fault of routing."""


class NotFound(RouteError):
    """No rule fits the path."""


class MethodNotAllowed(RouteError):
    """Rules fit the path, but none the method."""

    def __init__(self, method: str, allowed: list[str]) -> None:
        super().__init__(f"{method} is not allowed; allowed are {', '.join(allowed)}")
        self.allowed = allowed


class BuildError(RouteError):
    """A path can't be built."""
