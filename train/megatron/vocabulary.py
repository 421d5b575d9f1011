"""What a row of logits says, where each tensor rank has a part of the vocabulary: log-probs, entropy, the top K.

What it does: all functions give the same on every tensor rank, and their gradients are those of the whole row. Pure.
What it leaves out: log-probs of one target without anything else, which Megatron's own cross entropy does in less
memory.

Axes: N = positions, V = vocabulary of this rank, K = chosen tokens.
"""

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from torch import Tensor


def log_normaliser(logits_NV: Tensor) -> Tensor:
    """[N] log Σ exp over the whole vocabulary."""
    peak_N = logits_NV.detach().amax(-1)
    dist.all_reduce(peak_N, dist.ReduceOp.MAX, group=parallel_state.get_tensor_model_parallel_group())
    sum_N = reduce_from_tensor_model_parallel_region((logits_NV - peak_N[:, None]).exp().sum(-1))
    return sum_N.log() + peak_N


def log_probs(logits_NV: Tensor, normaliser_N: Tensor, ids_NK: Tensor) -> Tensor:
    """[N, K] log-probs of tokens anywhere in the vocabulary."""
    local_NK = ids_NK - logits_NV.shape[1] * parallel_state.get_tensor_model_parallel_rank()
    here_NK = (local_NK >= 0) & (local_NK < logits_NV.shape[1])
    picked_NK = logits_NV.gather(1, local_NK.clamp(0, logits_NV.shape[1] - 1))
    return reduce_from_tensor_model_parallel_region(torch.where(here_NK, picked_NK, 0.0)) - normaliser_N[:, None]


def entropy(logits_NV: Tensor, normaliser_N: Tensor) -> Tensor:
    """[N] in nats: log Z - Σ p·logit."""
    # used on each rank for its part: the gradients of the parts are to be added
    shared_N1 = copy_to_tensor_model_parallel_region(normaliser_N)[:, None]
    mean_N = reduce_from_tensor_model_parallel_region(((logits_NV - shared_N1).exp() * logits_NV).sum(-1))
    return normaliser_N - mean_N


@torch.no_grad()
def top(logits_NV: Tensor, normaliser_N: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """([N, K] ids, [N, K] log-probs) of the most likely tokens of the whole vocabulary, most likely first."""
    start = logits_NV.shape[1] * parallel_state.get_tensor_model_parallel_rank()
    values_NK, ids_NK = logits_NV.topk(min(count, logits_NV.shape[1]), -1)
    values_NK = gather_from_tensor_model_parallel_region(values_NK)
    ids_NK = gather_from_tensor_model_parallel_region(ids_NK + start)
    values_NK, order_NK = values_NK.topk(count, -1)
    return ids_NK.gather(1, order_NK), values_NK - normaliser_N[:, None]
