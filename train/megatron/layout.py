"""What a Hugging Face config says of a model, checked: torch-free.

What it does: reads config.json and refuses by name whatever is not mapped to Megatron; `check_layout` refuses a layout
of ranks that a model does not divide.
What it leaves out: building the model (`model.py`), its weights (`weights.py`).
"""

import hashlib
from pathlib import Path
from typing import Any

import orjson

from train.settings import ParallelSettings

_FAMILIES = ("llama", "qwen2", "qwen3")
_ROPES: dict[str, tuple[str, ...]] = {  # kind: the numbers it needs
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
_NEEDED = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "rms_norm_eps",
    "max_position_embeddings",
)  # fmt: skip


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model's folder, checked: everything in it that changes the maths is mapped, or refused."""
    path = folder / "config.json"
    if not path.exists():
        raise ValueError(f"{folder} has no config.json: it must be a folder that transformers loads")
    config = read_object(path)
    rope = rope_of(config)
    kind = rope["rope_type"]
    refused = {
        f"model_type {config.get('model_type')!r} (mapped: {', '.join(_FAMILIES)})": config.get("model_type")
        not in _FAMILIES,
        "both rope_parameters and rope_scaling, which differ": _differ(config),
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
    missing = [name for name in _NEEDED if not isinstance(config.get(name), int | float)]
    missing += [f"rope's {name}" for name in _ROPES[kind] if not isinstance(rope.get(name), int | float)]
    if missing:
        raise ValueError(f"{path}: not there, or no numbers: {', '.join(missing)}. Take the model's own config.json.")
    return config


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; ValueError where it holds none."""
    try:
        found = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as fault:
        raise ValueError(f"{path} is not valid JSON: {fault}") from fault
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold an object, got {type(found).__name__}")
    return found


def _differ(config: dict[str, Any]) -> bool:
    newer, older = config.get("rope_parameters"), config.get("rope_scaling")
    return bool(newer) and bool(older) and newer != older


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


def identity(config: dict[str, Any]) -> str:
    """Which architecture it is: what a state of another one does not share."""
    parts = ["model_type", *_NEEDED, "num_key_value_heads", "head_dim"]
    said = {name: config.get(name) for name in parts} | {"tied": bool(config.get("tie_word_embeddings"))}
    return hashlib.sha256(orjson.dumps(said, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


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
