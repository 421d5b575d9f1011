"""Weights between a Hugging Face folder and a Megatron model's ranks, both ways, bit for bit.

What it does: `load` reads this rank's part of each tensor into named Megatron tensors; `export` writes a folder that
transformers (and SGLang) load: safetensors, and config, tokenizer and template files copied from the base model.
What it leaves out: other formats than safetensors. All ranks read and write the same folders.

Axes: G = key/value heads; Megatron keeps q, k and v in one tensor, grouped per key/value head: [q.., k, v].
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import orjson
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from train.megatron.folder import check, files_of, find
from train.megatron.lora import is_adapter
from train.megatron.model import ScoringModel

Join = Literal["same", "qkv", "glu"]
COPIED = (".json", ".jinja", ".txt", ".model")  # a folder's files that travel with the weights
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

# Megatron's module: its Hugging Face modules, how they are joined, which of their axes tensor parallelism splits
_LAYER: dict[str, tuple[tuple[str, ...], Join, int | None]] = {
    "input_layernorm": (("input_layernorm",), "same", None),
    "pre_mlp_layernorm": (("post_attention_layernorm",), "same", None),
    "self_attention.linear_qkv": (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "qkv", 0),
    "self_attention.linear_proj": (("self_attn.o_proj",), "same", 1),
    "self_attention.q_layernorm": (("self_attn.q_norm",), "same", None),
    "self_attention.k_layernorm": (("self_attn.k_norm",), "same", None),
    "mlp.linear_fc1": (("mlp.gate_proj", "mlp.up_proj"), "glu", 0),
    "mlp.linear_fc2": (("mlp.down_proj",), "same", 1),
}
# TransformerEngine's layers hold the norm before a linear layer in that layer
_FUSED_NORMS = {"self_attention.linear_qkv": "input_layernorm", "mlp.linear_fc1": "pre_mlp_layernorm"}
_OUTER: dict[str, tuple[str, int | None]] = {
    "embedding.word_embeddings.weight": ("model.embed_tokens.weight", 0),
    "output_layer.weight": ("lm_head.weight", 0),
    "decoder.final_layernorm.weight": ("model.norm.weight", None),
}


def mapping(model: ScoringModel) -> Iterator[tuple[str, tuple[str, ...], Join, int | None]]:
    """(Megatron's name, the Hugging Face names it is made of, how joined, split along) of this rank's parameters."""
    first = model.decoder.layers[0].layer_number - 1
    for name, _ in model.named_parameters():
        if is_adapter(name):
            continue
        if name in _OUTER:
            hf_name, axis = _OUTER[name]
            if name == "output_layer.weight" and model.share_embeddings_and_output_weights:
                hf_name = _OUTER["embedding.word_embeddings.weight"][0]  # the last stage's copy of tied embeddings
            yield name, (hf_name,), "same", axis
            continue
        _, _, layer, rest = name.split(".", 3)
        module, kind = rest.rsplit(".", 1)  # kind: weight or bias
        if kind == "layer_norm_weight":
            module, kind = _FUSED_NORMS[module], "weight"
        parts, join, axis = _LAYER[module]
        yield name, tuple(f"model.layers.{first + int(layer)}.{part}.{kind}" for part in parts), join, axis


def load(folder: Path, model: ScoringModel, config: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """This rank's Megatron-shaped tensors, one at a time, in the model's dtype. ValueError as `check` raises it."""
    check(folder, config)
    where = find(folder)
    ranks, rank = _tensor_ranks()
    files = {path: safe_open(path, "pt") for path in set(where.values())}
    if config.get("tie_word_embeddings") and "lm_head.weight" in where:
        tied = ("lm_head.weight", "model.embed_tokens.weight")
        if not torch.equal(*(files[where[each]].get_tensor(each) for each in tied)):
            raise ValueError(f"{folder}: its config ties {tied[0]} to {tied[1]}, but they differ: untie or remove one")
    groups = model.config.num_query_groups // ranks
    for name, hf_names, join, axis in mapping(model):
        parts = []
        for hf_name in hf_names:
            whole = files[where[hf_name]].get_slice(hf_name)
            size = whole.get_shape()[axis or 0] // ranks
            mine = slice(rank * size, (rank + 1) * size)
            part = whole[:] if axis is None else whole[mine] if axis == 0 else whole[:, mine]
            parts.append(part.to(model.config.params_dtype))
        if join == "qkv":
            yield name, torch.cat([part.unflatten(0, (groups, -1)) for part in parts], 1).flatten(0, 1)
        else:
            yield name, parts[0] if join == "same" else torch.cat(parts)


def _tensor_ranks() -> tuple[int, int]:
    return (
        parallel_state.get_tensor_model_parallel_world_size(),
        parallel_state.get_tensor_model_parallel_rank(),
    )


def to_hf(model: ScoringModel) -> Iterator[tuple[str, Tensor]]:
    """Hugging Face's names and whole tensors of this pipeline stage; all its tensor ranks call, rank 0 gets them.

    Views of the model's own where the layout allows, else copies.
    """
    config, parameters = model.config, dict(model.named_parameters())
    ranks, rank = _tensor_ranks()
    width, groups = config.kv_channels, config.num_query_groups
    queries = config.num_attention_heads // groups * width
    for name, hf_names, join, axis in mapping(model):
        if name == "output_layer.weight" and model.share_embeddings_and_output_weights:
            continue  # the first stage has it
        shards = _gather(parameters[name].detach(), ranks if axis is not None else 1)
        if rank:
            continue
        if join == "qkv":
            grouped = (
                torch.cat(shards).unflatten(0, (groups, -1)) if ranks > 1 else shards[0].unflatten(0, (groups, -1))
            )
            parts = [grouped[:, :queries], grouped[:, queries : queries + width], grouped[:, queries + width :]]
            parts = [part.flatten(0, 1) for part in parts]
        elif join == "glu":
            halves = list(zip(*(shard.chunk(2) for shard in shards), strict=True))
            parts = [torch.cat(half) if ranks > 1 else half[0] for half in halves]
        else:
            parts = [torch.cat(shards, axis) if len(shards) > 1 else shards[0]]
        yield from zip(hf_names, (part.contiguous() for part in parts), strict=True)


def _gather(shard: Tensor, ranks: int) -> list[Tensor]:
    """The shards of all tensor ranks."""
    if ranks == 1:
        return [shard]
    shards = [torch.empty_like(shard) for _ in range(ranks)]
    dist.all_gather(shards, shard.contiguous(), group=parallel_state.get_tensor_model_parallel_group())
    return shards


def export(model: ScoringModel, folder: Path, base: Path) -> None:
    """Write `folder` (which must not exist): weights, and the base model's other files. All ranks call.

    One file per pipeline stage, with an index where there are several.
    """
    stages, stage = (
        parallel_state.get_pipeline_model_parallel_world_size(),
        parallel_state.get_pipeline_model_parallel_rank(),
    )
    if dist.get_rank() == 0:
        folder.mkdir(parents=True)
        copy_other_files(base, folder)
    dist.barrier()
    name = WEIGHTS if stages == 1 else f"model-{stage + 1:05d}-of-{stages:05d}.safetensors"
    if parallel_state.get_data_parallel_rank() == 0:  # the shares hold the same
        tensors = dict(to_hf(model))
        if parallel_state.get_tensor_model_parallel_rank() == 0:
            save_file({key: tensor.cpu() for key, tensor in tensors.items()}, folder / name, metadata={"format": "pt"})
    dist.barrier()
    if stages > 1 and dist.get_rank() == 0:
        where = {key: path.name for key, path in sorted(find(folder).items())}
        size = sum(path.stat().st_size for path in files_of(folder))
        (folder / INDEX).write_bytes(orjson.dumps({"metadata": {"total_size": size}, "weight_map": where}))


def copy_other_files(base: Path, folder: Path) -> None:
    """Config, tokenizer and template files; never weights, nor the index of several weight files."""
    for path in sorted(base.iterdir()):
        if path.suffix in COPIED and path.is_file() and not path.name.endswith(".index.json"):
            shutil.copyfile(path, folder / path.name)
