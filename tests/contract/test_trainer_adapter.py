"""A trainer of adapters against the real object store: small versions, merged for whoever serves, and the way back."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from serve.policy import PolicySettings, StoreSource
from storage.objects import ObjectStore, StoreSettings
from storage.versions import VersionStore
from tests.contract.conftest import S3
from tests.contract.megatron_victim import SETTINGS, batch
from tests.unit.train.tiny import make_model
from train.batch import Scored
from train.settings import LoraSettings, OptimizerSettings, TrainSettings
from train.trainer import Trainer
from train.whole import whole_weights

ADAPTER = replace(SETTINGS, lora=LoraSettings(rank=4), optimizer=OptimizerSettings(learning_rate=1e-2))
Make = Callable[..., Trainer]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("base"), "qwen3")


@pytest.fixture
def make(objects: ObjectStore, base: Path, tmp_path: Path) -> Iterator[Make]:
    made: list[Trainer] = []

    def build(settings: TrainSettings = ADAPTER, local: str = "weights") -> Trainer:
        for trainer in made:
            trainer.close()
        made[:] = [Trainer(settings, VersionStore(objects, "tiny"), objects, tmp_path / local, base)]
        return made[0]

    yield build
    for trainer in made:
        trainer.close()


def log_probs(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder)(torch.arange(1, 40)[None]).logits.log_softmax(-1)


def test_a_version_is_an_adapter_and_whoever_serves_gets_it_whole(
    make: Make, objects: ObjectStore, s3: S3, mlflow_uri: str, base: Path, tmp_path: Path
) -> None:
    trainer = make()
    assert trainer.step(batch(1)).outcome == "committed"
    version = trainer.versions.get(1)
    assert {shard.name for shard in version.shards} == {"adapter_model.safetensors", "adapter_config.json"}
    assert trainer.versions.base_of(1) == 0 and trainer.versions.base_of(0) == 0
    full = sum(path.stat().st_size for path in base.glob("*.safetensors"))
    assert sum(shard.size for shard in version.shards) < full / 2
    elsewhere = whole_weights(trainer.versions, 1, tmp_path / "elsewhere")
    assert float((log_probs(elsewhere) - log_probs(base)).abs().max()) > 1e-4
    kept = [parameter.detach() for parameter in trainer._ranks.engine.model.parameters() if not parameter.requires_grad]
    assert len(kept) > 4
    store = StoreSettings(url=objects.url(), endpoint=s3.endpoint, access_key=s3.access_key, secret_key=s3.secret_key)
    source = StoreSource(
        PolicySettings(model="tiny", base_model_dir=str(base), weights_dir=str(tmp_path / "policy"), store=store,
                       tracking_uri=mlflow_uri)
    )  # fmt: skip
    served = Path(source.fetch(1).path)
    assert torch.equal(log_probs(served), log_probs(elsewhere))
    assert source.fetch(0).path.endswith("v000000")


def test_a_restart_goes_on_bit_for_bit_and_the_base_is_kept(make: Make, tmp_path: Path) -> None:
    trainer = make()
    for number in range(4):
        assert trainer.step(batch(number)).outcome == "committed"
        if number == 2:
            trainer = make(local="another machine")
    first = trainer.versions.get(4)
    assert first.optimizer_from == 3
    assert trainer.versions.prune(keep=[], last=1) == [1, 2, 3]  # 0 holds the weights under 4
    assert load_file(whole_weights(trainer.versions, 4, tmp_path / "fresh") / "model.safetensors")


def test_all_weights_after_adapters_and_adapters_after_that(make: Make, tmp_path: Path) -> None:
    trainer = make()
    trainer.step(batch(1))
    merged = log_probs(whole_weights(trainer.versions, 1, tmp_path / "read"))
    trainer = make(SETTINGS)
    engine = trainer._ranks.engine
    assert not any(name.endswith("lora_a") for name, _ in engine.model.named_parameters())
    result = trainer.step(batch(2, version=1))
    assert result.outcome == "committed" and result.version.optimizer_from is None  # another kind of state
    assert trainer.versions.base_of(2) == 2
    second = log_probs(whole_weights(trainer.versions, 2, tmp_path / "read"))
    assert 0 < float((second - merged).abs().max()) < 0.5
    trainer = make()
    assert trainer.step(batch(3, version=2)).version.optimizer_from is None  # v1's was of an adapter on another base
    assert trainer.versions.base_of(3) == 2
    third = log_probs(whole_weights(trainer.versions, 3, tmp_path / "read"))
    assert float((third - second).abs().max()) > 0


def test_another_rank_than_the_head_has_is_refused(make: Make) -> None:
    make().step(batch(1))
    with pytest.raises(ValueError, match="r is 4, the settings say 8"):
        make(replace(ADAPTER, lora=LoraSettings(rank=8)))


def test_after_a_rollback_the_adapter_lies_on_its_own_base(make: Make, tmp_path: Path) -> None:
    """v1: adapter on 0. v2: all weights. v3: adapter on 2. Then v2 is withdrawn, and the running trainer goes on."""
    make().step(batch(1))
    make(SETTINGS).step(batch(2, version=1))
    trainer = make()
    assert trainer.step(batch(3, version=2)).outcome == "committed"
    trainer.versions.withdraw(2, "worse")
    result = trainer.step(batch(4, version=1))
    assert (result.outcome, result.version.parent, trainer.versions.base_of(4)) == ("committed", 1, 0)
    ids = torch.arange(1, 40)
    scored = Scored(prompt_ids=(0,), response_ids=tuple(ids.tolist()), temperature=1.0)
    trained = trainer._ranks.engine.distributions(scored)
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(whole_weights(trainer.versions, 4, tmp_path / "read"))
        served = model(torch.cat([torch.tensor([0]), ids])[None]).logits[0, :-1].log_softmax(-1)
    assert torch.allclose(trained, served, atol=1e-4)


def test_a_merged_copy_that_was_damaged_is_made_again(make: Make, tmp_path: Path) -> None:
    trainer = make()
    trainer.step(batch(1))
    merged = whole_weights(trainer.versions, 1, tmp_path / "read")
    good = log_probs(merged)
    (merged / "model.safetensors").write_bytes(b"torn")
    assert torch.equal(log_probs(whole_weights(trainer.versions, 1, tmp_path / "read")), good)
