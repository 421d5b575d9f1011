"""The trainer on a tiny real model against the real object store: commits, refusals, skips, resumes."""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from storage import dataset
from storage.objects import ObjectStore
from storage.versions import LeaseHeld, VersionStore
from tests.contract.megatron_victim import SETTINGS, batch
from tests.unit.train.tiny import make_model, make_sample
from train.settings import GateSettings, TrainSettings
from train.trainer import Trainer

Make = Callable[..., Trainer]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("base"))


@pytest.fixture
def make(objects: ObjectStore, base: Path, tmp_path: Path) -> Iterator[Make]:
    """Trainers of one model; those still open are closed."""
    open_trainers: list[Trainer] = []

    def build(
        settings: TrainSettings = SETTINGS, local: str = "weights", model: str = "tiny", **more: object
    ) -> Trainer:
        trainer = Trainer(settings, VersionStore(objects, model), objects, tmp_path / local, base, **more)
        open_trainers.append(trainer)
        return trainer

    yield build
    for trainer in open_trainers:
        trainer.close()


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in trainer._ranks.engine.model.named_parameters()}


def adam(trainer: Trainer) -> list[torch.Tensor]:
    state = trainer._ranks.engine.adam().state
    return [
        state[parameter][key].clone()
        for parameter in trainer._ranks.engine.model.parameters()
        if state.get(parameter)
        for key in ("step", "exp_avg", "exp_avg_sq")
    ]


