"""A trainer of two ranks on real Ray: commits, goes on after a rank was killed, changes its layout between runs."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import ray
import torch
from safetensors.torch import load_file

from storage.objects import ObjectStore
from storage.versions import VersionStore
from tests.contract.megatron_victim import SETTINGS, batch
from tests.unit.train.tiny import make_model
from train.group import Group, RankDied
from train.settings import OptimizerSettings, ParallelSettings, TrainSettings
from train.trainer import Trainer

TENSOR = replace(SETTINGS, parallel=ParallelSettings(tensor=2))
Make = Callable[..., Trainer]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Ray of its own, on loopback."""
    ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, _node_ip_address="127.0.0.1", logging_level="warning")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("base"), "qwen3")


@pytest.fixture
def make(objects: ObjectStore, base: Path, tmp_path: Path) -> Iterator[Make]:
    open_trainers: list[Trainer] = []

    def build(settings: TrainSettings = TENSOR, model: str = "tiny", **more: object) -> Trainer:
        trainer = Trainer(settings, VersionStore(objects, model), objects, tmp_path / "weights", base, **more)
        open_trainers.append(trainer)
        return trainer

    yield build
    for trainer in open_trainers:
        trainer.close()


def weights(trainer: Trainer, tmp_path: Path, number: int) -> dict[str, torch.Tensor]:
    folder = trainer.versions.download(number, tmp_path / "read" / trainer.versions.model / str(number))
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def close(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.allclose(one[name], two[name], atol=1e-5) for name in one)


def test_layouts_follow_each_other_as_if_it_were_one(make: Make, tmp_path: Path) -> None:
    """One rank, then two by tensor, then two by pipeline, two by data, and one again: the line of one alone."""
    alone = make(SETTINGS, model="alone")
    for number in range(4):
        assert alone.step(batch(number)).outcome == "committed"
    layouts = [ParallelSettings(tensor=2), ParallelSettings(pipeline=2), ParallelSettings(data=2), ParallelSettings()]
    phases: set[str] = set()
    for number, layout in enumerate(layouts):
        trainer = make(replace(SETTINGS, parallel=layout), on_progress=lambda phase, *_: phases.add(phase))
        result = trainer.step(batch(number))
        assert (result.outcome, result.version.optimizer_from) == ("committed", number or None), result
        trainer.close()
    assert close(weights(alone, tmp_path, 4), weights(trainer, tmp_path, 4))
    assert {"load", "learn", "gate", "commit"} <= phases


def test_a_rank_that_is_killed_costs_nothing_but_time(make: Make, tmp_path: Path) -> None:
    undisturbed = make(SETTINGS, model="undisturbed")
    undisturbed.step(batch(0))
    undisturbed.step(batch(1))
    killed: list[float] = []

    def kill(phase: str, done: int, total: int) -> None:
        if phase == killed_at and not killed:
            killed.append(time.monotonic())
            os.kill(trainer._ranks.pids[1], signal.SIGKILL)

    killed_at = "nothing"
    trainer = make(on_progress=kill)
    assert trainer.step(batch(0)).outcome == "committed"
    first = trainer._ranks.pids
    killed_at = "gate"  # after the optimiser's step, before the commit
    result = trainer.step(batch(1))
    assert killed and result.outcome == "committed" and trainer.head() == 2
    assert not set(first) & set(trainer._ranks.pids)
    assert not any(map(alive, first))
    assert close(weights(undisturbed, tmp_path, 2), weights(trainer, tmp_path, 2))


def test_refusals_are_shared_and_a_death_is_noticed_within_seconds(base: Path, tmp_path: Path) -> None:
    group = Group(TENSOR, base, base)
    try:
        with pytest.raises(ValueError, match="no whole optimiser state"):
            group.load_state(tmp_path, {})
        assert group.learn(batch(0), "u", lambda *_: None).steps == 1  # they live on

        os.kill(group.pids[0], signal.SIGSTOP)  # the other waits inside a collective
        noticed: list[float] = []

        def learn() -> None:
            with pytest.raises(RankDied, match="ranks failed"):
                group.learn(batch(0), "u", lambda *_: None)
            noticed.append(time.monotonic())

        thread = threading.Thread(target=learn)
        thread.start()
        time.sleep(1)
        assert not noticed
        killed = time.monotonic()
        os.kill(group.pids[0], signal.SIGKILL)
        thread.join(60)
        assert noticed and noticed[0] - killed < 10
    finally:
        group.close()


@ray.remote(num_cpus=0)
class Owner:
    """As the trainer's actor, which may be killed at any moment."""

    def start(self, base: Path) -> list[int]:
        self.group = Group(TENSOR, base, base)
        return [os.getpid(), *self.group.pids]


def test_no_rank_outlives_its_trainer(base: Path) -> None:
    owner = Owner.remote()
    pids = ray.get(owner.start.remote(base))
    os.kill(pids[0], signal.SIGKILL)
    until = time.monotonic() + 20
    while time.monotonic() < until and any(map(alive, pids)):
        time.sleep(0.2)
    assert not any(map(alive, pids))


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_what_does_not_fit_is_refused_before_a_rank_starts(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"num_key_value_heads is 2, which parallel\.tensor = 4"):
        Group(replace(SETTINGS, parallel=ParallelSettings(tensor=4)), base, base)
    with pytest.raises(ValueError, match="precision"):
        OptimizerSettings(precision="fp16")
