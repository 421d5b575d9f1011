"""State machines and events."""

from turnstile.emitter import Emitter
from turnstile.machine import Machine, NoTransition, Transition

__all__ = ["Emitter", "Machine", "NoTransition", "Transition"]
