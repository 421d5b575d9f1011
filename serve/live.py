"""The live learner: personal traffic becomes better weights, without waves and without a pause in serving.

    journal ─▶ tracker ─▶ judge ─▶ sample ─▶ pool ─▶ trainer ─▶ version ─▶ live

One process per model. What it leaves out: serving (it reads what the gateways journal, and never stands in a request's
way), the mathematics (`train/`) and what a next state says (`judge/`). All it knows can be read again from the journal
and the committed versions: kill it at any moment, and the next one goes on where it stood.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from judge import JudgeInput
from serve.alarms import Alarms
from serve.batches import Pool, PoolSettings
from serve.lineage import Lineage
from serve.messages import question_of, text_of
from serve.probation import Probation, ProbationSettings
from serve.rendering import Renderer
from serve.replay import SUPERSEDED, Past, replay
from serve.samples import SampleSettings, make_sample
from serve.sessions import Tracker, TrackerSettings
from serve.turns import TurnBook
from storage import dataset
from storage.journal import JournalEvent, JournalTail, JournalWriter, open_versions
from storage.objects import StoreSettings
from storage.records import Disposition, Exchange, NextState, Sample, Turn, Update, Verdict, new_id

log = logging.getLogger("clawrl.live")


@dataclass(frozen=True, kw_only=True)
class LiveSettings:
    """The learner of one model on one machine."""

    model: str
    model_dir: Path
    journal_root: Path
    store: StoreSettings
    tracking_uri: str
    tracker: TrackerSettings = field(default_factory=TrackerSettings)
    samples: SampleSettings = field(default_factory=SampleSettings)
    pool: PoolSettings = field(default_factory=PoolSettings)
    probation: ProbationSettings = field(default_factory=ProbationSettings)
    template: str | None = None
    learning: bool = True  # off: judge and record only
    judge_at_once: int = 8  # turns judged at the same time
    judge_tries: int = 3  # before a turn is marked unjudged
    judge_retry_s: float = 5.0  # doubled each time
    follow_s: float = 0.2  # how often the journal is looked at
    settle_s: float = 2.0  # how often aliases are
    keep_s: float = 20.0  # how often versions are sealed and pruned
    keep_last: int = 3  # versions whose weights are kept


class Parts(Protocol):
    """What the learner calls: Ray handles in service, the bare parts in tests."""

    async def judge(self, item: JudgeInput) -> Verdict: ...
    async def step(self, samples: list[Sample]) -> Any: ...
    async def poke(self) -> None: ...
    def failures(self) -> tuple[type[BaseException], ...]: ...


class Learner:
    """Four loops over one state, all in one asyncio loop; what blocks runs in threads."""

    def __init__(self, settings: LiveSettings, parts: Parts, lineage: Lineage) -> None:
        self.settings, self.parts, self.lineage = settings, parts, lineage
        self.alarms = Alarms()
        self.journal = JournalWriter(
            settings.journal_root, settings.model, "learner", on_alarm=lambda text: self.alarms.raise_("journal", text)
        )
        self.renderer = Renderer(settings.model_dir, settings.template)
        self.judged = 0
        self.training_since: float | None = None
        self.last_update: dict[str, Any] | None = None
        self._begin()
        self._reading = threading.Lock()
        self._stop = asyncio.Event()

    def _begin(self) -> None:
        """Know nothing yet. A recovery that broke off begins here again: nothing of the journal is passed over."""
        settings = self.settings
        self.tail = JournalTail(settings.journal_root, settings.model)
        self.tracker = Tracker(settings.tracker, train_cut_answers=settings.samples.train_cut_answers)
        self.turns, self.pool = TurnBook(), Pool(settings.pool)
        self.probation = Probation(settings.probation)
        self.to_judge: asyncio.Queue[NextState] = asyncio.Queue()  # bounded by the open turns; its length is the lag
        self._sample_of: dict[str, str] = {}  # sample id -> exchange id, for samples that are not consumed yet
        self._unread: deque[JournalEvent] = deque()

    async def run(self) -> None:
        """Recover, then learn until `stop()`."""
        await self._until_it_works(self.recover, "recovery")
        judges = [self.judge_turns() for _ in range(self.settings.judge_at_once)]
        loops = [
            self._every(self.settings.follow_s, self.follow, "follow"),
            self._every(self.settings.settle_s, self.settle, "versions"),
            self._every(self.settings.follow_s, self.learn, "learn"),
            self._every(self.settings.keep_s, self.keep, "keep"),
        ]
        tasks = [asyncio.ensure_future(loop) for loop in (*judges, *loops)]
        try:
            await self._stop.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self.journal.close)

    def stop(self) -> None:
        """End the loops; what is open is picked up from the journal next time."""
        self._stop.set()

    # ------------------------------------------------------------------ the way of a turn

    async def recover(self) -> None:
        """Replay the open segments: turns, pending judgements and untrained samples come back."""
        self._begin()
        await asyncio.to_thread(self.lineage.settle)
        events = await asyncio.to_thread(self.tail.poll)
        past = replay(events)
        for event in events:
            if event.kind == "alarm":
                self._hear_alarm(event)
        head = self.lineage.head.number if self.lineage.head else 0
        failed = bool(head) and self.lineage.live == head and self.probation.begin(head)
        for exchange in past.exchanges:
            self.turns.put(exchange)
            failed = self.probation.watch(exchange) or failed
        for disposition in past.ended:
            self.turns.end(disposition)
        for sample in past.samples:
            self._resume_sample(sample)
        for next_state in past.next_states:
            self._resume_next_state(next_state, past)
        self._take(self.tracker.restore(events, time.time()))
        if failed:
            await self._take_back()
        log.info(
            "recovered: %d turns open, %d to judge, %d samples", self.turns.open, self.to_judge.qsize(), len(self.pool)
        )

    async def follow(self) -> None:
        """What the gateways journaled since: which turn it is, what it follows."""
        await asyncio.to_thread(self._read_journal)
        while self._unread:
            await self._take_event(self._unread.popleft())
        self._take(self.tracker.tick(time.time()))

    async def judge_turns(self) -> None:
        """One of several that judge at the same time."""
        while True:
            next_state = await self.to_judge.get()
            exchange = self.turns.get(next_state.exchange_id)
            if exchange is None:
                continue
            try:
                await self._judge(exchange, next_state)
            except Exception as fault:  # boundary: one turn that can't be judged must not end the judging
                log.exception("turn %s can't be judged", exchange.exchange_id)
                self._dispose(
                    [
                        Disposition(
                            exchange_id=exchange.exchange_id, sample_id=None, reason="unjudged",
                            detail=f"judging it failed: {type(fault).__name__}: {fault}"[:500], decided_at=time.time(),
                        )
                    ]
                )  # fmt: skip

    async def _judge(self, exchange: Exchange, next_state: NextState) -> None:
        item = JudgeInput(
            exchange_id=exchange.exchange_id,
            question=question_of(exchange.messages),
            answer=text_of(exchange.answer.get("content")) if exchange.answer else "",
            next_state=next_state,
        )
        self._made(await self._verdict(item), exchange.version)

    async def learn(self) -> None:
        """A step as soon as a batch is due; the parent is always the head."""
        if not self.settings.learning or self.lineage.pinned is not None or self.lineage.head is None:
            return
        now = time.time()
        self._dispose(self.pool.expire(self.lineage.head.number, self.lineage.lineage, now))
        batch = self.pool.due(now)
        if not batch:
            return
        self.training_since = now
        try:
            result = await self.parts.step(batch)
        finally:
            self.training_since = None
            await asyncio.to_thread(self.lineage.refresh)  # it may have committed before it failed
            self._settle_consumed()
        self.alarms.clear("trainer")
        await self._after_step(batch, result)

    async def settle(self) -> None:
        """Follow the aliases that people set, finish what a crash left undone."""
        before = self.lineage.head.number if self.lineage.head else None
        await asyncio.to_thread(self.lineage.settle)
        if self.lineage.head is not None and before != self.lineage.head.number:
            self._settle_consumed()
        if self.probation.version is not None and self.probation.version not in self.lineage.lineage:
            self.probation.end()  # somebody branched from an earlier version

    async def keep(self) -> None:
        """Seal finished versions into Parquet, delete weights that nobody needs."""
        head = self.lineage.head.number if self.lineage.head else 0
        root, model = self.settings.journal_root, self.settings.model
        for version in open_versions(root, model):
            finished = version < head and not self.turns.open_in(version)
            if finished or version < head - self.settings.pool.max_version_lag:
                await asyncio.to_thread(
                    dataset.seal, root, model, version, self.lineage.objects, on_frozen=self._read_journal
                )
        await asyncio.to_thread(self.lineage.prune)
        if self.journal.healthy:
            self.alarms.clear("journal")

    # ------------------------------------------------------------------ hand-overs

    def _read_journal(self) -> None:
        """Read what is new. The sealer calls it too, when segments take no more and are not yet removed."""
        with self._reading:
            self._unread.extend(self.tail.poll())

    async def _take_event(self, event: JournalEvent) -> None:
        now = time.time()
        if event.kind == "exchange":
            exchange: Exchange = event.record
            self.turns.put(exchange)
            self._take(self.tracker.ingest(exchange, now))
            if self.probation.watch(exchange):
                await self._take_back()
        elif event.kind == "feedback":
            self._take(self.tracker.feedback(event.record, now))
        elif event.kind == "session_done":
            self._take(self.tracker.session_done(event.record["tenant"], event.record["session_id"], now))
        elif event.kind == "alarm":
            self._hear_alarm(event)

    def _hear_alarm(self, event: JournalEvent) -> None:
        """Lines of the journal that can't be read are for somebody to look at; other alarms their own parts show."""
        if event.record.get("source") == "journal" and "can't be read" in str(event.record.get("text")):
            self.alarms.raise_("journal lines", str(event.record["text"]))

    def _take(self, made: list[Turn | NextState | Disposition]) -> None:
        for record in made:
            version = self.turns.version(record.exchange_id)
            if isinstance(record, Turn):
                self.journal.append("turn", record, record.version)
            elif isinstance(record, Disposition):
                self._dispose([record])
            elif version is None:  # of a turn that is finished: kept for people, not judged
                source = self.turns.version(record.source_exchange_id or "")
                self.journal.append("next_state", record, self.lineage.live or 0 if source is None else source)
            else:
                self.journal.append("next_state", record, version)
                if self.turns.decide_by(record.exchange_id, record.next_state_id, feedback=record.role == "feedback"):
                    self.to_judge.put_nowait(record)

    async def _verdict(self, item: JudgeInput) -> Verdict:
        """A verdict, after retries where the judge failed; its `error` says why there is none."""
        wait_s = self.settings.judge_retry_s
        for attempt in range(1, self.settings.judge_tries + 1):
            try:
                verdict = await self.parts.judge(item)
            except self.parts.failures() as fault:  # boundary: the judge deployment is down or restarting
                verdict = _no_verdict(item, f"the judge can't be reached: {fault}"[:500])
            if verdict.reward is not None or verdict.hint is not None:
                self.alarms.clear("judge")
                return verdict
            self.alarms.raise_("judge", f"{verdict.error} (turn {item.exchange_id})")
            if attempt < self.settings.judge_tries:
                await asyncio.sleep(wait_s)
                wait_s *= 2
        return verdict

    def _made(self, verdict: Verdict, version: int) -> None:
        self.judged += 1
        self.journal.append("verdict", verdict, version)
        self._make_sample(verdict)

    def _make_sample(self, verdict: Verdict) -> None:
        exchange = self.turns.get(verdict.exchange_id)
        if exchange is None or not self.turns.decides(verdict.exchange_id, verdict.next_state_id):
            return
        if not self._make_way(exchange):
            return
        made = make_sample(exchange, verdict, self.renderer, self.settings.samples, time.time())
        if isinstance(made, Disposition):
            self._dispose([made])
            return
        self.journal.append("sample", made, exchange.version)
        self._sample_of[made.sample_id] = made.exchange_id
        self.pool.add(made)

    def _make_way(self, exchange: Exchange) -> bool:
        """Feedback is the strongest next state: a sample of a weaker one makes way, unless it is in training now."""
        waiting = self.pool.of_exchange(exchange.exchange_id)
        if waiting is None:
            return True
        if self.training_since is not None:
            return False
        self.pool.remove([waiting.sample_id])
        self._sample_of.pop(waiting.sample_id, None)
        gone = Disposition(
            exchange_id=exchange.exchange_id, sample_id=waiting.sample_id, reason=SUPERSEDED,
            detail="feedback came for the same answer", decided_at=time.time(),
        )  # fmt: skip
        self.journal.append("disposition", gone, exchange.version)
        return True

    def _dispose(self, dispositions: list[Disposition]) -> None:
        for disposition in dispositions:
            version = self.turns.version(disposition.exchange_id)
            if version is None:
                continue
            self.journal.append("disposition", disposition, version)
            self.turns.end(disposition)
            if disposition.sample_id is not None:
                self._sample_of.pop(disposition.sample_id, None)

    def _resume_sample(self, sample: Sample) -> None:
        self._sample_of[sample.sample_id] = sample.exchange_id
        if sample.sample_id in self.lineage.consumed:
            self.turns.train(self._sample_of.pop(sample.sample_id))
        else:
            self.pool.add(sample)

    def _resume_next_state(self, next_state: NextState, past: Past) -> None:
        feedback = next_state.role == "feedback"
        if not self.turns.decide_by(next_state.exchange_id, next_state.next_state_id, feedback=feedback):
            return
        verdict = past.verdicts.get(next_state.next_state_id)
        if verdict is None:
            self.to_judge.put_nowait(next_state)
        elif self.pool.of_exchange(next_state.exchange_id) is None:
            self._make_sample(verdict)

    def _settle_consumed(self) -> None:
        """Take out of the pool what the head's lineage consumed."""
        done = [sample_id for sample_id in self._sample_of if sample_id in self.lineage.consumed]
        self.pool.remove(done)
        for sample_id in done:
            self.turns.train(self._sample_of.pop(sample_id))

    # ------------------------------------------------------------------ after a step

    async def _after_step(self, batch: list[Sample], result: Any) -> None:
        now = time.time()
        self._dispose(
            [
                Disposition(
                    exchange_id=s.exchange_id,
                    sample_id=s.sample_id,
                    decided_at=now,
                    reason=str(result.left_out[s.sample_id]).split(":")[0],
                    detail=str(result.left_out[s.sample_id]),
                )
                for s in self.pool.remove(result.left_out)
            ]
        )
        if result.outcome == "committed":
            await self._publish(result.update)
        elif result.outcome == "skipped":
            self.alarms.raise_("gate", f"a step was skipped: {result.reason}")
            self._dispose(self.pool.skipped([s.sample_id for s in batch], result.reason or "skipped", now))

    async def _publish(self, update: Update) -> None:
        """Journal entry, MLflow, alias, swap. Whatever of it fails is done by the next `settle`."""
        self.journal.append("update", update, update.from_version)
        self.last_update = asdict(replace(update, sample_ids=()))
        await asyncio.to_thread(self.lineage.settle)
        self.alarms.clear("gate")
        if self.probation.begin(update.to_version):
            await self._take_back()  # which pokes
        else:
            await self.parts.poke()

    async def _take_back(self) -> None:
        """The version on probation failed: the one before comes back. Its samples are not trained again."""
        bad, why = self.probation.version, f"failed its probation: {self.probation.progress()}"
        self.probation.end()
        if bad is None:
            return
        self.alarms.raise_("probation", f"version {bad} {why}; the version before serves again")
        await asyncio.to_thread(self.lineage.take_back, bad, why)
        await self.parts.poke()

    # ------------------------------------------------------------------ running

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]], name: str) -> None:
        while True:
            began = time.monotonic()
            await self._until_it_works(work, name)
            await asyncio.sleep(max(0.0, seconds - (time.monotonic() - began)))

    async def _until_it_works(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        wait_s = 1.0
        while True:
            try:
                await work()
            except asyncio.CancelledError:
                raise
            except Exception as fault:  # boundary: a loop of the learner outlives every fault, and says so
                log.exception("%s failed", name)
                self.alarms.raise_(name, f"{type(fault).__name__}: {fault}")
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, 15.0)
            else:
                self.alarms.clear(name)
                return

    def status(self) -> dict[str, Any]:
        """For `clawrl status`: plain data."""
        full = self.settings.pool.batch_size
        return {
            "head": self.lineage.head.number if self.lineage.head else None,
            "live": self.lineage.live,
            "pinned": self.lineage.pinned,
            "batch": {"waiting": len(self.pool), "size": full},
            "training_since": self.training_since,
            "turns": {"accepted": self.turns.accepted, "open": self.turns.open, "trained": self.turns.trained},
            "not_trained": dict(self.turns.ended.most_common()),
            "judge": {"waiting": self.to_judge.qsize(), "judged": self.judged},
            "sessions": self.tracker.snapshot(),
            "probation": self.probation.progress(),
            "last_update": self.last_update,
            "template": str(self.renderer.probe()),
            "alarms": [asdict(alarm) for alarm in self.alarms.active()],
        }


def _no_verdict(item: JudgeInput, error: str) -> Verdict:
    return Verdict(
        verdict_id=new_id(), exchange_id=item.exchange_id, next_state_id=item.next_state.next_state_id, evaluative=(),
        reward=None, directive=(), hint=None, chosen_by=None, judge="none", prompt_version="none", latency_s=0.0,
        error=error, judged_at=time.time(),
    )  # fmt: skip
