"""Weights from the trainer's memory to an engine's: a process group of one trainer rank and the engine's ranks.

What it does: listens on one address, joins the group that SGLang's `/init_weights_update_group` joins from its side
(gloo on CPUs, NCCL on GPUs), and broadcasts tensors in the order that was announced.
What it leaves out: telling the engine (`serve/engine_client.py` does, at the same time), pipeline stages but the first
(with several, weights go by disk).
"""

import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Backend, PrefixStore, _new_process_group_helper, _world

from train.megatron.model import ScoringModel
from train.megatron.weights import to_hf

CHUNK_BYTES = 256 << 20  # announced and received at once: what the engine needs beside its weights

Announced = tuple[str, str, list[int]]  # Hugging Face's name, dtype, shape


class Channel:
    """One trainer rank's end. `join` and each `send` wait for the engine, which is told at the same time."""

    def __init__(self, engine_ranks: int = 1, host: str = "127.0.0.1", name: str = "weights", timeout_s: float = 120):
        """Listens on `host` from here on; `port` says where."""
        listener = socket.create_server((host, 0))
        self.host, self.port, self.name = host, listener.getsockname()[1], name
        self.world = 1 + engine_ranks
        self.backend = "nccl" if torch.cuda.is_available() else "gloo"
        self._timeout = timedelta(seconds=timeout_s)
        self._store: Any = dist.TCPStore(
            host, self.port, self.world, is_master=True, timeout=self._timeout, wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )  # fmt: skip
        self._group: Any = None

    def join(self) -> None:
        """Until the engine's ranks are there too. Raises RuntimeError if they do not come."""
        # as SGLang makes its end: torch has no public way to make a group beside the default one
        self._group, _ = _new_process_group_helper(
            self.world, 0, [], Backend(self.backend), PrefixStore(self.name, self._store), group_name=self.name,
            backend_options=None, timeout=self._timeout,
        )  # fmt: skip
        _world.pg_group_ranks[self._group] = {rank: rank for rank in range(self.world)}

    def send(self, tensors: Sequence[Tensor]) -> None:
        """Broadcast, in this order."""
        assert self._group is not None, "join first"
        pending = [dist.broadcast(tensor.contiguous(), 0, group=self._group, async_op=True) for tensor in tensors]
        for each in pending:
            each.wait()

    def close(self) -> None:
        """Leave the group and stop listening."""
        if self._group is not None:
            dist.destroy_process_group(self._group)
        self._group = self._store = None


def chunks(model: ScoringModel) -> list[list[tuple[str, Tensor]]]:
    """The model's weights under Hugging Face's names, in pieces of at most CHUNK_BYTES (or of one tensor)."""
    found: list[list[tuple[str, Tensor]]] = [[]]
    size = 0
    for name, tensor in to_hf(model):
        if found[-1] and size + tensor.nbytes > CHUNK_BYTES:
            found.append([])
            size = 0
        found[-1].append((name, tensor))
        size += tensor.nbytes
    return found


def announced(chunk: Sequence[tuple[str, Tensor]]) -> list[Announced]:
    """What the engine must know before a chunk comes."""
    return [(name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)) for name, tensor in chunk]
