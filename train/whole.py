"""A version as a folder with all its weights, also where only an adapter (LoRA) was committed.

What it does: downloads the version and, for an adapter, its base, and merges them beside it: `v000013` is what was
committed, `v000013.merged` what an engine loads. Torch-free: the merge runs in a process of its own (a second or two).
What it leaves out: the arithmetic (`train/lora_merge.py`), which version is whose base (`storage/versions.py`).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from storage.versions import VersionStore

MERGED = ".merged"


def folder_name(number: int) -> str:
    """v000013"""
    return f"v{number:06d}"


def whole_weights(versions: VersionStore, number: int, root: Path) -> Path:
    """The folder with all weights of a version, made under `root` if need be.

    Raises WeightsGone as `VersionStore.download` does, and ValueError where the adapter does not fit its base.
    """
    own = versions.download(number, root / folder_name(number))
    base = versions.base_of(number)
    if base == number:
        return own
    merged = root / (folder_name(number) + MERGED)
    under = versions.download(base, root / folder_name(base))
    if not _whole(under, merged):
        shutil.rmtree(merged, ignore_errors=True)
        _merge(under, own, merged)
    return merged


def _whole(base: Path, merged: Path) -> bool:
    """A merged file is as long as the base's: header, dtypes and shapes are the same."""
    files = [(path, merged / path.name) for path in base.glob("*.safetensors")]
    return all(there.exists() and there.stat().st_size == path.stat().st_size for path, there in files)


def _merge(base: Path, adapter: Path, merged: Path) -> None:
    part = merged.with_name(f".{merged.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    command = [sys.executable, "-m", "train.lora_merge", str(base), str(adapter), str(part)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(part, ignore_errors=True)
        raise ValueError(f"{adapter} could not be merged into {base}: {done.stderr.strip().splitlines()[-1]}")
    try:
        part.rename(merged)
    except OSError:  # another process was quicker
        shutil.rmtree(part, ignore_errors=True)
        if not merged.exists():
            raise
