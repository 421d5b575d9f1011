"""The policy follows aliases whatever happens around it. Engine and store are stand-ins; the real: tests/contract."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from serve.engine_client import EngineError
from serve.policy import Policy, PolicySettings, Weights, base_weights


class StandInEngineProcess:
    """Starts at once; can refuse weights, and die."""

    def __init__(self) -> None:
        self.alive = False
        self.url, self.pid, self.log_path = "http://127.0.0.1:1", 1, None
        self.started: list[tuple[str, int]] = []
        self.loaded: list[int] = []
        self.refuse: set[int] = set()
        self.client = self

    async def start(self, path: str, version: int) -> float:
        self.alive = True
        self.started.append((path, version))
        return 0.0

    async def load(self, path: str, version: int) -> None:
        if version in self.refuse:
            raise EngineError("does not fit")
        self.loaded.append(version)

    def kill(self) -> None:
        self.alive = False

    async def stop(self) -> None:
        self.alive = False

    async def close(self) -> None:
        self.alive = False


class StandInSource:
    """An alias in memory."""

    def __init__(self, folder: Path) -> None:
        self.alias: int | None = None
        self.down = False
        self.gone: set[int] = set()
        self._folder = folder

    def wanted(self) -> int | None:
        if self.down:
            raise ConnectionError("MLflow is down")
        return self.alias

    def fetch(self, number: int) -> Weights:
        if number in self.gone:
            raise ValueError("pruned")
        return Weights(number, str(self._folder), {"model.safetensors": f"hash-{number}"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    return model


def settings(folder: Path) -> PolicySettings:
    weights = folder.parent / "weights"
    return PolicySettings(model="m", base_model_dir=str(folder), weights_dir=str(weights), poll_s=0.02)


@pytest.fixture
async def policy(folder: Path) -> AsyncIterator[Any]:
    alarms: list[str] = []
    made = Policy(settings(folder), StandInSource(folder), alarms.append)
    made.engine = StandInEngineProcess()  # type: ignore[assignment]
    made.told = alarms  # type: ignore[attr-defined]
    await made.start()
    await made.ready(5)
    yield made
    await made.close()


async def until(condition: Any, within_s: float = 5.0) -> None:
    for _ in range(int(within_s / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come about")


async def test_without_an_alias_the_base_is_served_as_version_0(policy: Any, folder: Path) -> None:
    status = policy.status()
    assert (status["state"], status["version"], status["path"]) == ("ready", 0, str(folder))
    assert status["sha256"] == base_weights(folder).sha256


async def test_it_follows_the_alias_both_ways(policy: Any) -> None:
    for number in (3, 5, 3):
        policy.source.alias = number
        await until(lambda number=number: policy.status()["version"] == number)
        assert policy.status()["sha256"] == {"model.safetensors": f"hash-{number}"}
    assert policy.engine.loaded == [3, 5, 3] and len(policy.engine.started) == 1
    assert policy.status()["last_swap_s"] is not None


async def test_a_dead_engine_is_started_with_the_version_it_served(policy: Any) -> None:
    policy.source.alias = 3
    await until(lambda: policy.status()["version"] == 3)
    policy.engine.alive = False
    assert policy.address()["state"] == "restarting"
    await until(lambda: len(policy.engine.started) == 2 and policy.state == "ready")
    assert policy.engine.started[-1][1] == 3 and policy.restarts == 1
    assert any("died" in text for text in policy.told)


async def test_a_copy_that_was_tidied_away_is_fetched_again_before_a_restart(policy: Any, folder: Path) -> None:
    policy.source.alias = 3
    await until(lambda: policy.status()["version"] == 3)
    policy.weights = Weights(3, str(folder.parent / "tidied"), {})
    policy.engine.alive = False
    await until(lambda: len(policy.engine.started) == 2)
    assert policy.engine.started[-1] == (str(folder), 3)


async def test_registry_and_store_being_down_change_nothing(policy: Any) -> None:
    policy.source.alias = 3
    await until(lambda: policy.status()["version"] == 3)
    policy.source.down = True
    await until(lambda: [alarm["source"] for alarm in policy.status()["alarms"]] == ["registry"])
    assert policy.address() == {"url": policy.engine.url, "version": 3, "state": "ready"}
    policy.source.down, policy.source.alias, policy.source.gone = False, 4, {4}
    await until(lambda: [alarm["source"] for alarm in policy.status()["alarms"]] == ["store"])
    assert policy.status()["version"] == 3
    policy.source.alias = 5
    await until(lambda: policy.status()["version"] == 5)
    assert policy.status()["alarms"] == []


async def test_a_version_that_the_engine_refuses_is_an_alarm_and_the_one_before_stays(policy: Any) -> None:
    policy.engine.refuse = {4}
    policy.source.alias = 4
    await until(lambda: any(alarm["source"] == "swap" for alarm in policy.status()["alarms"]))
    assert policy.status()["version"] == 0 and policy.state == "ready"
    policy.source.alias = 5
    await until(lambda: policy.status()["version"] == 5)


async def test_a_restart_with_everything_down_serves_what_was_served(policy: Any, folder: Path) -> None:
    policy.source.alias = 3
    await until(lambda: policy.status()["version"] == 3)
    await policy.close()
    source = StandInSource(folder)
    source.down = True
    again = Policy(settings(folder), source)
    again.engine = StandInEngineProcess()  # type: ignore[assignment]
    await again.start()
    await again.ready(5)
    assert again.status()["version"] == 3 and again.engine.started[0][1] == 3  # type: ignore[attr-defined]
    await again.close()


async def test_a_poke_does_not_wait_for_the_next_look(folder: Path) -> None:
    from dataclasses import replace

    source = StandInSource(folder)
    policy = Policy(replace(settings(folder), poll_s=60), source)
    policy.engine = StandInEngineProcess()  # type: ignore[assignment]
    await policy.start()
    await policy.ready(5)
    source.alias = 2
    policy.poke()
    await until(lambda: policy.status()["version"] == 2)
    await policy.close()
