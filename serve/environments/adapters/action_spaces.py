"""Gymnasium action spaces as one tool, `act(action)`: its declaration, and what is wrong with a call of it.

What it does: Text, Discrete (with names for its numbers, if wanted) and MultiDiscrete in one row.
What it leaves out: every other space (Box, Dict, Tuple, ...): no single JSON value of a language model fits it well.
Spaces are known by the names of their classes, so that gymnasium need not be imported.
"""

from collections.abc import Sequence
from typing import Any

from serve.environments.protocol import Call
from serve.environments.tasks import TaskError

SHOWN = 100  # characters of a charset, or of a wrong value, that are shown


class ActSpace:
    """An environment's action space, read once.

    Raises:
        TaskError: a space that has no such tool, or names that do not fit it.
    """

    def __init__(self, space: Any, names: Sequence[str] = ()) -> None:
        self._space, self._names = space, tuple(names)
        kinds = {kind.__name__ for kind in type(space).__mro__}
        self._kind = next((kind for kind in ("Text", "Discrete", "MultiDiscrete") if kind in kinds), None)
        if self._kind is None or (self._kind == "MultiDiscrete" and len(space.nvec.shape) != 1):
            raise TaskError(f"action space {space}: only Text, Discrete and MultiDiscrete in one row can be acted in")
        if self._names and self._kind != "Discrete":
            raise TaskError(f"action_names are for a Discrete space; this one is {space}")
        if self._names and (len(self._names) != int(space.n) or len(set(self._names)) != len(self._names)):
            raise TaskError(f"action_names has {len(self._names)} names: {int(space.n)} different ones are needed")

    def tool(self) -> dict[str, Any]:
        """`act` as an OpenAI function declaration."""
        parameters = {
            "type": "object", "properties": {"action": self._schema()}, "required": ["action"],
            "additionalProperties": False,
        }  # fmt: skip
        function = {"name": "act", "description": "Carry out one action.", "parameters": parameters}
        return {"type": "function", "function": function}

    def _schema(self) -> dict[str, Any]:
        space = self._space
        if self._kind == "Text":
            schema = {"type": "string", "minLength": space.min_length, "maxLength": space.max_length}
            if len(space.characters) <= SHOWN:
                schema["description"] = f"Made of these characters: {space.characters}"
            return schema
        if self._names:
            return {"type": "string", "enum": list(self._names)}
        if self._kind == "Discrete":
            return _whole(space.start, space.n)
        each = [_whole(start, count) for start, count in zip(space.start, space.nvec, strict=True)]
        length = {"minItems": len(each), "maxItems": len(each)}
        return {"type": "array", "items": {"type": "integer"}, "prefixItems": each} | length

    def fault(self, call: Call) -> str | None:
        """What is wrong with this call, said so that it can be mended; None where nothing is."""
        if call.name != "act":
            return f"There is no tool {call.name[:80]!r}: there is act(action)."
        if set(call.arguments) != {"action"}:
            return f"act takes action and nothing else, not {', '.join(sorted(call.arguments))[:80] or 'nothing'}."
        value = call.arguments["action"]
        if (needed := self._needed(value)) is not None:
            return f"action is {repr(value)[:SHOWN]}: {needed}."
        if not self._space.contains(self.native(value)):
            return f"action is {repr(value)[:SHOWN]}, which is not in {self._space}."
        return None

    def _needed(self, value: Any) -> str | None:
        space = self._space
        if self._kind == "Text":
            if not isinstance(value, str) or not space.min_length <= len(value) <= space.max_length:
                return f"a text of {space.min_length} to {space.max_length} characters is needed"
            strange = next((one for one in value if one not in space.character_set), None)
            return None if strange is None else f"its character {strange!r} is not allowed"
        if self._names:
            return None if value in self._names else f"one of {', '.join(self._names)} is needed"
        if self._kind == "Discrete":
            return _not_whole(value, space.start, space.n)
        if not isinstance(value, list) or len(value) != len(space.nvec):
            return f"a list of {len(space.nvec)} whole numbers is needed"
        for place, (one, start, count) in enumerate(zip(value, space.start, space.nvec, strict=True), 1):
            if needed := _not_whole(one, start, count):
                return f"at place {place} {needed}"
        return None

    def native(self, value: Any) -> Any:
        """What the environment's `step` takes for a value that has no fault."""
        if self._kind == "Text":
            return value
        if self._names:
            return int(self._space.start) + self._names.index(value)
        if self._kind == "Discrete":
            return int(value)
        import numpy

        return numpy.asarray(value, dtype=self._space.dtype)


def _whole(start: Any, count: Any) -> dict[str, Any]:
    return {"type": "integer", "minimum": int(start), "maximum": int(start) + int(count) - 1}


def _not_whole(value: Any, start: Any, count: Any) -> str | None:
    low, high = int(start), int(start) + int(count) - 1
    whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
    return None if whole and low <= value <= high else f"a whole number from {low} to {high} is needed"
