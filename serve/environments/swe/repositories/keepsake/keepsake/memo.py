"""The decorator."""

import functools
from collections.abc import Callable, Hashable
from typing import Any

from keepsake.cache import MISSING, Cache


def make_key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """A key for the arguments of a call; the order of keywords does not matter."""
    return args, tuple(sorted(kwargs.items()))


def memoize(
    maxsize: int = 128, ttl: float | None = None, cache: Cache | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Keep a function's results, in a cache of its own unless one is given. `wrapper.cache` is that cache."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        store = cache if cache is not None else Cache(maxsize, ttl)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            key = make_key(args, kwargs)
            value = store.get(key, MISSING)
            if value is MISSING:
                value = function(*args, **kwargs)
                store.set(key, value)
            return value

        wrapper.cache = store  # type: ignore[attr-defined]
        return wrapper

    return decorate
