"""Merging."""

import copy
from collections.abc import Mapping
from typing import Any


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """All layers as one, later ones winning; the layers themselves stay as they are."""
    result: dict[str, Any] = {}
    for layer in layers:
        merge_into(result, layer)
    return result


def merge_into(target: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Put a layer over a mapping, which is changed."""
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(target.get(key), dict):
            merge_into(target[key], value)
        else:
            target[key] = copy.deepcopy(value)
