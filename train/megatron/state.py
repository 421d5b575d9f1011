"""The optimiser's state as a folder that any layout of the same optimiser can load: Megatron's distributed checkpoint.

What it does: `save` plans with all ranks and gives a `Saving`, whose `write` may run in any thread while the ranks do
other things than stepping; its `finish` (all ranks) completes the folder. `load` reads a folder into whatever layout
there is now. `state.json` is written last: it ties the folder to a version, and lists the files and their hashes.
What it leaves out: the model's weights (a version's own folder has them), where folders go (`train/checkpoints.py`).

In bf16, and with the distributed optimiser, Adam's fp32 weights are part of the state.
"""

import copy
import hashlib
import pickle
from pathlib import Path
from queue import Queue, SimpleQueue
from typing import Any

import orjson
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from megatron.core.optimizer import ChainedOptimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from torch import Tensor

from train.megatron.model import ScoringModel
from train.megatron.ranks import collect_all

STATE = "state.json"
# a parameter's moments in one piece each: any other layout can cut them anew
_SHARDING = {"distrib_optim_sharding_type": "fully_reshardable", "chained_optim_avoid_prefix": True}


class Saving:
    """One save on its way: `write` once, then `finish`."""

    def __init__(self, request: AsyncRequest, folder: Path, metadata: dict[str, str]) -> None:
        self._request, self._folder, self._metadata = request, folder, metadata
        self._fault: str | None = None
        self._hashes: dict[str, str] = {}

    def write(self) -> None:
        """Write this rank's part. Reads the state as it is now; may take seconds. An OSError waits for `finish`."""
        request = self._request
        if request.async_fn is None:
            return
        _, _, results = request.async_fn_args
        try:
            results.put(_written(request.async_fn.args[0], request.preload_fn()))
            own = self._folder.glob(f"__{dist.get_rank()}_*")
            self._hashes = {path.name: _sha256(path) for path in own}  # here: it takes a while, too
        except OSError as fault:  # boundary: every rank must come to finish()
            self._fault = str(fault)

    def finish(self) -> None:
        """Complete the folder; all ranks call. Raises OSError where a rank could not write."""
        faults = [fault for fault in collect_all(self._fault) if fault]
        if faults:
            raise OSError(f"{self._folder}: {faults[0]}")
        try:
            for finalize in self._request.finalize_fns:
                finalize()
        except (CheckpointingException, dist.checkpoint.CheckpointException, RuntimeError) as fault:
            raise OSError(f"{self._folder}: the optimiser's state was not written: {fault}") from fault
        hashes = {name: value for part in collect_all(self._hashes) for name, value in part.items()}
        if dist.get_rank() == 0:
            files = {path.name: hashes.get(path.name) or _sha256(path) for path in sorted(self._folder.iterdir())}
            part = self._folder / (STATE + ".part")
            part.write_bytes(orjson.dumps({"metadata": self._metadata, "files": files}))
            part.replace(self._folder / STATE)


def _written(transforms: list, buckets: list) -> dict[int, list] | Exception:
    """Megatron's own writing, in this thread. Its way is to fork a process for each file, which outlives a trainer that
    is killed, waits for ever, and holds its memory."""
    found: dict[int, list] = {}
    for number, bucket in enumerate(buckets):
        outcomes, running = SimpleQueue(), Queue()
        running.put(number)
        FileSystemWriterAsync.write_preloaded_data(transforms, number, bucket, outcomes, running, use_fsync=True)
        _, outcome = outcomes.get()
        if isinstance(outcome, Exception):
            return outcome
        found[number] = outcome
    return found


def save(model: ScoringModel, optimizer: ChainedOptimizer, folder: Path, metadata: dict[str, str]) -> Saving | None:
    """Plan a save into an empty folder; all ranks call. None if the optimiser has not stepped."""
    if not all(collect_all(bool(adam(optimizer).state))):
        return None
    # else a process is started, for a queue within this one; a new one each time: a save that failed leaves something
    filesystem_async._results_queue = SimpleQueue()
    request = dist_checkpointing.save(
        {"optimizer": _sharded(model, optimizer, loading=False)}, str(folder), async_sharded_save=True
    )
    return Saving(request, folder, metadata)


def load(model: ScoringModel, optimizer: ChainedOptimizer, folder: Path, metadata: dict[str, str]) -> None:
    """Fill a fresh optimiser; all ranks call. ValueError if the folder is incomplete, or not of this `metadata`."""
    check(folder, metadata)
    _prime(optimizer)
    try:
        loaded = dist_checkpointing.load({"optimizer": _sharded(model, optimizer, loading=True)}, str(folder))
        with torch.no_grad():
            optimizer.load_state_dict(loaded["optimizer"])
    except (
        CheckpointingException,
        dist.checkpoint.CheckpointException,
        OSError,
        RuntimeError,
        KeyError,
        EOFError,
        pickle.UnpicklingError,
    ) as fault:  # boundary: what a damaged file leads to
        line = (str(fault).strip() or type(fault).__name__).splitlines()[0]
        raise ValueError(f"{folder}: the optimiser's state can't be read: {line}") from fault
    for each in adam(optimizer).state.values():
        each["step"] = each["step"].clone()  # one that is shared is bumped once per parameter


def check(folder: Path, metadata: dict[str, str]) -> None:
    """Raises ValueError if a state is not whole, or something else than `metadata` says."""
    try:
        found = orjson.loads((folder / STATE).read_bytes())
        own, files = dict(found["metadata"]), dict(found["files"])
    except (OSError, orjson.JSONDecodeError, TypeError, KeyError, ValueError) as fault:
        raise ValueError(f"{folder}: no whole optimiser state, it was not written to its end: {fault}") from fault
    for key, value in metadata.items():
        if own.get(key) != value:
            raise ValueError(f"{folder}: the optimiser's state is of {key} {own.get(key)}, wanted is {value}: go on as "
                             "it was saved, or leave it out")  # fmt: skip
    for name, wanted in files.items():
        if not (folder / name).exists() or _sha256(folder / name) != wanted:
            raise ValueError(f"{folder}: {name} is not there, or not what was written: fetch it again")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def adam(optimizer: ChainedOptimizer) -> torch.optim.Optimizer:
    """torch's Adam inside Megatron's optimiser."""
    [only] = optimizer.chained_optimizers
    return only.optimizer


def _sharded(model: ScoringModel, optimizer: ChainedOptimizer, loading: bool) -> dict[str, Any]:
    return optimizer.sharded_state_dict(model.sharded_state_dict(), is_loading=loading, metadata=_SHARDING)


def _prime(optimizer: ChainedOptimizer) -> None:
    """Moments to load into: Megatron makes them itself only with TransformerEngine's Adam."""
    inner = adam(optimizer)
    for group in inner.param_groups:
        for parameter in group["params"]:
            inner.state[parameter] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
    [only] = optimizer.chained_optimizers
    if isinstance(only, DistributedOptimizer):
        _keep_steps(only)


def _keep_steps(optimizer: DistributedOptimizer) -> None:
    """torch's Adam keeps 'step' by parameter, where Megatron's loading looks for tensors of the parameter's shape."""
    own = optimizer._set_main_param_and_optimizer_states

    def put(parameter: torch.nn.Parameter, tensors: dict[str, Tensor]) -> None:
        group, index = optimizer.model_param_group_index_map[parameter]
        state = optimizer.optimizer.state[optimizer.optimizer.param_groups[group]["params"][index]]
        own(parameter, {"step": copy.copy(state["step"]), **tensors})

    optimizer._set_main_param_and_optimizer_states = put
