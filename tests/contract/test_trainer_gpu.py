"""The trainer on one NVIDIA GPU, a few minutes in all. Skipped, and counted, where there is none."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from infra.model import default_dir, fetch
from tests.unit.train.test_engine import SEQUENCES, by_transformers, nll
from tests.unit.train.tiny import make_model
from train.bench import make_samples
from train.megatron.engine import Engine
from train.settings import BatchSettings, LoraSettings, OptimizerSettings, TrainSettings
from train.update import learn

pytestmark = pytest.mark.gpu


@pytest.fixture(params=["llama", "qwen2", "qwen3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return make_model(tmp_path / request.param, request.param)


def step(engine: Engine) -> Engine:
    engine.accumulate(SEQUENCES, nll, 64)
    engine.step()
    engine.rest()
    return engine


def test_scores_and_a_step_agree_with_transformers(folder: Path, tmp_path: Path) -> None:
    """Whichever layers are there, TransformerEngine's or Megatron's own: names, norms and biases find their places."""
    engine = Engine(folder, OptimizerSettings(learning_rate=1e-3))
    assert next(engine.model.parameters()).is_cuda
    for _ in range(2):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        with torch.no_grad():
            for sequence, found in zip(SEQUENCES, engine.score(SEQUENCES, 64), strict=True):
                assert torch.allclose(found, by_transformers(model, sequence), atol=1e-3)
        step(engine).export(tmp_path / "stepped", folder)
        folder = tmp_path / "stepped"
        tmp_path = tmp_path / "next"


def test_a_restart_goes_on_bit_for_bit_in_bf16(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "qwen3")
    settings = OptimizerSettings(learning_rate=1e-3, precision="bf16", distributed=True)
    for adapter in (None, LoraSettings(rank=4)):
        out = tmp_path / f"adapter {adapter is not None}"
        (out / "state").mkdir(parents=True)
        engine = step(Engine(folder, settings, adapter=adapter))
        assert engine.save_state(out / "state", {"number": "1"})
        engine.export(out / "weights", folder)
        other = Engine(folder, settings, adapter=adapter)
        other.load(out / "weights")
        other.load_state(out / "state", {"number": "1"})
        for one, two in zip(step(engine).model.parameters(), step(other).model.parameters(), strict=True):
            assert torch.equal(one, two)


def test_a_sample_of_8192_tokens_trains() -> None:
    model = fetch(default_dir())
    settings = TrainSettings(
        batch=BatchSettings(max_train_tokens=1 << 14, micro_batch_tokens=8192),
        optimizer=OptimizerSettings(precision="bf16"), max_drift=1e9, max_grad_norm=1e9,
    )  # fmt: skip
    engine = Engine(model, settings.optimizer)
    torch.cuda.reset_peak_memory_stats()
    learned = learn(engine, make_samples(model, 2, 2048, 6144), model, settings, "u", lambda *_: None)
    assert learned.fault is None and learned.steps == 1
    assert torch.cuda.max_memory_allocated() < 12 << 30
