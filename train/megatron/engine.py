"""The Megatron engine: one model on one rank, that scores, accumulates gradients, steps, and comes and goes as files.

What it does: `score` (no gradient), `accumulate` (forward and backward over micro-batches through Megatron's schedule),
`grad_norm`, `step` (Megatron's optimiser), `load`/`export` of weights, `save_optimizer`/`load_optimizer`, and `borrow`,
which puts other weights into the model for a while (the reference is never held twice).
What it leaves out: what the loss is (the caller's function), when to commit, more than one rank.

Between steps the gradients hold no memory (`rest`).
"""

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from train.batch import Scored, TokenBatch, collate, micro_batches
from train.megatron import cpu

cpu.install()

import torch.distributed as dist  # noqa: E402  Megatron's modules ask for CUDA when they are imported
from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from safetensors import SafetensorError, safe_open  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from train.megatron import model as model_module  # noqa: E402
from train.megatron import weights  # noqa: E402
from train.settings import OptimizerSettings  # noqa: E402

# (indices of the sequences in this micro-batch, their log-probs) -> (summed loss, samples counted)
LossFunction = Callable[[list[int], list[Tensor]], tuple[Tensor, int]]
Progress = Callable[[int, int], None]
_STATES = ("exp_avg", "exp_avg_sq")


def start_ranks() -> None:
    """The process group and Megatron's parallel state, for a single rank. No port is opened; once per process."""
    if parallel_state.model_parallel_is_initialized():
        return
    if not dist.is_initialized():
        if sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # gloo listens, even alone: on loopback only
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with _one_group():
        parallel_state.initialize_model_parallel(1, 1)
    tensor_parallel.model_parallel_cuda_manual_seed(1234)


@contextlib.contextmanager
def _one_group() -> Iterator[None]:
    """Megatron asks for some twenty groups. Of a single rank each is the whole world, and three idle gloo threads."""
    assert dist.get_world_size() == 1
    own = dist.new_group
    dist.new_group = lambda *args, **kwargs: dist.group.WORLD
    try:
        yield
    finally:
        dist.new_group = own


