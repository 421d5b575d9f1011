"""A layer from environment variables."""

import json
from collections.abc import Mapping
from typing import Any


def from_environment(prefix: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """The variables that begin with the prefix and `_`, as a layer."""
    layer: dict[str, Any] = {}
    start = prefix.upper() + "_"
    for name in sorted(environ):
        if not name.startswith(start):
            continue
        *parents, last = name[len(start) :].lower().split("__")
        place = layer
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = read_value(environ[name])
    return layer


def read_value(text: str) -> Any:
    """The JSON value of a text, or the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
