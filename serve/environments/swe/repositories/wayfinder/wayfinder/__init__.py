"""From a path to a handler, and back."""

from wayfinder.errors import BuildError, MethodNotAllowed, NotFound, RouteError
from wayfinder.router import Match, Router

__all__ = ["BuildError", "Match", "MethodNotAllowed", "NotFound", "RouteError", "Router"]
