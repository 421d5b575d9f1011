"""A LoRA adapter's files without Megatron: what its config says, and merging it into the weights of its base.

What it does: `read_config` refuses by name what is not plain LoRA; `merge` writes a folder that transformers and SGLang
load, W + alpha/rank · B·A computed in fp32, one tensor after the other: neither model is ever held whole.
What it leaves out: DoRA, rank-stabilised scaling, biases, other formats than safetensors.
How to run it: `python -m train.lora_merge BASE ADAPTER OUT`.

Axes: R = rank, I = inputs, O = outputs.
"""

import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from train.megatron.folder import files_of, shapes_of
from train.megatron.layout import read_object

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # PEFT's, before the base model's own names
COPIED = (".json", ".jinja", ".txt", ".model")  # the base's files that travel with the weights
_KNOWN = {  # keys of PEFT's config that say nothing of what is computed, or are read; any other must be off
    "peft_type", "task_type", "base_model_name_or_path", "r", "lora_alpha", "target_modules", "init_lora_weights",
    "lora_dropout", "inference_mode", "auto_mapping", "revision", "peft_version", "megatron_core", "qalora_group_size",
}  # fmt: skip
_OFF = (None, False, "none", {}, [])
_STARTS = (None, True, False, "gaussian")  # those of init_lora_weights that leave the base as it is


def read_config(adapter: Path) -> dict[str, Any]:
    """adapter_config.json, checked to be plain LoRA. ValueError names what is not."""
    path = adapter / CONFIG
    if not path.exists():
        raise ValueError(f"{adapter} has no {CONFIG}: it must be a folder that PEFT loads")
    config = read_object(path)
    if config.get("peft_type") != "LORA":
        raise ValueError(f"{path}: peft_type is {config.get('peft_type')!r}: only 'LORA' is read")
    other = {key: value for key, value in config.items() if key not in _KNOWN and value not in _OFF}
    if (start := config.get("init_lora_weights")) not in _STARTS:
        other["init_lora_weights"] = start
    if other:
        raise ValueError(f"{path}: {other}: only plain LoRA is read; train the adapter without these")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not (isinstance(rank, int) and rank > 0 and isinstance(alpha, int | float) and alpha > 0):
        raise ValueError(f"{path}: r is {rank!r} and lora_alpha {alpha!r}: both must be numbers above 0, r a whole one")
    return config


def merge(base: Path, adapter: Path, out: Path) -> None:
    """Write `out` (which must not exist): the base with the adapter in its weights, in the base's own dtypes."""
    config = read_config(adapter)
    if out.exists():
        raise ValueError(f"{out} exists: name a folder that does not, or remove it")
    files = files_of(base)
    with safe_open(adapter / WEIGHTS, "pt") as tensors:
        pairs = _pairs(tensors.keys(), adapter)
        _check(pairs, tensors, config["r"], adapter, base)

        def merged(name: str, weight_OI: Tensor) -> Tensor:
            if name not in pairs:
                return weight_OI
            a_RI, b_OR = (tensors.get_tensor(each).float() for each in pairs[name])
            return (weight_OI.float() + config["lora_alpha"] / config["r"] * (b_OR @ a_RI)).to(weight_OI.dtype)

        out.mkdir(parents=True)
        for path in sorted(base.iterdir()):
            if path.suffix in COPIED and path.is_file():
                shutil.copyfile(path, out / path.name)
        for path in files:
            _rewrite(path, out / path.name, merged)


def _pairs(names: list[str], adapter: Path) -> dict[str, tuple[str, str]]:
    """{the base's weight: (name of its A, name of its B)}."""
    halves = (".lora_A.weight", ".lora_B.weight")
    stems = {name.removesuffix(half) for name in names for half in halves if name.endswith(half)}
    pairs = {f"{stem.removeprefix(PREFIX)}.weight": (stem + halves[0], stem + halves[1]) for stem in stems}
    wanted = {name for pair in pairs.values() for name in pair}
    if odd := wanted ^ set(names):
        raise ValueError(f"{adapter}: {len(odd)} tensors are missing or no lora_A or lora_B, as {min(odd)}")
    return pairs


def _check(pairs: Mapping[str, tuple[str, str]], tensors: Any, rank: int, adapter: Path, base: Path) -> None:
    """Each pair must fit a weight of the base."""
    shapes = {name: list(shape) for name, shape in shapes_of(base).items()}
    for name, pair in pairs.items():
        if name not in shapes:
            raise ValueError(f"{adapter}: adapts {name}, which {base} does not have: take the adapter's own base")
        a_shape, b_shape = (tensors.get_slice(each).get_shape() for each in pair)
        if a_shape != [rank, shapes[name][1]] or b_shape != [shapes[name][0], rank]:
            raise ValueError(
                f"{adapter}: {name} is {shapes[name]} in {base}, its lora_A {a_shape} and lora_B {b_shape} "
                f"at r {rank}: take the adapter's own base"
            )


def _rewrite(source: Path, target: Path, change: Callable[[str, Tensor], Tensor]) -> None:
    """Copy a safetensors file with its header as it is, one tensor at a time; shapes and dtypes stay."""
    with source.open("rb") as raw, safe_open(source, "pt") as tensors, target.open("wb") as written:
        size = raw.read(8)
        header = raw.read(int.from_bytes(size, "little"))
        entries = {name: entry for name, entry in orjson.loads(header).items() if name != "__metadata__"}
        written.write(size + header)
        for name in sorted(entries, key=lambda each: entries[each]["data_offsets"]):
            tensor = change(name, tensors.get_tensor(name))
            written.write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)


def main(words: list[str]) -> int:
    """0 after a merge, 2 with one line where there was none."""
    if len(words) != 3:
        print("python -m train.lora_merge BASE ADAPTER OUT: folders; OUT is made, with all weights", file=sys.stderr)
        return 0 if words == ["--help"] else 2
    try:
        merge(*map(Path, words))
    except (ValueError, OSError, SafetensorError) as fault:  # boundary: users get one line
        print(f"lora_merge: {fault}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
