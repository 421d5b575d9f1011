"""Two ranks give what one gives: tensor, pipeline and data parallel, plain and distributed Adam, fp32 and bf16."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from infra.bench_trainer import Plain
from tests.unit.train.layouts import FEW, SAMPLES, SCENARIOS, play, settings, single, steps
from tests.unit.train.tiny import make_model
from train.megatron.engine import Engine
from train.megatron.layout import check_layout, read_config
from train.settings import ParallelSettings


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one rank and two ranks made of the same models."""
    out = tmp_path_factory.mktemp("layouts")
    (out / "single").mkdir()
    for family in {model for model, _, _ in SCENARIOS.values()}:
        make_model(out / "models" / family, family, tied=family != "qwen3")
    for name, (model, kind) in {single(name): (model, kind) for name, (model, _, kind) in SCENARIOS.items()}.items():
        torch.save(play(Engine, out / "models" / model, name, kind, out / "single"), out / "single" / f"{name}.pt")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.unit.train.layouts", str(rank), str(out)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    assert [rank.wait(400) for rank in ranks] == [0, 0]
    return out


def of(out: Path, name: str) -> tuple[dict, dict]:
    """What two ranks found, and what one did."""
    return torch.load(out / f"{name}.pt", weights_only=False), torch.load(
        out / "single" / f"{single(name)}.pt", weights_only=False
    )


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def close(one: Path, two: Path, atol: float) -> bool:
    a, b = tensors(one), tensors(two)
    return a.keys() == b.keys() and all(torch.allclose(a[name].float(), b[name].float(), atol=atol) for name in a)


def tolerance(name: str) -> float:
    return 0.05 if "bf16" in name else 2e-5


@pytest.mark.parametrize("name", SCENARIOS)
def test_scores_and_distributions_are_those_of_one_rank(out: Path, name: str) -> None:
    two, one = of(out, name)
    for a, b in zip(two["scores"], one["scores"], strict=True):
        assert torch.allclose(a, b, atol=tolerance(name))
    assert torch.allclose(two["distribution"], one["distribution"], atol=tolerance(name))
    assert torch.allclose(two["more"].entropy, one["more"].entropy, atol=tolerance(name))
    assert torch.allclose(two["more"].top, one["more"].top, atol=tolerance(name))
    assert "bf16" in name or torch.equal(two["more"].top_ids, one["more"].top_ids)


@pytest.mark.parametrize("name", SCENARIOS)
def test_three_steps_are_those_of_one_rank(out: Path, name: str) -> None:
    two, one = of(out, name)
    exact = "bf16" not in name
    for key in ("metrics", "few"):
        for a, b in zip(two[key], one[key], strict=True):
            assert a.keys() == b.keys()
            for metric in a:
                rel, absolute = (1e-4, 1e-5) if exact else (0.05, 0.02)
                assert a[metric] == pytest.approx(b[metric], rel=rel, abs=absolute), metric
    for stage in ("out", "next"):
        assert close(out / f"{name}.{stage}", out / "single" / f"{single(name)}.{stage}", 1e-4 if exact else 0.02)


PLAIN = [name for name, (_, _, kind) in SCENARIOS.items() if "extras" not in name and "bf16" not in name]


@pytest.fixture(scope="module")
def plain(out: Path) -> dict[str, tuple[list[dict[str, float]], dict[str, torch.Tensor]]]:
    """Three steps of transformers and torch's AdamW on each model: their metrics, and the weights after them."""
    found = {}
    for family in {SCENARIOS[name][0] for name in PLAIN}:
        loop, start = (Plain(out / "models" / family, settings({})) for _ in range(2))
        metrics = []
        for _ in range(3):
            others = {}
            with torch.no_grad():
                for sample in SAMPLES:
                    prompt = sample.token_ids[: sample.prompt_length]
                    others[sample.sample_id] = {"ref": start.log_probs([prompt], [sample])[0]}
                    if sample.hint is not None:
                        teacher = loop.log_probs([sample.enhanced_prompt_ids], [sample])[0]
                        others[sample.sample_id]["teacher"] = teacher
            metrics.append(loop.step(SAMPLES, others))
        found[family] = metrics, dict(loop.model.named_parameters())
    return found


@pytest.mark.parametrize("name", [*PLAIN, "llama", "qwen2", "qwen3"])
def test_three_steps_are_those_of_transformers_and_adamw(out: Path, plain: dict, name: str) -> None:
    metrics, weights = plain[name.partition(".")[0]]
    folder = out if name in SCENARIOS else out / "single"
    found = torch.load(folder / f"{name}.pt", weights_only=False)["metrics"]
    for mine, theirs in zip(found, metrics, strict=True):
        for metric, value in theirs.items():
            assert mine[metric] == pytest.approx(value, rel=1e-4, abs=1e-5), metric
    trained = tensors(folder / f"{name}.out")
    for key, tensor in trained.items():
        assert torch.allclose(tensor, weights[key], atol=1e-4), key


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_restart_and_a_repetition_are_bit_for_bit(out: Path, name: str) -> None:
    two, _ = of(out, name)
    assert two["restart"] and two["again"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_broken_weight_of_any_rank_is_seen_by_all(out: Path, name: str) -> None:
    two, _ = of(out, name)
    assert two["fault"] is None and "is not finite" in two["fault of one rank"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_states_of_one_layout_go_on_in_another(out: Path, name: str, tmp_path: Path) -> None:
    """Saved by two ranks and loaded by one, and the other way: the next step is the one that was to come."""
    model, _, kind = SCENARIOS[name]
    exact = "bf16" not in name
    two, one = of(out, name)
    assert two["from single"][0]["loss"] == pytest.approx(one["few"][0]["loss"], rel=1e-4 if exact else 0.05, abs=1e-5)
    assert close(out / f"{name}.from_single", out / "single" / f"{single(name)}.next", 1e-5 if exact else 0.01)
    engine = Engine(out / f"{name}.out", settings(kind).optimizer)
    engine.load_state(out / f"{name}.state", {"number": "3"})
    steps(engine, FEW, kind, out / "models" / model, 1)
    engine.export(tmp_path / "next", out / "models" / model)
    assert close(tmp_path / "next", out / f"{name}.next", 1e-5 if exact else 0.01)


@pytest.mark.parametrize(
    ("change", "layout", "named"),
    [
        ({}, {"tensor": 3}, "num_attention_heads is 4, which parallel.tensor = 3 does not divide"),
        ({}, {"tensor": 4}, "num_key_value_heads is 2, which parallel.tensor = 4"),
        ({}, {"pipeline": 3}, "num_hidden_layers is 2, which parallel.pipeline = 3"),
        ({"vocab_size": 321}, {"tensor": 2}, "vocab_size is 321"),
        ({"intermediate_size": 129}, {"tensor": 2}, "intermediate_size is 129"),
        ({"num_attention_heads": 9, "num_key_value_heads": 3}, {"tensor": 2}, "num_attention_heads is 9"),
    ],
)
def test_a_layout_that_the_model_does_not_divide_is_refused(
    tmp_path: Path, change: dict, layout: dict, named: str
) -> None:
    config = {**read_config(make_model(tmp_path / "model")), **change}
    with pytest.raises(ValueError, match=named):
        check_layout(config, ParallelSettings(**layout))
