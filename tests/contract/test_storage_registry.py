"""The registry against a real MLflow server; and a version's source loads in transformers."""

import time
from pathlib import Path

import pytest

from infra.services import free_port
from storage.objects import ObjectStore
from storage.records import new_id
from storage.registry import Registry, RegistryDown
from storage.versions import VersionStore
from tests.unit.storage import builders


@pytest.fixture
def registry(mlflow_uri: str) -> Registry:
    return Registry(mlflow_uri, f"model-{new_id().lower()}")


def test_versions_and_aliases(registry: Registry, mlflow_uri: str) -> None:
    assert registry.alias("live") is None  # no model yet
    assert registry.aliases() == {}
    registry.delete_alias("pinned")
    ours = [
        builders.version(number, number - 1 if number else None, model=registry.model, sample_ids=("a",) * number)
        for number in range(3)
    ]
    # MLflow's numbers are its own: here they differ from ours
    assert [registry.ensure_version(version, "passed") for version in (ours[2], ours[0], ours[1])] == ["1", "2", "3"]
    fresh = Registry(mlflow_uri, registry.model)
    assert fresh.ensure_version(ours[0], "failed: KL 3.1") == "2"
    assert fresh.tags(0)["gate"] == "failed: KL 3.1"
    assert fresh.tags(2) == {
        "number": "2",
        "parent": "1",
        "samples": "2",
        "update_id": ours[2].update_id,
        "gate": "passed",
    }
    fresh.set_alias("live", 2)
    registry.set_alias("pinned", 0)
    assert (registry.alias("live"), fresh.aliases()) == (2, {"live": 2, "pinned": 0})
    registry.tag(2, "withdrawn", "probation")
    assert fresh.tags(2)["withdrawn"] == "probation"
    registry.delete_alias("pinned")
    assert fresh.alias("pinned") is None
    with pytest.raises(ValueError, match="has no version 9"):
        registry.set_alias("live", 9)


def test_people_see_parent_samples_and_metrics(registry: Registry) -> None:
    from mlflow.tracking import MlflowClient

    version = builders.version(5, 4, model=registry.model, sample_ids=("a", "b"), metrics={"loss": 0.25, "n": None})
    number = registry.ensure_version(version, "passed")
    client = MlflowClient(registry.uri, registry.uri)
    seen = client.get_model_version(registry.model, number)
    assert seen.source == version.source
    assert seen.description == "Version 5: learned from 2 samples on top of version 4. Gate: passed."
    run = client.get_run(seen.run_id)
    assert (run.data.metrics, run.data.params) == ({"loss": 0.25}, {"parent": "4", "samples": "2"})
    assert run.info.status == "FINISHED"


def test_alias_made_in_mlflow_itself(registry: Registry) -> None:
    from mlflow.tracking import MlflowClient

    registry.ensure_version(builders.version(7, 6, model=registry.model), "passed")
    client = MlflowClient(registry.uri, registry.uri)
    client.set_registered_model_alias(registry.model, "champion", "1")
    assert registry.alias("champion") == 7
    client.create_model_version(registry.model, "s3://clawrl/theirs")
    client.set_registered_model_alias(registry.model, "champion", "2")
    with pytest.raises(ValueError, match="was not registered by us"):
        registry.alias("champion")


def test_alias_look_up_is_cheap(registry: Registry) -> None:
    registry.ensure_version(builders.version(0, None, model=registry.model), "passed")
    registry.set_alias("live", 0)
    times = []
    for _ in range(20):
        began = time.perf_counter()
        registry.alias("live")
        times.append(time.perf_counter() - began)
    assert sorted(times)[10] < 0.2  # 0.013 on a quiet machine


def test_away_is_said_soon() -> None:
    registry = Registry(f"http://127.0.0.1:{free_port()}", "m")
    began = time.monotonic()
    for call in (lambda: registry.alias("live"), lambda: registry.ensure_version(builders.version(0, None), "passed")):
        with pytest.raises(RegistryDown, match="does not answer while"):
            call()
    assert time.monotonic() - began < 20


def test_source_loads_in_transformers(registry: Registry, objects: ObjectStore, tmp_path: Path) -> None:
    """MLflow's source is a folder that transformers loads, once downloaded."""
    import torch
    from mlflow.tracking import MlflowClient
    from transformers import AutoModelForCausalLM, Qwen3Config

    config = Qwen3Config(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path / "made")
    versions = VersionStore(objects, registry.model)
    update_id = new_id()
    source, shards = versions.upload(0, update_id, tmp_path / "made")
    version = builders.version(0, None, model=registry.model, update_id=update_id, source=source, shards=shards)
    versions.commit(version)
    number = registry.ensure_version(version, "passed")
    seen = MlflowClient(registry.uri, registry.uri).get_model_version(registry.model, number).source
    for key in objects.list(seen.removeprefix(objects.url()) + "/"):
        (tmp_path / "got").mkdir(exist_ok=True)
        objects.download_file(key, tmp_path / "got" / Path(key).name)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "got")
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)
    local = AutoModelForCausalLM.from_pretrained(versions.download(0, tmp_path / "v0"))
    assert torch.equal(local.lm_head.weight, model.lm_head.weight)
