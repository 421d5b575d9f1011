"""What a Hugging Face config says of a model, checked: torch-free.

What it does: reads config.json and refuses by name whatever is not mapped to Megatron; `check_layout` refuses a layout
of ranks that a model does not divide.
What it leaves out: building the model (`model.py`), its weights (`weights.py`).
"""

from pathlib import Path
from typing import Any

import orjson

from train.settings import ParallelSettings

_FAMILIES = ("llama", "qwen2", "qwen3")
_ROPES = ("default", "linear", "llama3")


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model's folder, checked: everything in it that changes the maths is mapped, or refused."""
    path = folder / "config.json"
    if not path.exists():
        raise ValueError(f"{folder} has no config.json: it must be a folder that transformers loads")
    config = orjson.loads(path.read_bytes())
    kind = rope_of(config).get("rope_type", "default")
    refused = {
        f"model_type {config.get('model_type')!r} (mapped: {', '.join(_FAMILIES)})": config.get("model_type")
        not in _FAMILIES,
        f"rope type {kind!r} (mapped: {', '.join(_ROPES)})": kind not in _ROPES,
        "attention_bias": bool(config.get("attention_bias")),
        "mlp_bias": bool(config.get("mlp_bias")),
        f"hidden_act {config.get('hidden_act')!r}": config.get("hidden_act", "silu") != "silu",
        "a sliding window": bool(config.get("use_sliding_window")),
        "partial rotary embeddings": config.get("partial_rotary_factor", 1.0) not in (None, 1.0),
        "quantised weights": config.get("quantization_config") is not None,
    }
    faults = [name for name, found in refused.items() if found]
    if faults:
        raise ValueError(f"{path}: not mapped to Megatron: {'; '.join(faults)}. Train another model, or add the map.")
    return config


def rope_of(config: dict[str, Any]) -> dict[str, Any]:
    """What a config says of its rotary embeddings, in transformers' newer or older place; its base is among it."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    return {"rope_theta": config.get("rope_theta") or 10000.0, **rope, "rope_type": kind}


def head_width(config: dict[str, Any]) -> int:
    """Width of one attention head."""
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def kv_heads(config: dict[str, Any]) -> int:
    """How many key/value heads there are."""
    return config.get("num_key_value_heads") or config["num_attention_heads"]


def check_layout(config: dict[str, Any], layout: ParallelSettings) -> None:
    """Raises ValueError that names what of a model (its Hugging Face config) the layout does not divide."""
    parts = {
        "num_attention_heads": (config["num_attention_heads"], layout.tensor, "tensor"),
        "num_key_value_heads": (kv_heads(config), layout.tensor, "tensor"),
        "intermediate_size": (config["intermediate_size"], layout.tensor, "tensor"),
        "vocab_size": (config["vocab_size"], layout.tensor, "tensor"),
        "num_hidden_layers": (config["num_hidden_layers"], layout.pipeline, "pipeline"),
    }
    faults = [
        f"{name} is {value}, which parallel.{kind} = {count} does not divide"
        for name, (value, count, kind) in parts.items()
        if value % count
    ]
    if faults:
        raise ValueError(f"this layout does not fit the model: {'; '.join(faults)}. Choose one that divides them.")
