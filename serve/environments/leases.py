"""Leases on environments: who holds one, until when, and what each step gave.

What it does: `LeaseTable` opens an environment for a lease, carries out its steps one at a time, answers a repeated
request with the first result, and ends what is over: leases whose deadline passed, holders that went silent,
environments that are stuck. It knows nothing of Ray or HTTP; `worker.py` and `http_server.py` put it there.
What it leaves out: who may have a lease, and when (`pool.py`).

Rules. A lease ends by its holder (`close`), at its deadline whatever it does, or `heartbeat_s` after the last sign of
its holder; while a request of it runs, it counts as alive. A step has an index: the same index again gives the first
result, also while it still runs; an index out of turn is refused. Where the environment fails, the lease keeps the
reason and gives it to every later request.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from serve.environments.protocol import Action, Environment, EnvironmentFailed, Observation, Outcome, StepResult
from serve.environments.tasks import Task, TaskError

CLOSE_S = 20.0  # for an environment to close, before it is let go of
LATE_S = 30.0  # beyond a step's own limit: then the environment is stuck
UNBEGUN_S = 900.0  # a lease without a task, where its holder named no deadline
MOST_S = 86400.0  # the longest lease
REMEMBERED = 1000  # ended leases whose reasons are kept


class LeaseLost(EnvironmentFailed):
    """The lease is over: the reason says why."""


class NoRoom(LeaseLost):
    """Every place is taken: it may be asked for again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """How long a lease lasts."""

    deadline_s: float | None = None  # from its beginning, whatever happens; None: what its task's episode may take
    heartbeat_s: float = 60.0  # after the last sign of its holder

    def __post_init__(self) -> None:
        for name in ("deadline_s", "heartbeat_s"):
            value = getattr(self, name)
            if value is None and name == "deadline_s":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST_S:
                raise ValueError(f"{name} is {value!r}: seconds above 0, and at most a day, are needed")

    def lasts_s(self, task: Task | None) -> float:
        """Seconds until the deadline of a lease that has begun this task, or none yet."""
        if self.deadline_s is not None:
            return self.deadline_s
        return min(task.limits.episode_s + 2 * LATE_S, MOST_S) if task is not None else UNBEGUN_S

    def answer_s(self, task: Task) -> float:
        """Seconds in which any request of such a lease is answered; after that its worker is lost."""
        return min(self.lasts_s(task), task.limits.episode_s) + LATE_S


@dataclass(slots=True)
class _Lease:
    lease_id: str
    track: str
    terms: LeaseTerms
    environment: Environment
    opened: float  # monotonic
    seen: float  # monotonic
    task: Task | None = None
    busy: int = 0
    failed: str | None = None
    replies: dict[Any, asyncio.Task] = field(default_factory=dict)  # "reset", "evaluate", step index -> its result
    next_step: int = 0
    last: asyncio.Task | None = None

    def overdue(self, now: float) -> str | None:
        """Why it has to end, or None."""
        if now - self.opened > (lasts_s := self.terms.lasts_s(self.task)):
            return f"its deadline of {lasts_s:g} s passed"
        if not self.busy and now - self.seen > self.terms.heartbeat_s:
            return f"its holder gave no sign for {self.terms.heartbeat_s:g} s"
        return None


