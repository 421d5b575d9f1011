"""The pool: when a batch is due, what leaves it and why."""

import pytest

from serve.batches import Pool, PoolSettings
from storage.records import Sample, VersionSpan


def sample(name: str, *, at: float = 0.0, version: int = 3, reward: float | None = 1.0) -> Sample:
    return Sample(
        sample_id=name, exchange_id=f"x-{name}", tenant="owner", track="personal", token_ids=(1, 2, 3, 4),
        mask=(0, 0, 1, 1), rollout_logprobs=(-1.0, -2.0), temperature=1.0,
        versions=(VersionSpan(version=version, start=0, end=2),), reward=reward, hint=None, enhanced_prompt_ids=None,
        group_id=None, step_index=None, kl_weight=0.0, loss_weight=1.0, created_at=at,
    )  # fmt: skip


def pool(count: int, **settings: float) -> Pool:
    made = Pool(PoolSettings(batch_size=16, **settings))
    for i in range(count):
        made.add(sample(f"s{i:02}", at=float(i)))
    return made


def test_full_batch_oldest_first() -> None:
    full = pool(18)
    assert [s.sample_id for s in full.due(100.0)] == [f"s{i:02}" for i in range(16)]
    assert all(s.loss_weight == 1.0 for s in full.due(100.0))
    assert pool(15).due(100.0) == []


def test_a_timer_takes_at_least_four() -> None:
    assert pool(4, batch_limit_s=60).due(59.9) == []
    due = pool(4, batch_limit_s=60).due(60.0)
    assert [s.sample_id for s in due] == ["s00", "s01", "s02", "s03"]
    assert pool(3, batch_limit_s=60).due(1e6) == []


def test_old_ones_and_other_branches_leave_with_a_reason() -> None:
    made = Pool(PoolSettings(max_version_lag=8))
    for name, version in (("old", 1), ("edge", 2), ("other", 9), ("new", 10)):
        made.add(sample(name, version=version))
    gone = made.expire(head=10, lineage=[0, 1, 2, 3, 10], now=5.0)
    assert {d.sample_id: d.reason for d in gone} == {"old": "too old", "other": "other branch"}
    assert len(made) == 2 and "edge" in made and "new" in made


def test_two_skips_are_quarantine() -> None:
    made = pool(2)
    assert made.skipped(["s00"], "NaN", 1.0) == []
    assert [d.sample_id for d in made.skipped(["s00", "s01"], "NaN", 2.0)] == ["s00"]
    assert len(made) == 1


def test_what_carries_nothing_is_never_let_in() -> None:
    with pytest.raises(AssertionError):
        pool(0).add(sample("zero", reward=0.0))


def test_the_same_sample_twice_is_one() -> None:
    made = pool(1)
    made.add(sample("s00"))
    assert len(made) == 1
