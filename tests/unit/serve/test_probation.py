"""Probation: weights that loop are found out, ordinary answers are not, and users who ask for repetition neither."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.probation import Probation, ProbationSettings, is_bad
from storage.records import Exchange, VersionSpan

SETTINGS = ProbationSettings()
GOOD, LOOP = tuple(range(40)), (5, 6, 7) * 20


def answer(ids: tuple[int, ...], version: int, finish: str = "stop") -> Exchange:
    return Exchange(
        exchange_id="x", tenant="owner", model="m", version=version, received_at=0.0, messages=[], tools=None,
        sampling={}, prompt_ids=(1,), response_ids=ids, response_logprobs=(-1.0,) * len(ids),
        version_spans=(VersionSpan(version=version, start=0, end=len(ids)),), answer=None, finish_reason=finish,
        latency_s=1.0, first_token_s=0.1, client="",
    )  # fmt: skip


@pytest.mark.parametrize(("ids", "bad"), [((), True), ((2,), True), (LOOP, True), (GOOD, False), ((1, 2, 3), False)])
def test_what_is_bad(ids: tuple[int, ...], bad: bool) -> None:
    assert is_bad(answer(ids, 1), SETTINGS) is bad


@given(st.lists(st.integers(0, 50_000), min_size=2, max_size=200, unique=True))
def test_no_answer_without_repetition_is_bad(ids: list[int]) -> None:
    assert not is_bad(answer(tuple(ids), 1), SETTINGS)


def test_looping_weights_fail_after_three_answers() -> None:
    probation = Probation(SETTINGS)
    for _ in range(10):
        assert not probation.watch(answer(GOOD, 0))
    probation.begin(1)
    assert [probation.watch(answer(LOOP, 1)) for _ in range(3)] == [False, False, True]


def test_a_good_version_stands_after_eight_answers_one_of_them_bad() -> None:
    probation = Probation(SETTINGS)
    probation.begin(1)
    for ids in (GOOD, LOOP, GOOD, GOOD, GOOD, GOOD, GOOD, GOOD):
        assert not probation.watch(answer(ids, 1))
    assert probation.version is None
    assert not probation.watch(answer(LOOP, 1))


def test_repetition_that_was_there_before_brings_nothing_down() -> None:
    probation = Probation(SETTINGS)
    for _ in range(8):
        probation.watch(answer(LOOP, 0))
    probation.begin(1)
    assert not any(probation.watch(answer(LOOP, 1)) for _ in range(20))


def test_answers_of_other_versions_and_aborted_ones_say_nothing() -> None:
    probation = Probation(SETTINGS)
    probation.begin(2)
    assert not any(probation.watch(answer(LOOP, 1)) for _ in range(9))
    assert not any(probation.watch(replace(answer(LOOP, 2), finish_reason="abort")) for _ in range(9))
    assert probation.version == 2


def test_answers_that_come_before_the_beginning_count() -> None:
    probation = Probation(SETTINGS)
    assert not any(probation.watch(answer(LOOP, 1)) for _ in range(4)), "version 1 serves, and nobody said so yet"
    assert probation.begin(1), "they say that it failed"
    probation.end()
    assert not any(probation.watch(answer(LOOP, 1)) for _ in range(4)), "answers that were under way"
    assert not probation.begin(2)
    assert [probation.watch(answer(LOOP, 2)) for _ in range(3)] == [False, False, True], "and did not count as before"


def test_good_answers_that_come_before_the_beginning_count_too() -> None:
    probation = Probation(SETTINGS)
    for _ in range(5):
        probation.watch(answer(GOOD, 3))
    assert not probation.begin(3) and probation.progress() == "v3: 5 of 8 answers watched, 0 bad"


def test_two_bad_answers_of_a_model_that_loops_now_and_then_bring_nothing_down() -> None:
    probation = Probation(SETTINGS)
    for ids in (GOOD,) * 9 + (LOOP,):
        probation.watch(answer(ids, 0))
    probation.begin(1)
    assert not any(probation.watch(answer(ids, 1)) for ids in (LOOP, LOOP, GOOD, GOOD, GOOD, LOOP, GOOD, GOOD))
    assert probation.version is None


@pytest.mark.parametrize(("often", "most"), [(0.1, 0.03), (0.2, 0.12)])
def test_how_often_a_version_like_the_one_before_is_taken_back(often: float, most: float) -> None:
    chance, failed = random.Random(5), 0
    for _ in range(1000):
        probation = Probation(SETTINGS)
        draws = [LOOP if chance.random() < often else GOOD for _ in range(24)]
        for ids in draws[:16]:
            probation.watch(answer(ids, 0))
        probation.begin(1)
        failed += any(probation.watch(answer(ids, 1)) for ids in draws[16:])
    assert failed / 1000 < most
