"""The engine with an adapter: what trains, what is written, what the reference is."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.unit.train.test_engine import SEQUENCES, by_transformers, nll
from tests.unit.train.tiny import make_model
from train.lora_merge import merge
from train.megatron.engine import Engine
from train.settings import LoraSettings, OptimizerSettings

ADAPTER = LoraSettings(rank=4, alpha=8.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("base"), "qwen3")


def adapted(folder: Path, **kind: object) -> Engine:
    return Engine(folder, OptimizerSettings(learning_rate=1e-2, **kind), adapter=ADAPTER)


def step(engine: Engine) -> Engine:
    engine.accumulate(SEQUENCES, nll, 64)
    assert engine.grad_norm() > 0
    engine.step()
    engine.rest()
    return engine


@pytest.mark.parametrize("kind", [{}, {"distributed": True}, {"precision": "bf16"}])
def test_only_the_adapter_trains_and_a_restart_goes_on(folder: Path, tmp_path: Path, kind: dict) -> None:
    engine = adapted(folder, **kind)
    before = {name: each.detach().clone() for name, each in engine.model.named_parameters()}
    for _ in range(2):
        step(engine)
    moved = {name for name, each in engine.model.named_parameters() if not torch.equal(each, before[name])}
    assert moved == {name for name in before if name.endswith(("lora_a", "lora_b"))}
    engine.export(tmp_path / "v1", folder)
    assert {path.name for path in (tmp_path / "v1").iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    (tmp_path / "state").mkdir()
    assert engine.save_state(tmp_path / "state", {"number": "1"})
    size = sum(path.stat().st_size for path in (tmp_path / "state").iterdir())
    other = adapted(folder, **kind)
    other.load(tmp_path / "v1")
    other.load_state(tmp_path / "state", {"number": "1"})
    for one, two in zip(step(engine).model.parameters(), step(other).model.parameters(), strict=True):
        assert torch.equal(one, two)
    assert engine.weight_fault() is None and size < 400_000
    with pytest.raises(ValueError, match="wanted is"):
        Engine(folder, OptimizerSettings(**kind)).load_state(tmp_path / "state", {"number": "1"})


def test_the_reference_is_the_base_and_comes_back(folder: Path) -> None:
    plain = Engine(folder, OptimizerSettings()).score(SEQUENCES, 64)
    engine = step(adapted(folder))
    trained = engine.score(SEQUENCES, 64)
    with engine.borrow(folder):
        borrowed = engine.score(SEQUENCES, 64)
    assert all(torch.allclose(one, two, atol=1e-6) for one, two in zip(plain, borrowed, strict=True))
    assert all(torch.equal(one, two) for one, two in zip(trained, engine.score(SEQUENCES, 64), strict=True))
    assert max(float((one - two).abs().max()) for one, two in zip(plain, trained, strict=True)) > 1e-3


def test_another_reference_than_the_base(folder: Path, tmp_path: Path) -> None:
    other = step(Engine(folder, OptimizerSettings(learning_rate=1e-2)))
    other.export(tmp_path / "other", folder)
    engine = step(adapted(folder))
    trained = engine.score(SEQUENCES, 64)
    with engine.borrow(tmp_path / "other"):
        borrowed = engine.score(SEQUENCES, 64)
    for one, two in zip(other.score(SEQUENCES, 64), borrowed, strict=True):
        assert torch.allclose(one, two, atol=1e-6)
    assert all(torch.equal(one, two) for one, two in zip(trained, engine.score(SEQUENCES, 64), strict=True))


def test_peft_and_the_merged_folder_say_the_same(folder: Path, tmp_path: Path) -> None:
    engine = step(step(adapted(folder)))
    engine.export(tmp_path / "adapter", folder)
    merge(folder, tmp_path / "adapter", tmp_path / "merged")
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    peft = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    merged = Engine(tmp_path / "merged", OptimizerSettings()).score(SEQUENCES, 64)
    with torch.no_grad():
        for sequence, mine, whole in zip(SEQUENCES, engine.score(SEQUENCES, 64), merged, strict=True):
            assert torch.allclose(mine, by_transformers(peft, sequence), atol=2e-5)
            assert torch.allclose(mine, whole, atol=1e-5)


def test_loading_the_base_again_starts_a_fresh_adapter(folder: Path, tmp_path: Path) -> None:
    engine = adapted(folder)
    fresh = [each.detach().clone() for each in engine.model.parameters()]
    step(engine).load(folder)
    assert all(torch.equal(one, two) for one, two in zip(fresh, engine.model.parameters(), strict=True))


def test_an_adapter_of_another_rank_is_refused_and_changes_nothing(folder: Path, tmp_path: Path) -> None:
    step(adapted(folder)).export(tmp_path / "adapter", folder)
    assert load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    engine = Engine(folder, OptimizerSettings(), adapter=LoraSettings(rank=8))
    before = [each.detach().clone() for each in engine.model.parameters()]
    with pytest.raises(ValueError, match="r is 4, the settings say 8"):
        engine.load(tmp_path / "adapter")
    assert all(torch.equal(one, two) for one, two in zip(before, engine.model.parameters(), strict=True))
