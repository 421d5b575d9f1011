"""The Megatron engine: one rank's part of a model, that scores, accumulates gradients, steps, and comes and goes as
files. Every rank makes the same calls with the same arguments; results are the same on each.

What it does: `score` (no gradient), `accumulate` (forward and backward over micro-batches through Megatron's schedule),
`grad_norm`, `step` (Megatron's optimiser), `load`/`export` of weights, `save_state`/`load_state` of the optimiser, and
`borrow`, which puts other weights into the model for a while (the reference is never held twice).
What it leaves out: what the loss is (the caller's function), when to commit.

Between steps the gradients hold no memory (`rest`).
"""

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from train.batch import Scored, TokenScores, Wanted, collate, micro_batches, shares
from train.megatron import cpu

cpu.install()

from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402

from train.megatron import lora, ranks, state, weights  # noqa: E402
from train.megatron import model as model_module  # noqa: E402
from train.megatron.folder import check  # noqa: E402
from train.megatron.layout import check_layout, identity, read_config  # noqa: E402
from train.megatron.ranks import Place  # noqa: E402
from train.megatron.state import Saving  # noqa: E402
from train.settings import LoraSettings, OptimizerSettings, ParallelSettings  # noqa: E402

# (indices of the sequences in this micro-batch, what the model says of each) -> (summed loss, samples counted)
LossFunction = Callable[[list[int], list[TokenScores]], tuple[Tensor, int]]
Progress = Callable[[int, int], None]
T = TypeVar("T")
__all__ = ["Engine", "Place", "Saving"]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Engine:
    """One model with its optimiser. Not thread-safe: one caller at a time."""

    name = f"megatron-core {version('megatron-core')}"  # recorded with every version that it made

    def __init__(
        self,
        folder: Path,
        settings: OptimizerSettings,
        place: Place | None = None,
        adapter: LoraSettings | None = None,
    ) -> None:
        """Load a folder's weights; with an adapter they stay as they are, and only it trains. Without a place this rank
        is alone. Raises ValueError where the model is not mapped, the weights are not its config's, or the layout of
        the ranks does not divide it."""
        self.hf_config = read_config(folder)
        layout = ParallelSettings() if place is None else place.layout
        check_layout(self.hf_config, layout)
        check(folder, self.hf_config)
        self._identity = identity(self.hf_config)
        self.settings, self.adapter = settings, adapter
        if settings.precision == "bf16":
            cpu.multiply_bf16_in_fp32()
        self._base: Path | None = None  # whose weights lie under the adapter
        with cpu.device_mode():
            ranks.start(place)
            self.model = model_module.build(self.hf_config, _DTYPES[settings.precision], adapter)
            if adapter is not None:
                lora.freeze(self.model)
            self._ddp = DistributedDataParallel(
                self.model.config,
                DistributedDataParallelConfig(
                    grad_reduce_in_fp32=True,
                    use_distributed_optimizer=settings.distributed,
                    overlap_grad_reduce=False,
                ),
                self.model,
            )
        self._optimizer: Any = None
        self._load(folder)
        self.reset_optimizer()
        self.rest()

    @property
    def vocab_size(self) -> int:
        """Rows of the output layer."""
        return self.hf_config["vocab_size"]

    @staticmethod
    def collect(mine: T) -> list[T]:
        """What each data-parallel share found where the loss is seen, on all ranks."""
        return ranks.collect(mine)

    # ---- weights -----------------------------------------------------------------------------------------------

    def load(self, folder: Path, base: Path | None = None) -> None:
        """Take a folder's weights; with an adapter, those of a base (the adapter is fresh then), or of an adapter and
        the base it belongs to, if that is not the one that is there.

        Adam's moments are not touched; its own copy of the weights follows.
        """
        if self.adapter is not None and base is not None and base != self._base:
            self._load(base)
        self._load(folder)
        with cpu.device_mode():
            self._optimizer.reload_model_params()

    def _load(self, folder: Path) -> None:
        if self.adapter is not None and (folder / lora.CONFIG).exists():
            lora.load_adapter(self.model, folder)
            return
        if self.adapter is None or folder != self._base:
            parameters = dict(self.model.named_parameters())
            for name, tensor in weights.load(folder, self.model, self.hf_config):
                parameters[name].data.copy_(tensor)
        if self.adapter is not None:
            self._base = folder
            lora.reset(self.model)

    def export(self, folder: Path, base: Path) -> None:
        """Write the weights as a folder that transformers loads, or the adapter as one that PEFT loads; `folder` must
        not exist. `base` gives the other files, and is named as the adapter's base."""
        if self.adapter is None:
            weights.export(self.model, folder, base)
            return
        stages = ranks.collect_all(lora.gather(self.model))
        if ranks.first():
            wholes = {name: tensor for stage in stages for name, tensor in stage.items()}
            lora.write_adapter(wholes, self.model.config, self.adapter, folder, base.name)
        ranks.wait()

    @contextlib.contextmanager
    def borrow(self, folder: Path) -> Iterator[None]:
        """Score with another folder's weights inside; the model's own come back after it. No adapter acts there."""
        with contextlib.nullcontext() if self.adapter is None else lora.base_only(self.model):
            if folder == self._base:
                yield
            else:
                with self._swapped(folder):
                    yield

    @contextlib.contextmanager
    def _swapped(self, folder: Path) -> Iterator[None]:
        parameters = {name: each for name, each in self.model.named_parameters() if not lora.is_adapter(name)}
        own = {name: parameter.data for name, parameter in parameters.items()}
        try:
            for name, tensor in weights.load(folder, self.model, self.hf_config):
                parameters[name].data = tensor.to(parameters[name].device)
            yield
        finally:
            for name, parameter in parameters.items():
                parameter.data = own[name]

    def weight_fault(self) -> str | None:
        """The first weight that is not finite, or zero all over; None if there is none."""
        return next((fault for fault in ranks.collect_all(self._weight_fault()) if fault), None)

    def _weight_fault(self) -> str | None:
        for name, parameter in self.model.named_parameters():
            low, high = (float(bound) for bound in torch.aminmax(parameter.detach()))
            if not (abs(low) < float("inf") and abs(high) < float("inf")):
                return f"{name} is not finite"
            if low == high == 0.0 and not name.endswith("lora_b"):  # a fresh adapter's
                return f"{name} is zero all over"
        return None

    # ---- scoring -----------------------------------------------------------------------------------------------

    def score(self, sequences: Sequence[Scored], budget: int, progress: Progress | None = None) -> list[Tensor]:
        """[R] log-probs of each sequence's response, at its temperature, in the order given. No gradient."""
        return [found.logp for found in self.score_more(sequences, Wanted(), budget, progress)]

    def score_more(
        self, sequences: Sequence[Scored], wanted: Wanted, budget: int, progress: Progress | None = None
    ) -> list[TokenScores]:
        """As `score`, with what else is wanted. Raises ValueError if more tokens are wanted than there are."""
        if wanted.top > self.vocab_size:
            raise ValueError(f"the top {wanted.top} tokens are wanted of a vocabulary of {self.vocab_size}")
        found: dict[int, TokenScores] = {}

        def note(group: list[int], scores: list[TokenScores]) -> tuple[Tensor, int]:
            found.update(zip(group, scores, strict=True))
            return torch.zeros(()), len(group)

        self.model.eval()
        with torch.no_grad():
            self._run(sequences, note, budget, progress, wanted, learn=False)
        whole = {index: scores for share in ranks.collect(found) for index, scores in share.items()}
        return [whole[index] for index in range(len(sequences))]

    def distributions(self, sequence: Scored) -> Tensor:
        """[R, V] log-probs of the whole vocabulary at each response position, at temperature 1. No gradient."""
        found: list[Tensor] = []

        def forward_step(iterator: Iterator[Scored], model: torch.nn.Module) -> tuple[Tensor, Callable]:
            logits = model(collate([next(iterator)]).to(model_module.DEVICE), logits=True)
            if ranks.sees_loss():
                logits = tensor_parallel.gather_from_tensor_model_parallel_region(logits)
                found.append(logits.float().log_softmax(-1).cpu())
            return logits, lambda _: (torch.zeros(()), torch.tensor(1, dtype=torch.int), {})

        self.model.eval()
        with torch.no_grad():
            self._schedule(iter([sequence]), forward_step, 1, sequence.length, learn=False)
        return ranks.collect(found[0] if found else None)[0]

    # ---- learning ----------------------------------------------------------------------------------------------

    def accumulate(
        self,
        sequences: Sequence[Scored],
        loss: LossFunction,
        budget: int,
        progress: Progress | None = None,
        wanted: Wanted | None = None,
    ) -> None:
        """Forward and backward over all sequences; gradients are of Σ loss / Σ samples.

        `loss` is called on the ranks that see it, each for its share of the sequences.
        """
        self.model.train()
        self._ddp.restore_grad_buffers()
        with cpu.device_mode():
            self._ddp.zero_grad_buffer()
            self._optimizer.zero_grad()
        self._run(sequences, loss, budget, progress, wanted or Wanted(), learn=True)

    def _run(
        self,
        sequences: Sequence[Scored],
        loss: LossFunction,
        budget: int,
        progress: Progress | None,
        wanted: Wanted,
        *,
        learn: bool,
    ) -> None:
        """This rank's micro-batches through the schedule."""
        lengths = [sequence.length for sequence in sequences]
        share, every = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
        groups = shares(micro_batches(lengths, budget), lengths, every)[share]
        # a share without samples takes part in the collectives all the same: with one that counts nothing
        idle = not groups
        groups = groups or [[lengths.index(min(lengths))]]
        done = 0

        def forward_step(iterator: Iterator[list[int]], model: torch.nn.Module) -> tuple[Tensor, Callable]:
            group = next(iterator)
            of = None if wanted.of is None else [wanted.of[index] for index in group]
            batch = collate([sequences[index] for index in group], replace(wanted, of=of))
            self._recompute(learn and batch.token_ids_BS.shape[1] > self.settings.recompute_above_tokens)

            def loss_function(found: TokenScores) -> tuple[Tensor, Tensor, dict]:
                nonlocal done
                scores = found.split(batch.lengths)
                total, samples = (scores[0].logp.sum() * 0.0, 0) if idle else loss(group, scores)
                done += 1
                if progress:
                    progress(done, len(groups))
                device = model_module.DEVICE
                return total.to(device), torch.tensor(samples, dtype=torch.int, device=device), {}

            return model(batch.to(model_module.DEVICE)), loss_function

        self._schedule(iter(groups), forward_step, len(groups), max(lengths), learn)

    def _schedule(self, items: Iterator[Any], forward_step: Callable, count: int, longest: int, learn: bool) -> None:
        with cpu.device_mode():
            get_forward_backward_func()(
                forward_step_func=forward_step,
                data_iterator=items,
                model=[self._ddp],
                num_microbatches=count,
                seq_length=longest,  # of no effect: stages tell each other the shapes
                micro_batch_size=1,
                forward_only=not learn,
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
                # what a loaded state says of these is not asked for
                group["betas"], group["eps"] = (self.settings.beta1, self.settings.beta2), self.settings.eps
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
            bf16=self.settings.precision == "bf16",
            params_dtype=_DTYPES[self.settings.precision],
            use_distributed_optimizer=self.settings.distributed,
        )
        with cpu.device_mode():
            self._optimizer = get_megatron_optimizer(config, [self._ddp])

    def begin_save(self, folder: Path, metadata: dict[str, str]) -> Saving | None:
        """Plan a save of Adam's state (in bf16 with its fp32 weights) into an empty folder; None if it has not stepped.

        Call `write` of what comes back in any thread, then `finish` here. Until `write` is through, the engine must
        not step.
        """
        with cpu.device_mode():
            return state.save(self.model, self._optimizer, folder, {**metadata, **self._kind()})

    def finish_save(self, saving: Saving) -> None:
        """Complete a save that was written. Raises OSError where a rank could not write."""
        with cpu.device_mode():
            saving.finish()

    def save_state(self, folder: Path, metadata: dict[str, str]) -> bool:
        """Save Adam's state into an empty folder and wait for it; False if it has not stepped."""
        saving = self.begin_save(folder, metadata)
        if saving is None:
            return False
        saving.write()
        self.finish_save(saving)
        return True

    def load_state(self, folder: Path, metadata: dict[str, str]) -> None:
        """Take Adam's state from a folder, whatever the layout that saved it. ValueError if it is torn, or belongs to
        something else than `metadata`; then Adam is fresh."""
        self.reset_optimizer()
        try:
            with cpu.device_mode():
                state.load(self.model, self._optimizer, folder, {**metadata, **self._kind()})
        except ValueError:
            self.reset_optimizer()
            raise

    def adam(self) -> torch.optim.Optimizer:
        """torch's Adam inside Megatron's optimiser, with this rank's state."""
        return state.adam(self._optimizer)

    def _kind(self) -> dict[str, str]:
        settings = self.settings
        return {
            "precision": settings.precision,
            "distributed": str(settings.distributed),
            "adapter": f"{self.adapter} on {self._base and self._base.name}",
            "model": self._identity,
        }
