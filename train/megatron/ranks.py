"""The ranks of one trainer: their process group, Megatron's parallel state, and what each of them holds.

What it does: `start` joins this process to the group (gloo on CPUs, NCCL on GPUs); `collect` brings together what the
ranks that see the loss found.
What it leaves out: starting the processes (`train/group.py`), context and expert parallelism.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel

from train.settings import ParallelSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which rank of which group a process is."""

    rank: int
    layout: ParallelSettings
    store: dist.Store  # where the ranks find each other
    timeout_s: float = 600.0  # how long a collective waits for the others before it fails


def start(place: Place | None = None) -> None:
    """The process group and Megatron's parallel state; once per process. Without a place: a single rank, and no port
    is opened. Raises ValueError if the process already is a rank of another layout."""
    layout = ParallelSettings() if place is None else place.layout
    if parallel_state.model_parallel_is_initialized():
        if found() != layout:
            raise ValueError(f"this process is a rank of {found()}: start another one for {layout}")
        return
    if sys.platform == "linux" and not torch.cuda.is_available():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # gloo listens, even alone: on loopback only
    if not dist.is_initialized():
        store, rank = (dist.HashStore(), 0) if place is None else (place.store, place.rank)
        timeout = timedelta(seconds=600.0 if place is None else place.timeout_s)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=layout.world, timeout=timeout)
    with _one_group() if layout.world == 1 else contextlib.nullcontext():
        parallel_state.initialize_model_parallel(layout.tensor, layout.pipeline)
    tensor_parallel.model_parallel_cuda_manual_seed(1234)


@contextlib.contextmanager
def _one_group() -> Iterator[None]:
    """Megatron asks for some twenty groups. Of a single rank each is the whole world, and three idle gloo threads."""
    own = dist.new_group
    dist.new_group = lambda *args, **kwargs: dist.group.WORLD
    try:
        yield
    finally:
        dist.new_group = own


def found() -> ParallelSettings:
    """The layout of the running group."""
    return ParallelSettings(
        tensor=parallel_state.get_tensor_model_parallel_world_size(),
        pipeline=parallel_state.get_pipeline_model_parallel_world_size(),
        data=parallel_state.get_data_parallel_world_size(),
    )


def sees_loss() -> bool:
    """Whether this rank is in the last pipeline stage: log-probs and losses exist there alone."""
    return parallel_state.is_pipeline_last_stage()


def speaks() -> bool:
    """Whether this rank is the one of its data-parallel share that reports: last stage, first tensor rank."""
    return sees_loss() and parallel_state.get_tensor_model_parallel_rank() == 0


def first() -> bool:
    """Whether this is the rank that writes what is written once."""
    return dist.get_rank() == 0


def wait() -> None:
    """Until all ranks are here."""
    dist.barrier()


def collect(mine: T) -> list[T]:
    """What each data-parallel share's speaking rank has, in the shares' order; all ranks call, all get the list."""
    if dist.get_world_size() == 1:
        return [mine]
    gathered: list[Any] = [None] * dist.get_world_size()
    share = parallel_state.get_data_parallel_rank() if speaks() else None
    dist.all_gather_object(gathered, (share, mine if speaks() else None))
    return [thing for share, thing in sorted((g for g in gathered if g[0] is not None), key=lambda g: g[0])]


def collect_all(mine: T) -> list[T]:
    """What every rank has, in the ranks' order."""
    if dist.get_world_size() == 1:
        return [mine]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, mine)
    return gathered
