"""LoRA on Megatron's linears: the layers and their spec, how they start, and adapters as PEFT's files, both ways.

What it does: `spec_with_lora` puts the layers into a layer spec (the base's parameters keep their names), `freeze` and
`reset` make a built model ready to train, `base_only` scores without the adapters, `export_adapter` and `load_adapter`
write and read what PEFT and SGLang load. Correct under tensor and pipeline parallelism.
What it leaves out: dropout, DoRA, experts, sequence parallelism, merging into the base (`train/lora_merge.py`).

Megatron fuses q, k, v and gate, up: each fused linear has one A, which its parts share. In PEFT's files every part has
a copy of it. Files whose parts have an A of their own are refused.

Axes: R = rank of the adapter, I = inputs, O = outputs, S = tokens, B = sequences.
"""

import contextlib
import copy
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from megatron.core.transformer.mlp import apply_swiglu_sharded_factory
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from megatron.core.utils import get_pg_size
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import Parameter

from train.lora_merge import CONFIG, PREFIX, WEIGHTS, read_config
from train.settings import LoraSettings

_PARTS: dict[str, tuple[str, ...]] = {  # Megatron's linears, and what Hugging Face's models have in their place
    "self_attention.linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "self_attention.linear_proj": ("o_proj",),
    "mlp.linear_fc1": ("gate_proj", "up_proj"),
    "mlp.linear_fc2": ("down_proj",),
}
_ROOMS = {"self_attention": "self_attn", "mlp": "mlp"}
_HALVES = {"lora_a": "lora_A", "lora_b": "lora_B"}


@dataclass(frozen=True, slots=True)
class Rows:
    """How the rows of a (fused) linear lie: `groups` times over, a block of `sizes[i]` rows of `parts[i]`."""

    parts: tuple[str, ...]
    sizes: tuple[int, ...]
    groups: int
    chosen: tuple[str, ...]  # the parts that are adapted: B has the rows of these alone

    @property
    def _chosen_sizes(self) -> list[int]:
        return [size for part, size in zip(self.parts, self.sizes, strict=True) if part in self.chosen]

    @property
    def count(self) -> int:
        """Rows of B."""
        return self.groups * sum(self._chosen_sizes)

    def split(self, b_OR: Tensor) -> dict[str, Tensor]:
        """The rows of each adapted part, out of their groups."""
        blocks = b_OR.unflatten(0, (self.groups, -1)).split(self._chosen_sizes, 1)
        return {part: block.flatten(0, 1) for part, block in zip(self.chosen, blocks, strict=True)}

    def join(self, parts: Mapping[str, Tensor]) -> Tensor:
        """`split` backwards."""
        return torch.cat([parts[part].unflatten(0, (self.groups, -1)) for part in self.chosen], 1).flatten(0, 1)

    def whole(self, b_OR: Tensor) -> Tensor:
        """As many rows as the linear has: zeros where it is not adapted."""
        if self.chosen == self.parts:
            return b_OR
        own = self.split(b_OR)
        zeros = {
            part: b_OR.new_zeros(self.groups * size, b_OR.shape[1])
            for part, size in zip(self.parts, self.sizes, strict=True)
        }
        blocks = [{**zeros, **own}[part].unflatten(0, (self.groups, -1)) for part in self.parts]
        return torch.cat(blocks, 1).flatten(0, 1)


