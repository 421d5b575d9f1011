"""The live learner over real stores: journal on disk, SeaweedFS, MLflow, the rules judge, the real renderer.

Only gateway and trainer are stood in for: what they write is made here (`Gateway`, `StandInTrainer`), so that minutes
of generation and training become milliseconds. The end-to-end tests have the real ones.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from infra.model import default_dir
from judge import JudgeInput, JudgeSettings, make_judge
from serve import live
from serve.batches import PoolSettings
from serve.lineage import Lineage
from serve.live import Learner, LiveSettings
from serve.probation import ProbationSettings
from serve.rendering import Renderer
from serve.sessions import Tracker
from storage.audit import audit
from storage.journal import JournalWriter
from storage.objects import ObjectStore, StoreSettings
from storage.records import Exchange, NextState, Sample, Update, Verdict, Version, VersionSpan, new_id
from storage.registry import Registry
from storage.versions import VersionStore
from train.trainer import StepResult

BAD = "No, that is wrong. Please start with the number."


class Gateway:
    """Journals exchanges as the real gateway does, with answers that are given to it."""

    def __init__(self, root: Path, model: str) -> None:
        self.model, self.renderer = model, Renderer(default_dir())
        self.journal = JournalWriter(root, model, "gateway-test")
        self.accepted: list[str] = []

    def answer(self, messages: list[dict], text: str, version: int = 0, *, ids: tuple[int, ...] | None = None) -> str:
        prompt = self.renderer.prompt_ids(messages)
        response = ids or self.renderer.prompt_ids([{"role": "user", "content": text}])[-12:]
        exchange = Exchange(
            exchange_id=new_id(), tenant="owner", model=self.model, version=version, received_at=time.time(),
            messages=messages, tools=None, sampling={"temperature": 1.0, "max_tokens": 64}, prompt_ids=prompt,
            response_ids=response, response_logprobs=(-1.0,) * len(response),
            version_spans=(VersionSpan(version=version, start=0, end=len(response)),),
            answer={"role": "assistant", "content": text}, finish_reason="stop", latency_s=0.1, first_token_s=0.05,
            client="test",
        )  # fmt: skip
        assert self.journal.append("exchange", exchange, version).result(10)
        self.accepted.append(exchange.exchange_id)
        return exchange.exchange_id

    def conversation(self, nonce: str, reply: str, version: int = 0) -> str:
        """A question, an answer, a reply to it: one judged turn. Returns its exchange id."""
        said = [{"role": "user", "content": f"What is two and three? ({nonce})"}]
        text = f"Well, {nonce}: it is five."
        first = self.answer(said, text, version)
        self.answer(
            [*said, {"role": "assistant", "content": text}, {"role": "user", "content": reply}], "I see.", version
        )
        return first


class StandInTrainer:
    """Commits versions as the real trainer does, one step at a time, with a few bytes for weights."""

    def __init__(self, versions: VersionStore, folder: Path) -> None:
        self.versions, self.folder = versions, folder
        self.outcome, self.steps, self.die_after_commit = "committed", 0, False
        self._one = threading.Lock()
        if versions.head() is None:
            self._commit(None, ())

    def _commit(self, parent: int | None, samples: tuple[str, ...]) -> Version:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "model.safetensors").write_bytes(new_id().encode())
        number, update_id = self.versions.next_number(), new_id()
        source, shards = self.versions.upload(number, update_id, self.folder)
        version = Version(
            model=self.versions.model, number=number, parent=parent, update_id=update_id, source=source, shards=shards,
            sample_ids=samples, metrics={"loss": 0.5}, fence=0, optimizer_from=None, created_at=time.time(),
        )  # fmt: skip
        self.versions.commit(version)
        return version

    def step(self, samples: list[Sample]) -> StepResult:
        with self._one:
            return self._step(samples)

    def _step(self, samples: list[Sample]) -> StepResult:
        head = self.versions.head()
        assert head is not None
        if {sample.sample_id for sample in samples} & self.versions.consumed(head.number):
            return StepResult(outcome="stale", reason="trained before")
        self.steps += 1
        if self.outcome == "skipped":
            return StepResult(outcome="skipped", reason="NaN in the loss")
        version = self._commit(head.number, tuple(sample.sample_id for sample in samples))
        if self.die_after_commit:
            raise OSError("the trainer died right after its commit")
        update = Update(
            update_id=version.update_id, model=version.model, from_version=head.number, to_version=version.number,
            sample_ids=version.sample_ids, metrics=version.metrics, started_at=0.0, ended_at=1.0,
        )  # fmt: skip
        return StepResult(outcome="committed", version=version, update=update)


class LocalParts:
    """The bare parts in place of Ray handles."""

    def __init__(self, trainer: StandInTrainer) -> None:
        self.trainer, self.judge_is_down, self.pokes = trainer, False, 0
        self._judge = make_judge(JudgeSettings())

    async def judge(self, item: JudgeInput) -> Verdict:
        if self.judge_is_down:
            raise OSError("connection refused")
        return await self._judge.judge(item)

    async def step(self, samples: list[Sample]) -> StepResult:
        return await asyncio.to_thread(self.trainer.step, samples)

    async def poke(self) -> None:
        self.pokes += 1

    def failures(self) -> tuple[type[BaseException], ...]:
        return (OSError,)


@dataclass
class World:
    """One model's stores, its gateway and its trainer; learners come and go."""

    settings: LiveSettings
    objects: ObjectStore
    gateway: Gateway
    parts: LocalParts
    registry: Registry

    def learner(self, **changes: Any) -> Learner:
        versions = VersionStore(self.objects, self.settings.model)
        lineage = Lineage(self.objects, versions, Registry(self.registry.uri, self.settings.model))
        return Learner(replace(self.settings, **changes), self.parts, lineage)

    def audit(self) -> Any:
        self.gateway.journal.close()
        return audit(self.settings.journal_root, self.settings.model, self.objects, expected=self.gateway.accepted)


