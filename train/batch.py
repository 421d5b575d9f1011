"""From samples to micro-batches: which samples train, which are left out and why, and how the rest is padded.

What it does: `select` names a reason for each sample it leaves out; `micro_batches` sorts by length and packs to a
token budget; `collate` pads. Pure, on CPU tensors.
What it leaves out: packing several samples into one row (Megatron's local attention takes padded rows).

Axes: B = sequences, S = longest sequence, N = scored tokens of all sequences of a batch, one after the other.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from storage.records import Sample, TokenIds
from train.advantages import standardised
from train.settings import BatchSettings

CONSUMED = "consumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A sequence whose response is scored: its log-probs given the prompt."""

    prompt_ids: TokenIds  # [P]
    response_ids: TokenIds  # [R]
    temperature: float  # above 0

    @property
    def length(self) -> int:
        """P + R."""
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """What a model says of the scored tokens, of one sequence ([R]) or of a batch ([N])."""

    logp: Tensor  # [R]
    entropy: Tensor | None = None  # [R] nats, of the whole distribution
    top: Tensor | None = None  # [R, K] log-probs of other tokens at the same positions
    top_ids: Tensor | None = None  # [R, K] which tokens

    def split(self, lengths: Sequence[int]) -> "list[TokenScores]":
        """One for each sequence, on the CPU."""
        names = [name for name in ("logp", "entropy", "top", "top_ids") if getattr(self, name) is not None]
        parts = [getattr(self, name).cpu().split(list(lengths)) for name in names]
        return [TokenScores(**dict(zip(names, part, strict=True))) for part in zip(*parts, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked of a model beside the log-probs."""

    entropy: bool = False
    top: int = 0  # the K most likely tokens
    of: Sequence[Tensor] | None = None  # [R, K] ids for each sequence: their log-probs


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """Padded ids, and where in them the scored tokens are predicted."""

    token_ids_BS: Tensor  # int64, right-padded with 0: causal attention never looks there
    row_N: Tensor  # int64: which sequence
    column_N: Tensor  # int64: the position that predicts the token, one before it
    target_N: Tensor  # int64: the token
    temperature_N: Tensor  # float32
    lengths: tuple[int, ...]  # [B] R of each sequence: splits N
    wanted: Wanted = Wanted()
    of_NK: Tensor | None = None  # int64: other tokens whose log-probs are wanted

    def to(self, device: torch.device) -> "TokenBatch":
        """The same on a device."""
        names = ("token_ids_BS", "row_N", "column_N", "target_N", "temperature_N")
        moved = {name: getattr(self, name).to(device) for name in names}
        of_NK = None if self.of_NK is None else self.of_NK.to(device)
        return TokenBatch(**moved, lengths=self.lengths, wanted=self.wanted, of_NK=of_NK)


def scoring_temperature(temperature: float) -> float:
    """The request's temperature, and 1 where it was 0 (greedy): the engine reports greedy tokens at 1, too."""
    return temperature if temperature > 0 else 1.0


def plain_sequence(sample: Sample) -> Scored:
    """The sample as it was sampled."""
    return Scored(
        prompt_ids=sample.token_ids[: sample.prompt_length],
        response_ids=sample.response_ids,
        temperature=scoring_temperature(sample.temperature),
    )


def hinted_sequence(sample: Sample) -> Scored:
    """The same response after the prompt with the hint: what the teacher scores."""
    assert sample.enhanced_prompt_ids is not None, sample.sample_id
    return Scored(
        prompt_ids=sample.enhanced_prompt_ids,
        response_ids=sample.response_ids,
        temperature=scoring_temperature(sample.temperature),
    )


def select(
    samples: Sequence[Sample],
    *,
    head: int,
    lineage: Collection[int],
    consumed: Collection[str],
    vocab_size: int,
    settings: BatchSettings,
    objective: str = "policy",
) -> tuple[list[Sample], dict[str, str]]:
    """The samples that train, in their order, and {sample_id: reason} for the others."""
    kept: dict[str, Sample] = {}
    left_out: dict[str, str] = {}
    ancestors, gone = frozenset(lineage), frozenset(consumed)
    for sample in samples:
        if sample.sample_id in kept:
            continue  # the same sample twice trains once
        if sample.sample_id in gone:
            left_out[sample.sample_id] = f"{CONSUMED}: the head or an ancestor of it trained on this sample"
            continue
        reason = _fault(sample, head, ancestors, vocab_size, settings)
        if reason is None and objective == "sft" and sample.reward != 1:
            reason = f"not good: its reward is {sample.reward}, supervised fine-tuning takes answers of reward 1"
        if reason is None:
            kept[sample.sample_id] = sample
        else:
            left_out[sample.sample_id] = reason
    if objective == "policy":
        for sample, reward in zip(list(kept.values()), step_rewards(list(kept.values())), strict=True):
            if sample.group_id is not None and reward is None and sample.hint is None:
                del kept[sample.sample_id]
                left_out[sample.sample_id] = (
                    f"no spread: step {sample.step_index} of group {sample.group_id} has no others of another reward"
                )
    return list(kept.values()), left_out


def step_rewards(samples: Sequence[Sample]) -> list[float | None]:
    """Each sample's reward as it enters the advantage: its own, or, for a step of a group of episodes, standardised
    over the steps with the same index in that group (None where that has no spread)."""
    rewards = [sample.reward for sample in samples]
    grouped = [
        index for index, sample in enumerate(samples) if sample.group_id is not None and sample.reward is not None
    ]
    keys = [(samples[index].group_id, samples[index].step_index) for index in grouped]
    found = standardised([samples[index].reward or 0.0 for index in grouped], keys)
    for index, reward in zip(grouped, found, strict=True):
        rewards[index] = reward
    return rewards


def _fault(
    sample: Sample, head: int, ancestors: frozenset[int], vocab_size: int, settings: BatchSettings
) -> str | None:
    """Why this sample can't train, as "name: sentence", or None."""
    if not sample.counts:
        return "does not count: neither a reward of +1 or -1 nor a hint"
    if not any(bit > 0 for bit in sample.mask[sample.prompt_length :]):
        return "no token trains: the mask is 0 on the whole response"
    if not sample.versions:
        return "no ancestor: no version says that it sampled this"
    for span in sample.versions:
        if span.end > span.start and span.version not in ancestors:
            return f"no ancestor: version {span.version} is no ancestor of the head {head}"
    if head - sample.version > settings.max_version_lag:
        return f"too old: {head - sample.version} versions behind the head, {settings.max_version_lag} are allowed"
    enhanced = sample.enhanced_prompt_ids
    length = max(len(sample.token_ids), len(enhanced or ()) + len(sample.response_ids))
    if length > settings.max_train_tokens:
        return f"too long: {length} tokens, max_train_tokens is {settings.max_train_tokens}"
    ids = (*sample.token_ids, *(enhanced or ()))
    if enhanced == () or min(ids) < 0 or max(ids) >= vocab_size:
        return f"ids outside the vocabulary: 0 to {vocab_size - 1} are known, and no prompt may be empty"
    numbers = (*sample.rollout_logprobs, sample.kl_weight, sample.loss_weight, sample.reward or 0.0)
    if not all(math.isfinite(number) for number in numbers):
        return "not finite: a log-prob, a weight or the reward is NaN or infinite"
    reward = sample.reward or 0.0
    limits = {  # value: what it may be; beyond these one sample would spoil the batch it is in
        "a log-prob": (max(sample.rollout_logprobs), -math.inf, 1e-3),
        "a log-prob of": (min(sample.rollout_logprobs), -100.0, math.inf),
        "kl_weight": (sample.kl_weight, 0.0, 1e3),
        "loss_weight": (sample.loss_weight, 0.0, 1e3),
        "reward": (reward, -1e3, 1e3),
        "temperature": (scoring_temperature(sample.temperature), 0.01, 100.0),
    }
    for name, (value, low, high) in limits.items():
        if not low <= value <= high:
            return f"out of range: {name} is {value}, allowed is {low} to {high}"
    return None


def micro_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices grouped so that count × longest ≤ budget, longest first; one longer than the budget goes alone."""
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    groups: list[list[int]] = []
    for index in order:
        if groups and lengths[groups[-1][0]] * (len(groups[-1]) + 1) <= budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def shares(groups: Sequence[list[int]], lengths: Sequence[int], ranks: int) -> list[list[list[int]]]:
    """The micro-batches of each data-parallel rank: each goes to the rank with the fewest padded tokens so far."""
    found: list[list[list[int]]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for group in groups:
        least = loads.index(min(loads))
        found[least].append(group)
        loads[least] += len(group) * max(lengths[index] for index in group)
    return found


def collate(sequences: Sequence[Scored], wanted: Wanted | None = None) -> TokenBatch:
    """Pad to the longest, and note where each response token is predicted. `wanted.of` is in the sequences' order."""
    longest = max(sequence.length for sequence in sequences)
    token_ids_BS = torch.zeros((len(sequences), longest), dtype=torch.int64)
    rows, columns, targets, temperatures = [], [], [], []
    for row, sequence in enumerate(sequences):
        ids = (*sequence.prompt_ids, *sequence.response_ids)
        token_ids_BS[row, : len(ids)] = torch.tensor(ids)
        start, count = len(sequence.prompt_ids), len(sequence.response_ids)
        rows.append(torch.full((count,), row))
        columns.append(torch.arange(start - 1, start - 1 + count))
        targets.append(torch.tensor(sequence.response_ids))
        temperatures.append(torch.full((count,), float(sequence.temperature)))
    return TokenBatch(
        token_ids_BS=token_ids_BS,
        row_N=torch.cat(rows),
        column_N=torch.cat(columns),
        target_N=torch.cat(targets).to(torch.int64),
        temperature_N=torch.cat(temperatures),
        lengths=tuple(len(sequence.response_ids) for sequence in sequences),
        wanted=wanted or Wanted(),
        of_NK=torch.cat(list(wanted.of)) if wanted and wanted.of is not None else None,
    )


def pad(values: Sequence[Tensor], fill: float = 0.0) -> Tensor:
    """[B, R] ragged rows, padded on the right. Keeps gradients."""
    return torch.nn.utils.rnn.pad_sequence(list(values), batch_first=True, padding_value=fill)
