"""A tiny model with adapters, built as the engine builds its own, and one backward pass by Megatron's machinery."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from tests.unit.train.tiny import make_sample
from train.batch import Scored, TokenScores, collate, plain_sequence
from train.megatron import cpu, lora, ranks, weights
from train.megatron import model as model_module
from train.megatron.layout import read_config
from train.megatron.model import ScoringModel
from train.settings import LoraSettings

SEQUENCES = [plain_sequence(make_sample(seed)) for seed in range(5)]


def bare(folder: Path, settings: LoraSettings, dtype: torch.dtype = torch.float32) -> ScoringModel:
    """Built and frozen, with random base weights. The parallel state must be up."""
    model = model_module.build(read_config(folder), dtype, settings)
    lora.freeze(model)
    lora.reset(model)
    return model


def base_weights(folder: Path) -> dict[str, Tensor]:
    """Megatron's names and whole tensors of a folder."""
    config = read_config(folder)
    return {name: tensor.clone() for name, tensor in weights.load(folder, model_module.build(config), config)}


def take(model: ScoringModel, base: dict[str, Tensor]) -> None:
    """This rank's part of the base's weights."""
    for name, parameter in model.named_parameters():
        if not lora.is_adapter(name):
            parameter.data.copy_(lora.shard(base[name], parameter))


def adapted_model(folder: Path, settings: LoraSettings, dtype: torch.dtype = torch.float32) -> ScoringModel:
    """The base's weights with a fresh adapter, on this one rank."""
    with cpu.device_mode():
        ranks.start()
        model = bare(folder, settings, dtype)
        take(model, base_weights(folder))
    return model


def score(model: ScoringModel, sequences: list[Scored]) -> list[Tensor]:
    with cpu.device_mode():
        batch = collate(sequences)
        return [found.logp for found in model(batch).split(batch.lengths)]


def nll(logp: list[Tensor]) -> Tensor:
    return torch.stack([-each.mean() for each in logp]).sum()


def train(model: ScoringModel, sequences: list[Scored], steps: int = 3, rate: float = 1e-2) -> None:
    """A few steps of plain Adam: B is not zero any more."""
    adam = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=rate)
    for _ in range(steps):
        adam.zero_grad()
        nll(score(model, sequences)).backward()
        adam.step()
    adam.zero_grad()


def megatron_gradients(model: ScoringModel) -> tuple[float, float, dict[str, Tensor]]:
    """Loss, gradient norm and whole gradients, by Megatron's DDP, schedule and optimiser."""
    ddp = DistributedDataParallel(model.config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), model)
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-3, clip_grad=1.0), [ddp])
    batch, losses = collate(SEQUENCES), []

    def forward_step(_: Iterator[int], model: torch.nn.Module) -> tuple[Tensor, Callable]:
        def loss_function(found: TokenScores) -> tuple[Tensor, Tensor, dict]:
            losses.append(nll([each.logp for each in found.split(batch.lengths)]))
            return losses[-1], torch.tensor(1, dtype=torch.int), {}

        return model(batch), loss_function

    model.train()
    get_forward_backward_func()(
        forward_step_func=forward_step, data_iterator=iter([0]), model=[ddp], num_microbatches=1, seq_length=32,
        micro_batch_size=1, forward_only=False,
    )  # fmt: skip
    optimizer.prepare_grads()
    own = lora.named_adapters(model)
    found = lora.gather(model, {name: parameter.main_grad for name, parameter in own.items()})
    held = sum(buffer.grad_data.numel() for buffer in ddp.buffers)
    assert held == sum(parameter.numel() for parameter in own.values()), "the frozen base has gradients"
    return float(losses[0].detach()), float(optimizer.get_grad_norm()), found


def checkpoint(model: ScoringModel) -> dict[str, Any]:
    """The adapters' part of Megatron's sharded state."""
    return {name: entry for name, entry in model.sharded_state_dict().items() if lora.is_adapter(name)}