@pytest.fixture
def world(tmp_path: Path, objects: ObjectStore, mlflow_uri: str) -> World:
    model = f"m-{new_id().lower()}"
    settings = LiveSettings(
        model=model, model_dir=default_dir(), journal_root=tmp_path / "journal", store=StoreSettings(url="s3://unused"),
        tracking_uri=mlflow_uri, pool=PoolSettings(batch_size=4, batch_least=2, batch_limit_s=600),
        probation=ProbationSettings(), follow_s=0.05, settle_s=0.1, keep_s=0.3, judge_retry_s=0.05,
    )  # fmt: skip
    trainer = StandInTrainer(VersionStore(objects, model), tmp_path / "weights")
    return World(
        settings, objects, Gateway(settings.journal_root, model), LocalParts(trainer), Registry(mlflow_uri, model)
    )


async def until(reached: Callable[[], Any], what: str, seconds: float = 20.0) -> None:
    limit = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < limit, f"waited {seconds} s for {what}"
        await asyncio.sleep(0.02)


class Running:
    """A learner that runs as long as the block; `killed` leaves without a goodbye."""

    def __init__(self, learner: Learner, killed: bool = False) -> None:
        self.learner, self.killed = learner, killed

    async def __aenter__(self) -> Learner:
        self.task = asyncio.create_task(self.learner.run())
        return self.learner

    async def __aexit__(self, *exc: object) -> None:
        if self.killed:
            self.task.cancel()
        else:
            self.learner.stop()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_a_full_batch_becomes_a_live_version(world: World) -> None:
    async with Running(world.learner()) as learner:
        for i in range(4):
            world.gateway.conversation(f"a{i}", BAD if i % 2 else "Perfect, thank you!")
        world.gateway.conversation("neutral", "What is the capital of France?")
        await until(lambda: learner.lineage.live == 1, "version 1 to be live")
        await until(lambda: learner.turns.ended.get("neutral"), "the neutral turn to end")
        await until(lambda: world.parts.pokes, "the policy to be told")
        status = learner.status()
    assert status["turns"]["trained"] == 4 and status["batch"]["waiting"] == 0
    assert world.registry.alias("live") == 1
    assert len(set(world.parts.trainer.versions.get(1).sample_ids)) == 4
    found = world.audit()
    assert found.ok, str(found)