def equal(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_the_base_becomes_version_zero_and_a_step_version_one(make: Make, objects: ObjectStore, base: Path) -> None:
    phases: list[str] = []
    trainer = make(on_progress=lambda phase, done, total: phases.append(phase))
    assert trainer.head() == 0 and trainer.versions.get(0).parent is None
    samples = batch(1)
    result = trainer.step(samples)
    assert result.outcome == "committed" and result.reason is None and result.left_out == {}
    version = trainer.versions.head()
    assert version == result.version and (version.number, version.parent, version.optimizer_from) == (1, 0, None)
    assert set(version.sample_ids) == {sample.sample_id for sample in samples}
    assert (result.update.from_version, result.update.to_version) == (0, 1)
    assert result.update.update_id == version.update_id and result.metrics["kl_start"] > 0
    order = ["load", "teacher", "reference", "learn", "gate", "export", "upload", "commit"]
    assert list(dict.fromkeys(phases)) == order


def test_a_version_is_a_folder_that_transformers_loads(make: Make, tmp_path: Path) -> None:
    trainer = make()
    trainer.step(batch(1))
    folder = trainer.versions.download(1, tmp_path / "elsewhere")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    trained = weights(trainer)["embedding.word_embeddings.weight"]
    assert torch.equal(model.get_input_embeddings().weight.detach(), trained)
    here = tmp_path / "weights" / "tiny" / "v000001"
    assert equal(load_file(here / "model.safetensors"), load_file(folder / "model.safetensors"))
    assert {path.name for path in here.iterdir()} >= {"config.json", "tokenizer.json", "tokenizer_config.json"}
    assert not list(here.parent.glob("*.part"))


def test_scores_lie_in_the_dataset(make: Make, objects: ObjectStore) -> None:
    trainer = make()
    result = trainer.step(batch(1))
    rows = dataset.scan("scores", objects).collect()
    assert set(rows["sample_id"]) == set(result.version.sample_ids)
    assert set(rows["update_id"]) == {result.version.update_id}


def test_samples_train_once(make: Make) -> None:
    trainer = make()
    samples = batch(1)
    assert trainer.step(samples).outcome == "committed"
    again = trainer.step(samples)
    assert again.outcome == "stale" and trainer.head() == 1 and set(again.left_out) == {s.sample_id for s in samples}
    mixed = trainer.step([*samples[:4], *batch(2, version=1)])
    assert mixed.outcome == "committed" and len(mixed.left_out) == 4
    assert not set(mixed.version.sample_ids) & set(samples[0].sample_id)


def test_too_little_does_not_step(make: Make) -> None:
    trainer = make()
    assert trainer.step([]).outcome == "nothing_to_learn"
    few = trainer.step(batch(1)[:3])
    assert few.outcome == "nothing_to_learn" and few.reason.startswith("3 samples can train, 4 are needed")
    neutral = [make_sample(seed, reward=0.0, hint=None, enhanced_prompt_ids=None) for seed in range(6)]
    assert len(trainer.step(neutral).left_out) == 6 and trainer.head() == 0


def test_bad_gradients_skip_and_change_nothing(make: Make) -> None:
    trainer = make(TrainSettings(nice=0, threads=1, max_grad_norm=1e-9, max_drift=9.0, lease_wait_s=0))
    before = weights(trainer)
    result = trainer.step(batch(1))
    assert result.outcome == "skipped" and result.reason.startswith("exploding norm")
    assert equal(before, weights(trainer)) and adam(trainer) == [] and trainer.head() == 0


def test_a_refusal_of_the_gate_restores_weights_and_optimiser(make: Make, tmp_path: Path) -> None:
    trainer = make()
    trainer.step(batch(1))
    before, states = weights(trainer), adam(trainer)
    trainer._ranks.gate.settings = GateSettings(max_kl_start=0.0)
    result = trainer.step(batch(2, version=1))
    assert result.outcome == "skipped" and result.reason.startswith("gate: KL to the start")
    assert equal(before, weights(trainer)) and trainer.head() == 1
    assert states and all(torch.equal(one, two) for one, two in zip(states, adam(trainer), strict=True))
    trainer._ranks.gate.settings = GateSettings()
    accepted = trainer.step(batch(2, version=1))
    assert accepted.outcome == "committed" and accepted.version.optimizer_from == 1


def test_a_restart_goes_on_bit_for_bit(make: Make) -> None:
    through = make(model="through")
    for number in range(3):
        assert through.step(batch(number)).outcome == "committed"
    for number in range(3):
        trainer = make(model="stopped", local=f"machine-{number % 2}")  # another machine's disk every time
        result = trainer.step(batch(number))
        assert result.version.optimizer_from == (number or None)
        trainer.close()
    assert equal(weights(through), weights(trainer))


def test_a_step_that_breaks_off_leaves_the_old_head(make: Make) -> None:
    broken = ["upload"]

    def fail(phase: str, done: int, total: int) -> None:
        if phase in broken:
            raise OSError("disk full")

    trainer = make(on_progress=fail)
    with pytest.raises(OSError, match="disk full"):
        trainer.step(batch(1))
    assert trainer.head() == 0
    broken.clear()
    result = trainer.step(batch(1))
    assert (result.outcome, result.version.number) == ("committed", 1)
    other = make(model="other", local="other")
    other.step(batch(1))
    assert equal(weights(trainer), weights(other))


def test_after_a_rollback_learning_branches_from_the_older_version(make: Make) -> None:
    trainer = make()
    trainer.step(batch(1))
    first = weights(trainer)
    trainer.step(batch(2, version=1))
    trainer.versions.withdraw(2, "worse")
    late = trainer.step(batch(3, version=2))
    assert late.outcome == "nothing_to_learn" and all(r.startswith("no ancestor") for r in late.left_out.values())
    assert equal(first, weights(trainer))
    result = trainer.step(batch(4, version=1))
    assert (result.version.number, result.version.parent, result.version.optimizer_from) == (3, 1, 1)
    again = trainer.step(batch(2, version=1))  # consumed by a version that is no ancestor any more
    assert again.outcome == "committed"


def test_a_second_trainer_is_refused(make: Make) -> None:
    first = make()
    with pytest.raises(LeaseHeld, match="trainer "):
        make(local="second")
    assert first.step(batch(1)).outcome == "committed"
    first.close()
    assert make(local="second").head() == 1


def test_any_thread_may_step(make: Make) -> None:
    trainer, outcomes = make(), []
    threads = [threading.Thread(target=lambda n=n: outcomes.append(trainer.step(batch(n)).outcome)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == ["committed"] * 3 and trainer.head() == 3


def test_old_copies_and_optimiser_states_go(make: Make, objects: ObjectStore, tmp_path: Path) -> None:
    trainer = make()
    for number in range(5):
        trainer.step(batch(number))
    trainer.close()
    root = tmp_path / "weights" / "tiny"
    assert sorted(path.name for path in root.glob("v*")) == ["v000000", "v000003", "v000004", "v000005"]
    assert sorted(path.name for path in (root / "optimizer").iterdir()) == [
        "v000004", "v000005",
    ]  # fmt: skip
    assert {key.split("/")[2] for key in objects.list("optimizer/tiny/")} == {"v000004", "v000005"}


def test_a_folder_of_links_becomes_version_zero(base: Path, objects: ObjectStore, tmp_path: Path) -> None:
    """As the Hugging Face cache has them."""
    linked = tmp_path / "snapshot"
    linked.mkdir()
    for path in base.iterdir():
        (linked / path.name).symlink_to(path)
    trainer = Trainer(SETTINGS, VersionStore(objects, "linked"), objects, tmp_path / "weights", linked)
    assert trainer.step(batch(1)).outcome == "committed"
    trainer.close()
    assert "model.safetensors" in {shard.name for shard in trainer.versions.get(0).shards}


def test_weights_that_do_not_fit_never_become_version_zero(base: Path, objects: ObjectStore, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(base, broken)
    (broken / "model.safetensors").unlink()
    versions = VersionStore(objects, "broken")
    with pytest.raises(ValueError, match=r"has no \.safetensors"):
        Trainer(SETTINGS, versions, objects, tmp_path / "weights", broken)
    assert versions.head() is None
    shutil.copyfile(base / "model.safetensors", broken / "model.safetensors")
    trainer = Trainer(SETTINGS, versions, objects, tmp_path / "weights", broken)
    assert trainer.step(batch(1)).outcome == "committed"
    trainer.close()


def test_a_torn_state_here_is_fetched_again(make: Make, tmp_path: Path) -> None:
    trainer = make()
    for number in range(2):
        trainer.step(batch(number))
    trainer.close()
    state = tmp_path / "weights" / "tiny" / "optimizer" / "v000002"
    largest = max(state.iterdir(), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-10])
    assert make().step(batch(2)).version.optimizer_from == 2


@pytest.mark.parametrize("rate", [0.0, -1e-3, float("nan"), 50.0])
def test_a_learning_rate_that_is_none_is_refused(make: Make, rate: float) -> None:
    trainer = make()
    with pytest.raises(ValueError, match="learning_rate is"):
        trainer.step(batch(1), learning_rate=rate)
    assert trainer.head() == 0
