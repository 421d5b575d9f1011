"""Events and their listeners."""

from collections.abc import Callable
from typing import Any

Listener = Callable[..., Any]


class Emitter:
    """Calls listeners in the order in which they came."""

    def __init__(self) -> None:
        self.listeners: dict[str, list[Listener]] = {}

    def on(self, event: str, listener: Listener) -> Callable[[], None]:
        """Listen to an event; the result removes the listener again."""
        self.listeners.setdefault(event, []).append(listener)
        return lambda: self.off(event, listener)

    def once(self, event: str, listener: Listener) -> Callable[[], None]:
        """Listen to the next such event only."""

        def only_once(*args: Any, **kwargs: Any) -> None:
            self.off(event, only_once)
            listener(*args, **kwargs)

        return self.on(event, only_once)

    def off(self, event: str, listener: Listener) -> bool:
        """Remove a listener; whether it was there."""
        listeners = self.listeners.get(event, [])
        if listener not in listeners:
            return False
        listeners.remove(listener)
        return True

    def emit(self, event: str, *args: Any, **kwargs: Any) -> int:
        """Call the listeners of an event; how many were called."""
        called = 0
        for listener in list(self.listeners.get(event, ())):
            if listener in self.listeners[event]:
                called += 1
                listener(*args, **kwargs)
        return called

    def count(self, event: str) -> int:
        """How many listen to an event."""
        return len(self.listeners.get(event, ()))
