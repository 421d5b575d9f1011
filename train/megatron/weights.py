"""Weights between a Hugging Face folder and a Megatron model, both ways, bit for bit.

What it does: `load` reads a folder's safetensors into named Megatron tensors; `export` writes a folder that
transformers (and SGLang) load: safetensors, and config, tokenizer and template files copied from the base model.
What it leaves out: tensor and pipeline splits (one rank holds everything), other formats than safetensors.

Axes: G = key/value heads; Megatron keeps q, k and v in one tensor, grouped per key/value head: [q.., k, v].
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from train.megatron.model import ScoringModel

Join = Literal["same", "qkv", "glu"]
COPIED = (".json", ".jinja", ".txt", ".model")  # a folder's files that travel with the weights
WEIGHTS = "model.safetensors"

_LAYER: dict[str, tuple[tuple[str, ...], Join]] = {
    "input_layernorm": (("input_layernorm",), "same"),
    "pre_mlp_layernorm": (("post_attention_layernorm",), "same"),
    "self_attention.linear_qkv": (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "qkv"),
    "self_attention.linear_proj": (("self_attn.o_proj",), "same"),
    "self_attention.q_layernorm": (("self_attn.q_norm",), "same"),
    "self_attention.k_layernorm": (("self_attn.k_norm",), "same"),
    "mlp.linear_fc1": (("mlp.gate_proj", "mlp.up_proj"), "glu"),
    "mlp.linear_fc2": (("mlp.down_proj",), "same"),
}
_OUTER = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "output_layer.weight": "lm_head.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
}


def mapping(model: ScoringModel) -> Iterator[tuple[str, tuple[str, ...], Join]]:
    """(Megatron's name, the Hugging Face names it is made of, how they are joined) for each parameter."""
    for name, _ in model.named_parameters():
        if name in _OUTER:
            yield name, (_OUTER[name],), "same"
            continue
        _, _, layer, rest = name.split(".", 3)
        module, kind = rest.rsplit(".", 1)  # kind: weight or bias
        parts, join = _LAYER[module]
        yield name, tuple(f"model.layers.{layer}.{part}.{kind}" for part in parts), join


def load(folder: Path, model: ScoringModel) -> Iterator[tuple[str, Tensor]]:
    """Megatron-shaped tensors, one at a time, in the model's dtype. Missing or unknown weights are a ValueError."""
    where = _index(folder)
    wanted = {hf_name for _, names, _ in mapping(model) for hf_name in names}
    tied = {"lm_head.weight"} if model.share_embeddings_and_output_weights else set()
    if missing := wanted - where.keys():
        raise ValueError(f"{folder}: {len(missing)} weights are missing, as {min(missing)}")
    if unknown := where.keys() - wanted - tied:
        raise ValueError(f"{folder}: {len(unknown)} weights are not mapped to Megatron, as {min(unknown)}")
    config = model.config
    files = {path: safe_open(path, "pt") for path in set(where.values())}
    for name, hf_names, join in mapping(model):
        parts = [files[where[hf_name]].get_tensor(hf_name).to(config.params_dtype) for hf_name in hf_names]
        if join == "qkv":
            parts = [part.unflatten(0, (config.num_query_groups, -1)) for part in parts]
            yield name, torch.cat(parts, 1).flatten(0, 1)
        else:
            yield name, parts[0] if join == "same" else torch.cat(parts)


def _index(folder: Path) -> dict[str, Path]:
    """{weight: the file it lies in}."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} has no .safetensors files: convert the weights first")
    where: dict[str, Path] = {}
    for path in files:
        with safe_open(path, "pt") as file:
            where.update(dict.fromkeys(file.keys(), path))
    return where


def to_hf(model: ScoringModel) -> Iterator[tuple[str, Tensor]]:
    """Hugging Face's names and tensors: views of the model's own where the layout allows, else copies."""
    config, parameters = model.config, dict(model.named_parameters())
    width, groups = config.kv_channels, config.num_query_groups
    queries = config.num_attention_heads // groups * width
    for name, hf_names, join in mapping(model):
        tensor = parameters[name].detach()
        if join == "qkv":
            grouped = tensor.unflatten(0, (groups, -1))
            parts = [grouped[:, :queries], grouped[:, queries : queries + width], grouped[:, queries + width :]]
            parts = [part.flatten(0, 1) for part in parts]
        else:
            parts = list(tensor.chunk(len(hf_names)))
        yield from zip(hf_names, (part.contiguous() for part in parts), strict=True)


def export(model: ScoringModel, folder: Path, base: Path) -> None:
    """Write `folder` (which must not exist): weights, and the base model's other files."""
    folder.mkdir(parents=True)
    copy_other_files(base, folder)
    save_file(dict(to_hf(model)), folder / WEIGHTS, metadata={"format": "pt"})


def copy_other_files(base: Path, folder: Path) -> None:
    """Config, tokenizer and template files; never weights, nor the index of several weight files."""
    for path in sorted(base.iterdir()):
        if path.suffix in COPIED and path.is_file() and not path.name.endswith(".index.json"):
            shutil.copyfile(path, folder / path.name)
