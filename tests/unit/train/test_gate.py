"""The gate: refuses collapse, lets good updates pass."""

from pathlib import Path

import pytest
import torch

from tests.unit.train.tiny import make_model, make_sample
from train.gate import Gate, load_probes
from train.megatron.engine import Engine
from train.settings import GateSettings, OptimizerSettings, TrainSettings
from train.update import learn


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return make_model(tmp_path / "base")


@pytest.fixture
def engine(base: Path) -> Engine:
    return Engine(base, OptimizerSettings(learning_rate=1e-4))


@pytest.fixture
def gate(base: Path, engine: Engine) -> Gate:
    return Gate(GateSettings(), load_probes(base / "tokenizer.json"), engine.distributions)


def parameter(engine: Engine, name: str) -> torch.Tensor:
    return dict(engine.model.named_parameters())[name].data


def test_the_start_passes_with_no_kl(gate: Gate, engine: Engine) -> None:
    report = gate.check(engine)
    assert report.passed and report.kl_start == pytest.approx(0, abs=1e-6)
    assert report.entropy == pytest.approx(report.entropy_start)


def test_nan_weights_are_refused(gate: Gate, engine: Engine) -> None:
    parameter(engine, "decoder.final_layernorm.weight")[0] = float("nan")
    report = gate.check(engine)
    assert report.reason == "decoder.final_layernorm.weight is not finite" and not report.measured


def test_a_zeroed_head_is_refused(gate: Gate, engine: Engine) -> None:
    parameter(engine, "embedding.word_embeddings.weight").zero_()
    assert "zero all over" in gate.check(engine).reason


def test_noise_over_the_weights_is_refused_by_kl(gate: Gate, engine: Engine) -> None:
    torch.manual_seed(1)
    for weights in engine.model.parameters():
        weights.data += torch.randn_like(weights.data)
    assert gate.check(engine).reason.startswith("KL to the start")


@pytest.mark.parametrize("scale", [30.0, 0.01])
def test_collapse_and_flattening_are_refused_by_entropy(base: Path, engine: Engine, scale: float) -> None:
    settings = GateSettings(max_kl_start=1e9, max_entropy=1.01, min_entropy=0.25)
    gate = Gate(settings, load_probes(base / "tokenizer.json"), engine.distributions)
    parameter(engine, "decoder.final_layernorm.weight").mul_(scale)
    assert gate.check(engine).reason.startswith("entropy")


def test_twenty_good_updates_pass(base: Path, gate: Gate, engine: Engine) -> None:
    settings = TrainSettings(nice=0, max_drift=9.0)
    reports = []
    for update in range(20):
        samples = [make_sample(16 * update + seed, engine) for seed in range(16)]
        assert learn(engine, samples, base, settings, "u", lambda *_: None).fault is None
        engine.step()
        engine.rest()
        reports.append(gate.check(engine))
    assert [report.reason for report in reports] == [None] * 20
    assert reports[-1].kl_start > 0


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json is missing"):
        load_probes(tmp_path / "tokenizer.json")