async def test_killed_and_started_again_nothing_trains_twice(world: World) -> None:
    for i in range(3):
        world.gateway.conversation(f"b{i}", BAD)
    async with Running(world.learner(), killed=True) as learner:
        await until(lambda: len(learner.pool) == 3, "three samples")
    world.gateway.conversation("b3", BAD)
    async with Running(world.learner(), killed=True) as learner:
        await until(lambda: learner.lineage.live == 1, "version 1")
    async with Running(world.learner()) as learner:
        await until(lambda: learner.turns.trained == 4, "the past to be known")
        assert len(learner.pool) == 0 and world.parts.trainer.steps == 1
    found = world.audit()
    assert found.ok, str(found)


async def test_what_a_crash_left_after_the_commit_is_completed(world: World) -> None:
    world.parts.trainer.die_after_commit = True
    async with Running(world.learner(), killed=True) as learner:
        for i in range(4):
            world.gateway.conversation(f"c{i}", BAD)
        await until(lambda: world.parts.trainer.steps, "a step")
    world.parts.trainer.die_after_commit = False
    async with Running(world.learner()) as learner:
        await until(lambda: learner.lineage.live == 1, "version 1 to be registered and live")
        await asyncio.sleep(0.5)
        assert world.parts.trainer.steps == 1 and len(learner.pool) == 0
    assert world.registry.tags(1)["parent"] == "0"


async def test_feedback_is_stronger_than_the_reply(world: World) -> None:
    async with Running(world.learner()) as learner:
        turn = world.gateway.conversation("d0", "Perfect, thank you!")
        await until(lambda: learner.pool.of_exchange(turn), "a sample")
        assert learner.pool.of_exchange(turn).reward == 1
        thumb = NextState(
            next_state_id=new_id(), exchange_id=turn, role="feedback", content="thumb down", source_exchange_id=None,
            arrived_at=time.time(), score=-1.0,
        )  # fmt: skip
        world.gateway.journal.append("feedback", thumb, 0).result(10)
        await until(lambda: learner.pool.of_exchange(turn) and learner.pool.of_exchange(turn).reward == -1, "the thumb")
        assert len(learner.pool) == 1
    async with Running(world.learner()) as learner:
        await until(lambda: len(learner.pool) == 1, "the sample again")
        assert learner.pool.of_exchange(turn).reward == -1
    found = world.audit()
    assert found.ok, str(found)


async def test_looping_weights_are_taken_back(world: World) -> None:
    async with Running(world.learner()) as learner:
        for i in range(4):
            world.gateway.conversation(f"e{i}", BAD)
        await until(lambda: learner.lineage.live == 1, "version 1")
        for i in range(4):
            world.gateway.answer([{"role": "user", "content": f"hi {i}"}], "la la", 1, ids=(11, 12, 13) * 16)
        await until(lambda: learner.lineage.live == 0, "version 0 again")
        assert world.registry.alias("live") == 0
        assert "probation" in world.parts.trainer.versions.withdrawn()[1]
        assert any(alarm.source == "probation" for alarm in learner.alarms.active())
        for i in range(4):
            world.gateway.conversation(f"f{i}", BAD)
        await until(lambda: learner.lineage.live == 2, "version 2, on version 0")
    two = world.parts.trainer.versions.get(2)
    assert two.parent == 0 and not set(two.sample_ids) & set(world.parts.trainer.versions.get(1).sample_ids)


