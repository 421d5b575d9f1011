"""Which samples train, and how they are packed."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from storage.records import Sample, VersionSpan
from tests.unit.train.tiny import VOCAB, make_sample
from train.batch import Scored, collate, micro_batches, plain_sequence, scoring_temperature, select
from train.settings import BatchSettings

LIMITS = BatchSettings(max_train_tokens=32, max_version_lag=2)


def chosen(*samples: Sample, head: int = 0, lineage: tuple[int, ...] = (0,), consumed: tuple[str, ...] = ()):
    return select(samples, head=head, lineage=lineage, consumed=consumed, vocab_size=VOCAB, settings=LIMITS)


def reason(sample: Sample, **where: object) -> str:
    """Why this one is left out, in a word."""
    kept, left_out = chosen(sample, **where)
    assert not kept
    return left_out[sample.sample_id].split(":")[0]


def span(version: int, sample: Sample) -> tuple[VersionSpan, ...]:
    return (VersionSpan(version=version, start=0, end=len(sample.rollout_logprobs)),)


def test_good_samples_are_kept_in_order() -> None:
    samples = [make_sample(seed) for seed in range(6)]
    assert chosen(*samples) == (samples, {})


def test_a_sample_given_twice_trains_once() -> None:
    sample = make_sample(1)
    assert chosen(sample, sample) == ([sample], {})


def test_left_outs_have_names() -> None:
    plain, hinted = make_sample(1), make_sample(2)
    assert reason(make_sample(1, reward=0.0)) == "does not count"
    assert reason(make_sample(1, mask=(0,) * len(plain.token_ids))) == "no token trains"
    assert reason(make_sample(1, token_ids=(VOCAB, *plain.token_ids[1:]))) == "ids outside the vocabulary"
    assert reason(make_sample(2, enhanced_prompt_ids=(-1, 3))) == "ids outside the vocabulary"
    assert reason(make_sample(2, enhanced_prompt_ids=())) == "ids outside the vocabulary"
    assert reason(make_sample(2, enhanced_prompt_ids=(1,) * 32)) == "too long"
    assert reason(hinted, consumed=(hinted.sample_id,)) == "consumed"
    count = len(plain.rollout_logprobs)
    assert reason(make_sample(1, rollout_logprobs=(math.nan,) * count)) == "not finite"
    assert reason(make_sample(1, rollout_logprobs=(0.5,) * count)) == "out of range"
    assert reason(make_sample(1, kl_weight=math.inf)) == "not finite"
    assert reason(make_sample(1, kl_weight=-0.1)) == "out of range"


def test_versions_must_be_ancestors_and_recent() -> None:
    sample = make_sample(1)
    assert reason(sample, head=3, lineage=(3, 2, 1, 0)) == "too old"
    assert reason(make_sample(1, versions=span(2, sample)), head=3, lineage=(3, 1, 0)) == "no ancestor"
    assert chosen(make_sample(1, versions=span(1, sample)), head=3, lineage=(3, 1, 0))[1] == {}


def test_every_span_counts_not_only_the_oldest() -> None:
    sample = make_sample(1)
    spans = (VersionSpan(version=0, start=0, end=1), VersionSpan(version=1, start=1, end=len(sample.rollout_logprobs)))
    assert reason(make_sample(1, versions=spans), head=2, lineage=(2, 0)) == "no ancestor"


@given(st.lists(st.integers(1, 600), max_size=40), st.integers(1, 1024))
def test_micro_batches_hold_each_once_within_the_budget(lengths: list[int], budget: int) -> None:
    groups = micro_batches(lengths, budget)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or max(lengths[index] for index in group) * len(group) <= budget
    firsts = [lengths[group[0]] for group in groups]
    assert firsts == sorted(firsts, reverse=True)


def test_collate_points_one_before_each_response_token() -> None:
    batch = collate(
        [
            Scored(prompt_ids=(5, 6), response_ids=(7, 8, 9), temperature=0.5),
            Scored(prompt_ids=(4,), response_ids=(3,), temperature=1.0),
        ]
    )
    assert batch.token_ids_BS.tolist() == [[5, 6, 7, 8, 9], [4, 3, 0, 0, 0]]
    assert batch.row_N.tolist() == [0, 0, 0, 1]
    assert batch.column_N.tolist() == [1, 2, 3, 0]
    assert batch.target_N.tolist() == [7, 8, 9, 3]
    assert batch.temperature_N.tolist() == [0.5, 0.5, 0.5, 1.0]
    assert batch.lengths == (3, 1)


def test_greedy_is_scored_at_one() -> None:
    assert scoring_temperature(0.0) == 1.0 and scoring_temperature(0.6) == 0.6
    assert plain_sequence(make_sample(0)).temperature == 1.0


def test_targets_are_64_bit() -> None:
    assert collate([plain_sequence(make_sample(1))]).target_N.dtype == torch.int64


def test_settings_refuse_nonsense() -> None:
    with pytest.raises(ValueError, match="min_samples is 20"):
        BatchSettings(min_samples=20)
