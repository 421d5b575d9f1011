"""State machines."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from turnstile.emitter import Emitter

ANY = "*"


class NoTransition(Exception):
    """An event that the state does not know."""

    def __init__(self, event: str, state: str) -> None:
        super().__init__(f"{event!r} leads nowhere from {state!r}")
        self.event, self.state = event, state


@dataclass(frozen=True)
class Transition:
    """A way from one state to another."""

    event: str
    source: str
    target: str
    guard: Callable[..., bool] | None = None

    def fits(self, event: str, state: str) -> bool:
        """Whether it can be taken from a state, its guard aside."""
        return self.event == event and (self.source == state or self.source == ANY)

    def allowed(self, *args: Any) -> bool:
        """Whether its guard lets it through."""
        return self.guard is None or bool(self.guard(*args))


class Machine(Emitter):
    """A state, and the ways out of it."""

    def __init__(self, state: str, keep: int = 100) -> None:
        super().__init__()
        self.state = state
        self.transitions: list[Transition] = []
        self.past: deque[str] = deque([state], maxlen=keep)

    def add(self, event: str, source: str, target: str, guard: Callable[..., bool] | None = None) -> None:
        """Add a transition."""
        self.transitions.append(Transition(event, source, target, guard))

    def find(self, event: str, *args: Any) -> Transition | None:
        """The transition that an event would take now."""
        fitting = [one for one in self.transitions if one.fits(event, self.state)]
        fitting.sort(key=lambda one: one.source == ANY)
        return next((one for one in fitting if one.allowed(*args)), None)

    def can(self, event: str, *args: Any) -> bool:
        """Whether an event leads anywhere now."""
        return self.find(event, *args) is not None

    def fire(self, event: str, *args: Any) -> str:
        """Take the transition of an event; the new state.

        Raises:
            NoTransition: there is none from here, or its guard does not let it through.
        """
        transition = self.find(event, *args)
        if transition is None:
            raise NoTransition(event, self.state)
        before = self.state
        try:
            self.emit(f"leave:{before}", *args)
            self.state = transition.target
            self.emit(f"enter:{self.state}", *args)
            self.emit("changed", before, self.state)
        except Exception:
            self.state = before
            raise
        self.past.append(self.state)
        return self.state

    @property
    def history(self) -> list[str]:
        """The latest states, the present one last."""
        return list(self.past)

    @property
    def events(self) -> list[str]:
        """The events that lead somewhere from here, guards aside, each once, in order of their adding."""
        found = [one.event for one in self.transitions if one.fits(one.event, self.state)]
        return list(dict.fromkeys(found))
