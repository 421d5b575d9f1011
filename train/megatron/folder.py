"""A folder of weights, looked at without torch: which tensors lie where, and whether they are its config's.

What it does: `check` compares names and shapes with what the config asks for, before anything is taken over; `find`
says in which file each tensor lies.
What it leaves out: reading them (`weights.py`).
"""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from train.megatron.layout import head_width, kv_heads


def expected(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """{Hugging Face name: shape} of all tensors of a model, by its config."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, groups, width = config["num_attention_heads"], kv_heads(config), head_width(config)
    layer = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (heads * width, hidden),
        "self_attn.k_proj.weight": (groups * width, hidden),
        "self_attn.v_proj.weight": (groups * width, hidden),
        "self_attn.o_proj.weight": (hidden, heads * width),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config["model_type"] == "qwen2":
        layer.update({f"self_attn.{part}_proj.bias": layer[f"self_attn.{part}_proj.weight"][:1] for part in "qkv"})
    if config["model_type"] == "qwen3":
        layer.update({f"self_attn.{part}_norm.weight": (width,) for part in "qk"})
    shapes = {
        f"model.layers.{number}.{name}": shape
        for number in range(config["num_hidden_layers"])
        for name, shape in layer.items()
    }
    shapes.update({"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)})
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def check(folder: Path, config: dict[str, Any]) -> None:
    """Raises ValueError where a tensor is missing, unknown or of another shape: before anything is taken over."""
    wanted, there = expected(config), shapes_of(folder)
    tied = {"lm_head.weight"} if config.get("tie_word_embeddings") else set()
    if missing := wanted.keys() - there.keys():
        raise ValueError(f"{folder}: {len(missing)} weights are missing, as {min(missing)}")
    if unknown := there.keys() - wanted.keys() - tied:
        raise ValueError(f"{folder}: {len(unknown)} weights are not mapped to Megatron, as {min(unknown)}")
    for name, shape in wanted.items():
        if there[name] != shape:
            raise ValueError(f"{folder}: {name} is {list(there[name])}, its config asks for {list(shape)}")


def files_of(folder: Path) -> list[Path]:
    """Its safetensors files."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} has no .safetensors files: convert the weights first")
    return files


def find(folder: Path) -> dict[str, Path]:
    """{weight: the file it lies in}. ValueError where two files have the same one."""
    where: dict[str, Path] = {}
    for path in files_of(folder):
        with _opened(path) as file:
            names = set(file.keys())
        if twice := names & where.keys():
            one = min(twice)
            raise ValueError(f"{folder}: {one} lies in {where[one].name} and in {path.name}: remove one of the files")
        where.update(dict.fromkeys(names, path))
    return where


def shapes_of(folder: Path) -> dict[str, tuple[int, ...]]:
    """{weight: its shape}."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(set(find(folder).values())):
        with _opened(path) as file:
            shapes.update({name: tuple(file.get_slice(name).get_shape()) for name in file.keys()})  # noqa: SIM118
    return shapes


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, "np")
    except (SafetensorError, OSError) as fault:
        raise ValueError(f"{path} can't be read, it may be cut off: {fault}. Fetch or export it again.") from fault
