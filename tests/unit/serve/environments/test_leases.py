"""Leases: idempotent steps, deadlines, silence, failures; the clock is the test's."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.environments.fair_queue import FairQueue
from serve.environments.leases import LeaseLost, LeaseTable, LeaseTerms
from serve.environments.protocol import Action, EnvironmentFailed
from serve.environments.tasks import TaskError
from tests.unit.serve.environments.stand_in import EnvironmentStandIn, task

TERMS = LeaseTerms(deadline_s=100, heartbeat_s=10)


class Bench:
    """A table of one stand-in, and its clock."""

    def __init__(self, capacity: int = 2) -> None:
        self.now = 0.0
        self.made: list[EnvironmentStandIn] = []
        self.table = LeaseTable(self._make, capacity, now=lambda: self.now)

    def _make(self, track: str) -> EnvironmentStandIn:
        self.made.append(EnvironmentStandIn())
        return self.made[-1]

    async def begin(self, lease_id: str = "a") -> EnvironmentStandIn:
        await self.table.open(lease_id, "terminal", TERMS)
        await self.table.reset(lease_id, task())
        return self.made[-1]


def act(text: str) -> Action:
    return Action(text=text)


async def test_a_repeated_step_gives_the_first_result_and_is_not_done_twice() -> None:
    bench = Bench()
    environment = await bench.begin()
    first = await bench.table.step("a", 0, act("x"))
    assert await bench.table.step("a", 0, act("something else")) == first
    assert environment.steps == ["x"]
    assert bench.table.counts["repeated"] == 1


async def test_a_step_repeated_while_it_runs_is_done_once() -> None:
    bench = Bench()
    environment = await bench.begin()
    one, two = await asyncio.gather(bench.table.step("a", 0, act("slow")), bench.table.step("a", 0, act("slow")))
    assert one == two
    assert environment.steps == ["slow"]


async def test_who_hangs_up_does_not_end_the_step() -> None:
    bench = Bench()
    environment = await bench.begin()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await bench.table.step("a", 0, act("slow"))
    assert (await bench.table.step("a", 0, act("slow"))).observation.text == "step 1"
    assert environment.steps == ["slow"]


@pytest.mark.parametrize("index", [1, 5, -1])
async def test_a_step_out_of_turn_is_refused(index: int) -> None:
    bench = Bench()
    await bench.begin()
    with pytest.raises(ValueError, match="step 0 is next"):
        await bench.table.step("a", index, act("x"))


async def test_steps_run_one_after_the_other_even_if_sent_together() -> None:
    bench = Bench()
    environment = await bench.begin()
    await asyncio.gather(bench.table.step("a", 0, act("slow")), bench.table.step("a", 1, act("x")))
    assert environment.steps == ["slow", "x"]


async def test_nothing_runs_before_reset() -> None:
    bench = Bench()
    await bench.table.open("a", "terminal", TERMS)
    with pytest.raises(ValueError, match="reset comes before"):
        await bench.table.step("a", 0, act("x"))
    with pytest.raises(ValueError, match="reset comes before"):
        await bench.table.evaluate("a")


async def test_a_lease_takes_one_task_of_its_track() -> None:
    bench = Bench()
    await bench.begin()
    with pytest.raises(TaskError, match="one lease, one task"):
        await bench.table.reset("a", task("other"))
    await bench.table.open("b", "gui", TERMS)
    with pytest.raises(TaskError, match="the lease is one of 'gui'"):
        await bench.table.reset("b", task())


@pytest.mark.parametrize(("what", "reason"), [("fail", "the sandbox died"), ("raise", "RuntimeError: a fault of ours")])
async def test_a_failure_is_kept_and_given_to_every_later_request(what: str, reason: str) -> None:
    bench = Bench()
    await bench.begin()
    with pytest.raises(EnvironmentFailed, match=reason):
        await bench.table.step("a", 0, act(what))
    with pytest.raises(EnvironmentFailed, match=reason):
        await bench.table.step("a", 1, act("x"))
    with pytest.raises(EnvironmentFailed, match=reason):
        await bench.table.evaluate("a")
    assert bench.table.counts["failed"] == 1


async def test_silence_ends_a_lease_and_a_sign_keeps_it() -> None:
    bench = Bench()
    environment = await bench.begin()
    bench.now = 9
    assert bench.table.heartbeat("a") == 91
    bench.now = 18
    assert bench.table.reap() == []
    bench.now = 19.5
    assert bench.table.reap() == ["a"]
    with pytest.raises(LeaseLost, match="no sign for 10 s"):
        await bench.table.step("a", 0, act("x"))
    await asyncio.sleep(0.01)
    assert environment.closed == 1


async def test_one_that_is_busy_is_not_dropped_for_silence() -> None:
    bench = Bench()
    await bench.begin()
    running = asyncio.create_task(bench.table.step("a", 0, act("slow")))
    await asyncio.sleep(0.02)
    bench.now = 50
    assert bench.table.reap() == []
    assert (await running).observation.text == "step 1"


async def test_the_deadline_ends_even_a_busy_one_and_its_holder_is_told() -> None:
    bench = Bench()
    environment = await bench.begin()
    running = asyncio.create_task(bench.table.step("a", 0, act("hang")))
    await asyncio.sleep(0.02)
    bench.now = 101
    assert bench.table.reap() == ["a"]
    with pytest.raises(LeaseLost, match="deadline of 100 s passed"):
        await running
    await asyncio.sleep(0.01)
    assert environment.closed == 1


async def test_close_is_idempotent_and_frees_the_place() -> None:
    bench = Bench(capacity=1)
    environment = await bench.begin()
    with pytest.raises(LeaseLost, match="all 1 places are taken"):
        await bench.table.open("b", "terminal", TERMS)
    await bench.table.close("a")
    await bench.table.close("a")
    await bench.table.close("never there")
    await bench.table.open("b", "terminal", TERMS)
    assert environment.closed == 1
    with pytest.raises(LeaseLost, match="closed by its holder"):
        await bench.table.open("a", "terminal", TERMS)


async def test_a_holder_need_not_wait_until_all_has_ended_but_the_next_one_does() -> None:
    bench = Bench(capacity=1)
    environment = await bench.begin()
    ending = asyncio.Event()
    environment.close = ending.wait  # type: ignore[method-assign]
    await bench.table.close("a")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(bench.table.open("b", "terminal", TERMS), 0.05)
    assert len(bench.made) == 1
    ending.set()
    await bench.table.open("b", "terminal", TERMS)
    assert len(bench.made) == 2


async def test_evaluate_is_done_once() -> None:
    bench = Bench()
    environment = await bench.begin()
    outcome = await bench.table.evaluate("a")
    environment.steps.append("later")
    assert await bench.table.evaluate("a") == outcome
    assert outcome.score == -1


async def test_without_a_deadline_of_its_own_a_lease_lasts_as_long_as_its_task_may_take() -> None:
    bench = Bench()
    await bench.table.open("a", "terminal", LeaseTerms())
    assert bench.table.heartbeat("a") == 900
    await bench.table.reset("a", task())  # episode_s 20, and 30 s twice
    assert bench.table.heartbeat("a") == 80
    bench.now = 50
    bench.table.heartbeat("a")
    bench.now = 81
    assert bench.table.reap() == ["a"]
    assert LeaseTerms(deadline_s=7).lasts_s(task()) == 7


@pytest.mark.parametrize("value", [0, -1, "5", True, float("nan"), 1e9])
def test_terms_are_checked(value: object) -> None:
    with pytest.raises(ValueError, match="deadline_s"):
        LeaseTerms(deadline_s=value)


def test_owners_take_turns_however_many_one_of_them_asked_for() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "a3"):
        queue.push("a", item)
    queue.push("b", "b1")
    assert [queue.pop() for _ in range(4)] == ["a1", "b1", "a2", "a3"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=40))
def test_the_queue_loses_nothing_and_keeps_each_owners_order(asked: list[tuple[str, int]]) -> None:
    queue: FairQueue[tuple[str, int, int]] = FairQueue()
    for number, (owner, value) in enumerate(asked):
        queue.push(owner, (owner, number, value))
    popped = [queue.pop() for _ in range(len(queue))]
    assert sorted(number for _, number, _ in popped) == list(range(len(asked)))
    for owner in "abc":
        numbers = [number for one, number, _ in popped if one == owner]
        assert numbers == sorted(numbers)
    rounds = [one for one, _, _ in popped]
    for at in range(len(rounds) - 1):  # the same owner twice in a row: nobody else waits any more
        if rounds[at] == rounds[at + 1]:
            assert set(rounds[at:]) == {rounds[at]}


async def test_after_a_task_that_was_refused_the_same_lease_takes_one_that_is_whole() -> None:
    bench = Bench()
    await bench.table.open("a", "terminal", TERMS)
    bench.made[-1].reset = _refuses  # type: ignore[method-assign]
    with pytest.raises(TaskError, match="checks"):
        await bench.table.reset("a", task("broken"))
    del bench.made[-1].reset
    assert (await bench.table.reset("a", task("whole"))).text == "begun"


async def _refuses(given: object) -> None:
    raise TaskError("checks are missing")