class Engine:
    """One model with its optimiser. Not thread-safe: one caller at a time."""

    name = f"megatron-core {version('megatron-core')}"  # recorded with every version that it made

    def __init__(self, folder: Path, settings: OptimizerSettings) -> None:
        self.hf_config = model_module.read_config(folder)
        self.settings = settings
        with cpu.device_mode():
            start_ranks()
            self.model = model_module.build(self.hf_config)
            self._ddp = DistributedDataParallel(
                self.model.config,
                DistributedDataParallelConfig(
                    grad_reduce_in_fp32=True, use_distributed_optimizer=False, overlap_grad_reduce=False
                ),
                self.model,
            )
        self._optimizer: Any = None
        self.load(folder)
        self.reset_optimizer()
        self.rest()

    @property
    def vocab_size(self) -> int:
        """Rows of the output layer."""
        return self.hf_config["vocab_size"]

    # ---- weights -----------------------------------------------------------------------------------------------

    def load(self, folder: Path) -> None:
        """Take a folder's weights. The optimiser is not touched."""
        parameters = dict(self.model.named_parameters())
        for name, tensor in weights.load(folder, self.model):
            parameters[name].data.copy_(tensor)

    def export(self, folder: Path, base: Path) -> None:
        """Write the weights as a folder that transformers loads; `folder` must not exist."""
        weights.export(self.model, folder, base)

    @contextlib.contextmanager
    def borrow(self, folder: Path) -> Iterator[None]:
        """Score with another folder's weights inside; the model's own come back after it."""
        parameters = dict(self.model.named_parameters())
        own = {name: parameter.data for name, parameter in parameters.items()}
        try:
            for name, tensor in weights.load(folder, self.model):
                parameters[name].data = tensor
            yield
        finally:
            for name, parameter in parameters.items():
                parameter.data = own[name]

    def weight_fault(self) -> str | None:
        """The first weight that is not finite, or zero all over; None if there is none."""
        for name, parameter in self.model.named_parameters():
            low, high = (float(bound) for bound in torch.aminmax(parameter.detach()))
            if not (abs(low) < float("inf") and abs(high) < float("inf")):
                return f"{name} is not finite"
            if low == high == 0.0:
                return f"{name} is zero all over"
        return None

    # ---- scoring -----------------------------------------------------------------------------------------------

    def score(self, sequences: Sequence[Scored], budget: int, progress: Progress | None = None) -> list[Tensor]:
        """[R] log-probs of each sequence's response, at its temperature, in the order given. No gradient."""
        found: list[Tensor] = [torch.empty(0)] * len(sequences)
        groups = micro_batches([sequence.length for sequence in sequences], budget)
        self.model.eval()
        with cpu.device_mode(), torch.no_grad():
            for done, group in enumerate(groups, 1):
                batch = collate([sequences[index] for index in group])
                for index, logp_R in zip(group, self.model(batch).split(batch.lengths), strict=True):
                    found[index] = logp_R.clone()
                if progress:
                    progress(done, len(groups))
        return found

    def distributions(self, sequence: Scored) -> Tensor:
        """[R, V] log-probs of the whole vocabulary at each response position, at temperature 1. No gradient."""
        self.model.eval()
        with cpu.device_mode(), torch.no_grad():
            return self.model(collate([sequence]), logits=True).float().log_softmax(-1)

    # ---- learning ----------------------------------------------------------------------------------------------

    def accumulate(
        self, sequences: Sequence[Scored], loss: LossFunction, budget: int, progress: Progress | None = None
    ) -> None:
        """Forward and backward over all sequences; gradients are of Σ loss / Σ samples."""
        groups = micro_batches([sequence.length for sequence in sequences], budget)
        self.model.train()
        self._ddp.restore_grad_buffers()
        done = 0

        def forward_step(iterator: Iterator[list[int]], model: torch.nn.Module) -> tuple[Tensor, Callable]:
            group = next(iterator)
            batch: TokenBatch = collate([sequences[index] for index in group])
            self._recompute(batch.token_ids_BS.shape[1] > self.settings.recompute_above_tokens)

            def loss_function(logp_N: Tensor) -> tuple[Tensor, Tensor, dict]:
                nonlocal done
                total, samples = loss(group, list(logp_N.split(batch.lengths)))
                done += 1
                if progress:
                    progress(done, len(groups))
                return total, torch.tensor(samples, dtype=torch.int), {}

            return model(batch), loss_function

        with cpu.device_mode():
            self._ddp.zero_grad_buffer()
            self._optimizer.zero_grad()
            get_forward_backward_func()(
                forward_step_func=forward_step,
                data_iterator=iter(groups),
                model=[self._ddp],
                num_microbatches=len(groups),
                seq_length=max(sequence.length for sequence in sequences),
                micro_batch_size=1,
                forward_only=False,
            )

    def _recompute(self, on: bool) -> None:
        """Keep activations, or compute them again on the way back."""
        config = self.model.config
        config.recompute_granularity = "full" if on else None
        config.recompute_method = "uniform" if on else None
        config.recompute_num_layers = 1 if on else None

    def grad_norm(self) -> float:
        """The norm of the accumulated gradients, before clipping; not finite where any of them is not."""
        with cpu.device_mode():
            self._optimizer.prepare_grads()
            return float(self._optimizer.get_grad_norm())

    def step(self, learning_rate: float | None = None) -> None:
        """One optimiser step with the accumulated gradients."""
        with cpu.device_mode():
            rate = self.settings.learning_rate if learning_rate is None else learning_rate
            for group in self._optimizer.param_groups:
                # Megatron leaves both multipliers to its scheduler: without it, norms would decay as well
                group["lr"] = rate * group["lr_mult"]
                group["weight_decay"] = self.settings.weight_decay * group["wd_mult"]
            stepped, _, _ = self._optimizer.step()
            assert stepped

    def rest(self) -> None:
        """Give the gradients' memory back, and what the allocator keeps."""
        self._optimizer.zero_grad()
        self._ddp.offload_grad_buffers(synchronize=False, empty_cache=False)
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)

    # ---- optimiser ---------------------------------------------------------------------------------------------

    def reset_optimizer(self) -> None:
        """A fresh Adam."""
        config = OptimizerConfig(
            optimizer="adam",
            lr=self.settings.learning_rate,
            adam_beta1=self.settings.beta1,
            adam_beta2=self.settings.beta2,
            adam_eps=self.settings.eps,
            weight_decay=self.settings.weight_decay,
            clip_grad=self.settings.clip_grad,
            params_dtype=torch.float32,
            use_distributed_optimizer=False,
        )
        with cpu.device_mode():
            self._optimizer = get_megatron_optimizer(config, [self._ddp])

    def _adam(self) -> torch.optim.Optimizer:
        [only] = self._optimizer.chained_optimizers
        return only.optimizer

    def save_optimizer(self, path: Path, metadata: dict[str, str]) -> bool:
        """Write Adam's state (beside, then renamed). False if it has not stepped yet."""
        state = self._adam().state
        tensors: dict[str, Tensor] = {}
        step = 0.0
        for name, parameter in self.model.named_parameters():
            if not state.get(parameter):
                return False
            step = float(state[parameter]["step"])
            tensors.update({f"{key}/{name}": state[parameter][key] for key in _STATES})
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        save_file(tensors, part, metadata={**metadata, "step": str(step)})
        part.replace(path)
        return True

    def load_optimizer(self, path: Path, metadata: dict[str, str]) -> None:
        """Take Adam's state from a file. ValueError if it is torn, or belongs to something else than `metadata`."""
        try:
            with safe_open(path, "pt") as file:
                found = file.metadata() or {}
                if other := {key: found.get(key) for key, value in metadata.items() if found.get(key) != value}:
                    raise ValueError(f"{path}: optimiser state of {other}, wanted {metadata}")
                self.reset_optimizer()
                adam = self._adam()
                for name, parameter in self.model.named_parameters():
                    moments = {key: file.get_tensor(f"{key}/{name}").clone() for key in _STATES}
                    # a 'step' of its own for each: one that is shared is bumped once per parameter
                    adam.state[parameter] = {"step": torch.tensor(float(found["step"])), **moments}
        except (SafetensorError, OSError) as fault:
            self.reset_optimizer()
            raise ValueError(f"{path}: optimiser state can't be read: {fault}") from fault