def _rows(module: str, config: TransformerConfig, settings: LoraSettings, ranks: int = 1) -> Rows:
    """Of the whole linear, or of one of `ranks` tensor-parallel shards."""
    parts = _PARTS[module]
    groups, sizes = 1, (config.hidden_size,)
    if module == "self_attention.linear_qkv":
        queries = config.num_attention_heads // config.num_query_groups
        assert config.num_query_groups % ranks == 0, (config.num_query_groups, ranks)
        groups, sizes = config.num_query_groups // ranks, (queries * config.kv_channels, *[config.kv_channels] * 2)
    elif module == "mlp.linear_fc1":
        sizes = (config.ffn_hidden_size // ranks,) * 2
    return Rows(parts, sizes, groups, tuple(part for part in parts if part in settings.targets))


# ---- the layers ------------------------------------------------------------------------------------------------------


class LoraColumnParallelLinear(ColumnParallelLinear):
    """A is whole on each rank, B split over its rows as the base's weight is."""

    def __init__(self, *args: Any, module: str, lora: LoraSettings, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(*args, config=config, **kwargs)
        assert not self.gather_output and not config.sequence_parallel, "LoRA has no path for these"
        self.rows = _rows(module, config, lora, get_pg_size(self.tp_group))
        self.gated = module == "mlp.linear_fc1" and len(self.rows.chosen) > 1  # each rank holds [gate; up]
        _add_adapter(self, lora, self.input_size, self.rows.count)
        set_tensor_model_parallel_attributes(self.lora_a, False, -1, 1)
        set_tensor_model_parallel_attributes(self.lora_b, True, 0, 2 if self.gated else 1)

    def forward(self, input_: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Base and adapter. Its rank-wide middle is where the backward pass sums over the tensor-parallel ranks."""
        output_SBO, bias = super().forward(input_, *args, **kwargs)
        if not self.adapted:
            return output_SBO, bias
        middle_SBR = copy_to_tensor_model_parallel_region(F.linear(input_, self.lora_a), group=self.tp_group)
        return _add(output_SBO, middle_SBR, self.rows.whole(self.lora_b), self.scale), bias

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple = (), metadata: dict | None = None
    ) -> dict[str, Any]:
        """As the base's, with B split on its rows."""
        found = _sharded(self, {"weight": 0, "bias": 0, "lora_b": 0}, prefix, sharded_offsets, metadata)
        if self.gated:  # MLP.sharded_state_dict does this for `weight` and `bias` alone
            singleton = (metadata or {}).get("singleton_local_shards", False)
            key = f"{prefix}lora_b"
            found[key] = apply_swiglu_sharded_factory(found[key], sharded_offsets, singleton)
        return found


class LoraRowParallelLinear(RowParallelLinear):
    """A is split over its columns as the base's weight is, B whole on each rank."""

    def __init__(self, *args: Any, module: str, lora: LoraSettings, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(*args, config=config, **kwargs)
        assert self.input_is_parallel and not config.sequence_parallel, "LoRA has no path for these"
        _add_adapter(self, lora, self.input_size_per_partition, self.output_size)
        set_tensor_model_parallel_attributes(self.lora_a, True, 1, 1)
        set_tensor_model_parallel_attributes(self.lora_b, False, -1, 1)

    def forward(self, input_: Tensor) -> tuple[Tensor, Tensor | None]:
        """Base and adapter, whose rank-wide middle is summed over the tensor-parallel ranks."""
        output_SBO, bias = super().forward(input_)
        if not self.adapted:
            return output_SBO, bias
        middle_SBR = reduce_from_tensor_model_parallel_region(F.linear(input_, self.lora_a), group=self.tp_group)
        return _add(output_SBO, middle_SBR, self.lora_b, self.scale), bias

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple = (), metadata: dict | None = None
    ) -> dict[str, Any]:
        """As the base's, with A split on its columns."""
        return _sharded(self, {"weight": 1, "lora_a": 1}, prefix, sharded_offsets, metadata)


LoraLinear = LoraColumnParallelLinear | LoraRowParallelLinear


def _add_adapter(linear: LoraLinear, lora: LoraSettings, inputs: int, outputs: int) -> None:
    """A is NaN until `reset` or `load_adapter`: with zeros in both, nothing would ever train, and nothing say so."""
    assert not linear.is_expert
    linear.lora, linear.scale, linear.adapted = lora, lora.scale, True
    linear.lora_a = Parameter(linear.weight.new_full((lora.rank, inputs), math.nan))
    linear.lora_b = Parameter(linear.weight.new_zeros(outputs, lora.rank))
    linear.weight.requires_grad_(False)


def _add(output_SBO: Tensor, middle_SBR: Tensor, b_OR: Tensor, scale: float) -> Tensor:
    """output + scale · middle · Bᵀ in one pass over the output."""
    flat_NO, flat_NR = output_SBO.flatten(0, -2), middle_SBR.flatten(0, -2)
    return torch.addmm(flat_NO, flat_NR, b_OR.t(), alpha=scale).view_as(output_SBO)


def _sharded(
    linear: LoraLinear, axes: dict[str, int], prefix: str, offsets: tuple, metadata: dict | None
) -> dict[str, Any]:
    data = (metadata or {}).get("dp_cp_group") or parallel_state.get_data_parallel_group(with_context_parallel=True)
    state = linear.state_dict(prefix="", keep_vars=True)
    return make_sharded_tensors_for_checkpoint(state, prefix, axes, offsets, tp_group=linear.tp_group, dp_cp_group=data)


# ---- making a model ready --------------------------------------------------------------------------------------------


def spec_with_lora(spec: ModuleSpec, lora: LoraSettings) -> ModuleSpec:
    """The layer spec with the targets' linears adapted; the one given is left as it is."""
    spec = copy.deepcopy(spec)
    for module, parts in _PARTS.items():
        if not set(parts) & set(lora.targets):
            continue
        room, linear = module.split(".")
        submodules = getattr(spec.submodules, room).submodules
        kind = getattr(submodules, linear)
        adapted = {ColumnParallelLinear: LoraColumnParallelLinear, RowParallelLinear: LoraRowParallelLinear}.get(kind)
        assert adapted is not None, f"{module} is a {kind}: LoRA is written for Megatron's own linears"
        setattr(submodules, linear, ModuleSpec(module=adapted, params={"module": module, "lora": lora}))
    return spec


def is_adapter(name: str) -> bool:
    """Whether a parameter of this name belongs to an adapter and not to the base."""
    return name.rsplit(".", 1)[-1] in _HALVES


def freeze(model: GPTModel) -> None:
    """Only the adapters train. Call before Megatron's DDP and optimiser are built: they look at requires_grad."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_adapter(name))
    if model.pre_process:
        model.embedding.register_forward_hook(lambda _module, _inputs, output: _start_graph(model.config, output))


def _start_graph(config: TransformerConfig, embedded: Tensor) -> Tensor:
    """Recomputed layers pass gradients on only if what goes in wants one, and a frozen embedding's output does not."""
    if config.recompute_granularity == "full" and torch.is_grad_enabled() and not embedded.requires_grad:
        embedded.requires_grad_()
    return embedded


def reset(model: GPTModel, seed: int = 0) -> None:
    """A uniform as PEFT draws it, B zero. The same for every layout: a whole A is drawn, then cut."""
    for name, parameter in named_adapters(model).items():
        if name.endswith("lora_b"):
            parameter.data.zero_()
            continue
        ranks = parallel_state.get_tensor_model_parallel_world_size() if parameter.tensor_model_parallel else 1
        drawn_RI = torch.empty(parameter.shape[0], parameter.shape[1] * ranks)
        bound = 1.0 / math.sqrt(drawn_RI.shape[1])  # kaiming_uniform_(a=√5)
        drawn_RI.uniform_(-bound, bound, generator=torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode())))
        parameter.data.copy_(shard(drawn_RI, parameter))


@contextlib.contextmanager
def base_only(model: GPTModel) -> Iterator[None]:
    """The base without its adapters inside: a reference that costs no memory and no file."""
    linears = [linear for _, linear in named_linears(model)]
    for linear in linears:
        linear.adapted = False
    try:
        yield
    finally:
        for linear in linears:
            linear.adapted = True


# ---- whole tensors ---------------------------------------------------------------------------------------------------


def named_linears(model: GPTModel) -> Iterator[tuple[str, LoraLinear]]:
    """The adapted linears of this rank's layers, by Megatron's names with the layer's number in the whole model."""
    for layer in model.decoder.layers:
        for name, linear in layer.named_modules():
            if isinstance(linear, LoraColumnParallelLinear | LoraRowParallelLinear):
                yield f"decoder.layers.{layer.layer_number - 1}.{name}", linear


def named_adapters(model: GPTModel) -> dict[str, Parameter]:
    """This rank's parts of the adapters' tensors, named as by `named_linears`."""
    return {f"{name}.{half}": getattr(linear, half) for name, linear in named_linears(model) for half in _HALVES}


def settings_of(model: GPTModel) -> LoraSettings:
    """What the model was built with."""
    return next(linear.lora for _, linear in named_linears(model))


def shard(whole: Tensor, like: Parameter) -> Tensor:
    """This tensor-parallel rank's part of a whole tensor: of an adapter's, or of any other parameter of Megatron's."""
    if not getattr(like, "tensor_model_parallel", False):
        return whole
    ranks = parallel_state.get_tensor_model_parallel_world_size()
    pieces = whole.chunk(like.partition_stride * ranks, like.partition_dim)
    return torch.cat(pieces[parallel_state.get_tensor_model_parallel_rank() :: ranks], like.partition_dim)


def unshard(shards: Sequence[Tensor], like: Parameter) -> Tensor:
    """The whole of the tensor-parallel ranks' parts, in the ranks' order."""
    if not like.tensor_model_parallel:
        return shards[0]
    strided = zip(*(part.chunk(like.partition_stride, like.partition_dim) for part in shards), strict=True)
    return torch.cat([piece for pieces in strided for piece in pieces], like.partition_dim)


def gather(model: GPTModel, tensors: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Copies of the adapters of this rank's layers, whole; or of other tensors of their shapes, as their gradients.

    Every tensor-parallel rank must call it.
    """
    group, wholes = parallel_state.get_tensor_model_parallel_group(), {}
    for name, parameter in named_adapters(model).items():
        own = (parameter if tensors is None else tensors[name]).detach().clone(memory_format=torch.contiguous_format)
        parts = [own]
        if group.size() > 1 and parameter.tensor_model_parallel:
            parts = [torch.empty_like(own) for _ in range(group.size())]
            dist.all_gather(parts, own, group=group)
        wholes[name] = unshard(parts, parameter)
    return wholes


# ---- PEFT's names and files ------------------------------------------------------------------------------------------


def shapes(config: TransformerConfig, lora: LoraSettings) -> dict[str, tuple[int, int]]:
    """{Megatron's name: shape} of the whole adapter, of all layers."""
    inputs = {
        "self_attention.linear_proj": config.num_attention_heads * config.kv_channels,
        "mlp.linear_fc2": config.ffn_hidden_size,
    }
    found = {}
    for layer in range(config.num_layers):
        for module, parts in _PARTS.items():
            if set(parts) & set(lora.targets):
                name = f"decoder.layers.{layer}.{module}"
                found[f"{name}.lora_a"] = (lora.rank, inputs.get(module, config.hidden_size))
                found[f"{name}.lora_b"] = (_rows(module, config, lora).count, lora.rank)
    return found


def _place(name: str, config: TransformerConfig, lora: LoraSettings) -> tuple[Rows, str, dict[str, str]]:
    """Of a Megatron name: its rows, which half it is, and {part: its name in PEFT's files}."""
    _, _, layer, room, linear, half = name.split(".")
    rows = _rows(f"{room}.{linear}", config, lora)
    stem = f"{PREFIX}model.layers.{layer}.{_ROOMS[room]}"
    return rows, half, {part: f"{stem}.{part}.{_HALVES[half]}.weight" for part in rows.chosen}


def peft_tensors(
    wholes: Mapping[str, Tensor], config: TransformerConfig, lora: LoraSettings
) -> Iterator[tuple[str, Tensor]]:
    """Whole Megatron tensors under PEFT's names: fused parts apart, each with a copy of their A."""
    for name, tensor in wholes.items():
        rows, half, peft_names = _place(name, config, lora)
        parts = dict.fromkeys(rows.chosen, tensor) if half == "lora_a" else rows.split(tensor)
        for part, peft_name in peft_names.items():
            yield peft_name, parts[part].clone(memory_format=torch.contiguous_format)


def megatron_tensors(
    tensors: Mapping[str, Tensor], names: Iterable[str], config: TransformerConfig, lora: LoraSettings
) -> Iterator[tuple[str, Tensor]]:
    """`peft_tensors` backwards, for the Megatron names that are asked for. ValueError where fused parts differ in A."""
    for name in names:
        rows, half, peft_names = _place(name, config, lora)
        parts = {part: tensors[peft_name] for part, peft_name in peft_names.items()}
        if half == "lora_b":
            yield name, rows.join(parts)
            continue
        first, *others = parts
        for other in others:
            if not torch.equal(parts[first], parts[other]):
                raise ValueError(
                    f"{peft_names[first]} and {peft_names[other]} differ: the trainer has one A for both; "
                    "train an adapter here from the start, or merge this one into its base"
                )
        yield name, parts[first]


def to_peft(model: GPTModel) -> Iterator[tuple[str, Tensor]]:
    """PEFT's names and tensors of this rank's layers. Every tensor-parallel rank must call it."""
    yield from peft_tensors(gather(model), model.config, settings_of(model))


def from_peft(model: GPTModel, tensors: Mapping[str, Tensor]) -> None:
    """Take this rank's part of PEFT's tensors, which must be all there and of the right shapes."""
    own = named_adapters(model)
    for name, whole in megatron_tensors(tensors, own, model.config, settings_of(model)):
        own[name].data.copy_(shard(whole, own[name]))


def export_adapter(model: GPTModel, folder: Path, base: Path) -> None:
    """Write `folder` (which must not exist), as PEFT does. For a model whose layers all lie on this rank."""
    wholes = gather(model)
    assert len(wholes) == len(shapes(model.config, settings_of(model))), "gather the stages, then write_adapter"
    write_adapter(wholes, model.config, settings_of(model), folder, base)


def write_adapter(
    wholes: Mapping[str, Tensor], config: TransformerConfig, lora: LoraSettings, folder: Path, base: Path | str
) -> None:
    """Write `folder` (which must not exist) from the whole tensors of all layers."""
    folder.mkdir(parents=True)
    tensors = {name: tensor.cpu() for name, tensor in peft_tensors(wholes, config, lora)}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_bytes(orjson.dumps(_peft_config(lora, base), option=orjson.OPT_INDENT_2))


def _peft_config(lora: LoraSettings, base: Path | str) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "target_modules": sorted(lora.targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "use_dora": False,
        "use_rslora": False,
        "fan_in_fan_out": False,
        "modules_to_save": None,
        "inference_mode": True,
    }


def load_adapter(model: GPTModel, folder: Path) -> None:
    """Take an adapter from PEFT's files. ValueError names what is not this model's; nothing is taken then."""
    from_peft(model, read_adapter(folder, model.config, settings_of(model)))


def read_adapter(folder: Path, config: TransformerConfig, lora: LoraSettings) -> dict[str, Tensor]:
    """PEFT's tensors of a folder, checked against the model and the settings."""
    found, wanted = read_config(folder), _peft_config(lora, "")
    for key in ("r", "lora_alpha", "target_modules"):
        value = found.get(key)
        value = sorted(value) if isinstance(value, list) else value
        if value != wanted[key]:
            raise ValueError(
                f"{folder / CONFIG}: {key} is {value!r}, the settings say {wanted[key]!r}: make them equal"
            )
    try:
        tensors = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError) as fault:
        raise ValueError(f"{folder / WEIGHTS}: the adapter can't be read: {fault}") from fault
    whole = {name: torch.empty(shape, device="meta") for name, shape in shapes(config, lora).items()}
    expected = {name: tuple(tensor.shape) for name, tensor in peft_tensors(whole, config, lora)}
    if missing := expected.keys() - tensors.keys():
        raise ValueError(f"{folder}: {len(missing)} tensors are missing, as {min(missing)}")
    if extra := tensors.keys() - expected.keys():
        raise ValueError(f"{folder}: {len(extra)} tensors are not of this model's adapter, as {min(extra)}")
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            raise ValueError(f"{folder}: {name} is {tuple(tensors[name].shape)}, this model needs {shape}")
    return tensors