async def test_a_pin_pauses_and_its_end_branches(world: World) -> None:
    async with Running(world.learner()) as learner:
        for number in (1, 2):
            for i in range(4):
                world.gateway.conversation(f"g{number}{i}", BAD, number - 1)
            await until(lambda n=number: learner.lineage.live == n, f"version {number}")
        world.registry.set_alias("pinned", 1)
        await until(lambda: learner.lineage.pinned == 1 and learner.lineage.live == 1, "the pin")
        for i in range(5):
            world.gateway.conversation(f"h{i}", BAD, 1)
        await until(lambda: len(learner.pool) == 5, "five samples")
        await asyncio.sleep(0.3)
        assert world.parts.trainer.steps == 2, "learning pauses"
        world.registry.delete_alias("pinned")
        await until(lambda: learner.lineage.live == 3, "version 3")
    assert world.parts.trainer.versions.get(3).parent == 1
    assert 2 in world.parts.trainer.versions.withdrawn()


async def test_a_judge_that_is_down_is_no_verdict(world: World) -> None:
    world.parts.judge_is_down = True
    async with Running(world.learner(judge_retry_s=0.5)) as learner:
        turn = world.gateway.conversation("i0", BAD)
        await until(lambda: any(a.source == "judge" for a in learner.alarms.active()), "the alarm")
        world.parts.judge_is_down = False
        await until(lambda: learner.pool.of_exchange(turn), "the sample after all")
        world.parts.judge_is_down = True
        world.gateway.conversation("i1", BAD)
        await until(lambda: learner.turns.ended.get("unjudged") == 1, "the turn to be marked unjudged")
        assert len(learner.pool) == 1


async def test_samples_of_two_skipped_batches_are_quarantined(world: World) -> None:
    world.parts.trainer.outcome = "skipped"
    async with Running(world.learner()) as learner:
        for i in range(4):
            world.gateway.conversation(f"j{i}", BAD)
        await until(lambda: learner.turns.ended.get("quarantined") == 4, "quarantine")
        assert world.parts.trainer.steps == 2 and learner.lineage.live == 0
        assert any(alarm.source == "gate" for alarm in learner.alarms.active())
    found = world.audit()
    assert found.ok, str(found)


async def test_a_recovery_that_breaks_off_begins_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(2):
        world.gateway.conversation(f"r{i}", BAD)
    async with Running(world.learner(), killed=True) as learner:
        await until(lambda: len(learner.pool) == 2, "two samples")
    learner, restore, broken = world.learner(), Tracker.restore, []

    def breaks_once(self: Tracker, *given: Any) -> Any:
        if not broken:
            broken.append(1)
            raise OSError("a passing fault")
        return restore(self, *given)

    monkeypatch.setattr(Tracker, "restore", breaks_once)
    async with Running(learner):
        await until(lambda: learner.alarms.active(), "an alarm")
        assert "a passing fault" in learner.alarms.active()[0].text
        await until(lambda: len(learner.pool) == 2 and not learner.alarms.active(), "both samples to be back")
        world.gateway.conversation("r2", BAD)
        world.gateway.conversation("r3", BAD)
        await until(lambda: learner.lineage.live == 1, "version 1")
    assert world.audit().ok


async def test_one_turn_that_cannot_be_judged_stops_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = live.question_of
    monkeypatch.setattr(live, "question_of", lambda messages: real(messages) if "j0" not in str(messages) else 1 / 0)
    monkeypatch.setattr(world, "settings", replace(world.settings, judge_at_once=1))
    async with Running(world.learner()) as learner:
        world.gateway.conversation("j0", BAD)
        for i in range(1, 5):
            world.gateway.conversation(f"j{i}", BAD)
        await until(lambda: learner.lineage.live == 1, "version 1, of the four others")
        assert learner.turns.ended["unjudged"] == 1
    assert world.audit().ok