class LeaseTable:
    """The leases of one process. Call `run` beside it: it ends what is over."""

    def __init__(self, make: Callable[[str], Environment], capacity: int, now: Callable[[], float] = time.monotonic):
        self._make, self._capacity, self._now = make, capacity, now
        self._leases: dict[str, _Lease] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()  # lease id -> why
        self._closing: set[asyncio.Task] = set()
        self.counts = {"opened": 0, "closed": 0, "reaped": 0, "failed": 0, "steps": 0, "repeated": 0}

    async def open(self, lease_id: str, track: str, terms: LeaseTerms) -> None:
        """Begin a lease, once there is room beside what is just ending. Opening one that is open changes nothing.

        Raises:
            LeaseLost: it was open before and has ended.
            NoRoom: every place is taken.
        """
        while len(self._leases) < self._capacity <= len(self._leases) + len(self._closing):
            await asyncio.wait(self._closing, return_when=asyncio.FIRST_COMPLETED)
        if lease_id in self._leases:
            return
        if lease_id in self._ended:
            raise LeaseLost(f"lease {lease_id} has ended: {self._ended[lease_id]}")
        if len(self._leases) >= self._capacity:
            raise NoRoom(f"no room for lease {lease_id}: all {self._capacity} places are taken")
        now = self._now()
        self._leases[lease_id] = _Lease(lease_id, track, terms, self._make(track), now, now)
        self.counts["opened"] += 1

    async def reset(self, lease_id: str, task: Task) -> Observation:
        """Begin the task; a repeated call gives the first observation.

        Raises:
            LeaseLost: the lease has ended.
            EnvironmentFailed: the environment can't begin.
            TaskError: the task is of another track, or another one than before.
        """
        lease = self._find(lease_id)
        if lease.task is not None and lease.task != task:
            which = "this is another" if lease.task.task_id != task.task_id else "this is another of the same id"
            raise TaskError(f"lease {lease_id} runs {lease.task.task_id!r}, {which}: one lease, one task")
        if task.track != lease.track:
            raise TaskError(f"{task.task_id!r} is a task of {task.track!r}, the lease is one of {lease.track!r}")
        lease.task = task
        try:
            return await self._once(lease, "reset", lambda: lease.environment.reset(task))
        except ValueError:  # nothing began: the same lease may be asked for a task that is whole
            lease.task = None
            lease.replies.pop("reset", None)
            raise

    async def step(self, lease_id: str, index: int, action: Action) -> StepResult:
        """Carry out step `index` (from 0); a repeated one gives the first result.

        Raises:
            LeaseLost: the lease has ended.
            EnvironmentFailed: the environment failed, now or before.
            ValueError: the index is out of turn, or nothing was begun.
        """
        lease = self._find(lease_id)
        self._begun(lease)
        if index not in lease.replies:
            if "evaluate" in lease.replies:
                raise ValueError(f"step {index} came after evaluate: the episode is over")
            if index != lease.next_step:
                raise ValueError(f"step {index} came, step {lease.next_step} is next")
            lease.next_step += 1
            self.counts["steps"] += 1
        return await self._once(lease, index, lambda: lease.environment.step(action))

    async def evaluate(self, lease_id: str) -> Outcome:
        """The outcome; a repeated call gives the first one.

        Raises:
            LeaseLost: the lease has ended.
            EnvironmentFailed: nothing could be evaluated.
            ValueError: nothing was begun.
        """
        lease = self._find(lease_id)
        self._begun(lease)
        return await self._once(lease, "evaluate", lease.environment.evaluate)

    def heartbeat(self, lease_id: str) -> float:
        """A sign of its holder; the seconds left until its deadline.

        Raises:
            LeaseLost: the lease has ended.
        """
        lease = self._find(lease_id)
        return lease.opened + lease.terms.lasts_s(lease.task) - self._now()

    async def close(self, lease_id: str, why: str = "it was closed by its holder") -> None:
        """End it: its holder need not wait until all it held has ended; who comes next may (`open`).

        Closing one that has ended, or never was, changes nothing.
        """
        if lease_id in self._leases:
            self.counts["closed"] += 1
            self._end(lease_id, why)

    async def close_all(self, why: str) -> None:
        """End all."""
        await asyncio.gather(*(self._end(lease_id, why) for lease_id in list(self._leases)), *self._closing)

    async def run(self, every_s: float = 0.5) -> None:
        """End what is over, for ever."""
        while True:
            await asyncio.sleep(every_s)
            self.reap()

    def reap(self) -> list[str]:
        """End the leases that are overdue; their ids."""
        now = self._now()
        over = {lease.lease_id: why for lease in self._leases.values() if (why := lease.overdue(now))}
        for lease_id, why in over.items():
            self.counts["reaped"] += 1
            self._end(lease_id, why)
        return list(over)

    def __len__(self) -> int:
        return len(self._leases)

    def live(self) -> dict[str, dict[str, Any]]:
        """Each lease's state, for people and for the pool."""
        now = self._now()
        return {
            lease.lease_id: {
                "track": lease.track, "task_id": lease.task.task_id if lease.task else None, "steps": lease.next_step,
                "age_s": now - lease.opened, "busy": lease.busy > 0, "failed": lease.failed,
            }
            for lease in self._leases.values()
        }  # fmt: skip

    def _find(self, lease_id: str) -> _Lease:
        if lease_id not in self._leases:
            raise LeaseLost(f"lease {lease_id} has ended: {self._ended.get(lease_id, 'nothing is known of it')}")
        lease = self._leases[lease_id]
        lease.seen = self._now()
        return lease

    def _begun(self, lease: _Lease) -> None:
        if "reset" not in lease.replies:
            raise ValueError(f"lease {lease.lease_id}: reset comes before anything else")

    async def _once(self, lease: _Lease, key: Any, do: Callable[[], Awaitable[Any]]) -> Any:
        """The first result of this request. Who asked may hang up: it goes on, and is there when asked again."""
        if key in lease.replies:
            self.counts["repeated"] += 1
        else:
            lease.replies[key] = lease.last = asyncio.create_task(self._in_turn(lease, lease.last, do))
        try:
            return await asyncio.shield(lease.replies[key])
        except asyncio.CancelledError:
            if lease.replies[key].cancelled():  # the lease was ended, not our caller
                raise LeaseLost(f"lease {lease.lease_id} has ended: {self._ended.get(lease.lease_id)}") from None
            raise
        finally:
            lease.seen = self._now()

    async def _in_turn(self, lease: _Lease, before: asyncio.Task | None, do: Callable[[], Awaitable[Any]]) -> Any:
        lease.busy += 1
        try:
            if before is not None:
                await asyncio.wait([before])
            if lease.failed is not None:
                raise EnvironmentFailed(lease.failed)
            limit = lease.task.limits.episode_s + LATE_S if lease.task else CLOSE_S
            async with asyncio.timeout(limit):
                return await do()
        except TimeoutError:
            self._fail(lease, f"the environment is stuck: no answer within {limit:g} s")
            raise EnvironmentFailed(lease.failed) from None
        except (TaskError, ValueError):
            raise
        except EnvironmentFailed as error:
            self._fail(lease, str(error) or type(error).__name__)
            raise
        except Exception as error:  # whatever an environment raises ends its own episode only
            self._fail(lease, f"the environment raised {type(error).__name__}: {error}")
            raise EnvironmentFailed(lease.failed) from error
        finally:
            lease.busy -= 1
            lease.seen = self._now()

    def _fail(self, lease: _Lease, why: str) -> None:
        if lease.failed is None:
            self.counts["failed"] += 1
            lease.failed = why

    def _end(self, lease_id: str, why: str) -> asyncio.Task:
        lease = self._leases.pop(lease_id)
        self._ended[lease_id] = lease.failed or why
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        closing = asyncio.create_task(self._shut(lease))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return closing

    async def _shut(self, lease: _Lease) -> None:
        for reply in lease.replies.values():
            reply.cancel()
        if lease.replies:
            await asyncio.wait(lease.replies.values(), timeout=CLOSE_S)
        with contextlib.suppress(Exception):  # nobody is left who could be told
            async with asyncio.timeout(CLOSE_S):
                await lease.environment.close()
