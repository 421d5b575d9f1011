"""`python -m train.step`: files in, files out, and clear words where there is no step."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from storage.arrow import schema, to_row
from storage.records import Sample
from tests.unit.train.tiny import VOCAB, make_model, make_sample
from train.megatron.engine import Engine
from train.settings import BatchSettings, OptimizerSettings, TrainSettings
from train.step import Files, step

SETTINGS = TrainSettings(
    batch=BatchSettings(full_batch=8), optimizer=OptimizerSettings(learning_rate=1e-3), max_drift=9.0
)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("weights"))


def write(path: Path, samples: list[Sample]) -> Path:
    pq.write_table(pa.Table.from_pylist([to_row(sample) for sample in samples], schema(Sample)), path)
    return path


def run(console: Console | None = None, **files: Path) -> dict[str, float]:
    return step(Files(**files), SETTINGS, console or Console(quiet=True))


def test_a_step_from_files(weights: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "s.parquet", [*map(make_sample, range(8)), make_sample(9, token_ids=(VOCAB,) * 4,
                 mask=(0, 1, 1, 1), rollout_logprobs=(-1.0,) * 3)])  # fmt: skip
    console = Console(record=True, width=120)
    metrics = run(console, samples=file, weights=weights, out=tmp_path / "new", optimizer=tmp_path / "adam")
    said = console.export_text()
    assert "9 samples, 8 of them train" in said and "ids outside the vocabulary" in said and "grad_norm" in said
    before, after = load_file(weights / "model.safetensors"), load_file(tmp_path / "new" / "model.safetensors")
    assert before.keys() == after.keys() and any(not torch.equal(before[name], after[name]) for name in before)
    assert metrics["samples"] == 8 and metrics["grad_norm"] > 0 and metrics["kl_start"] > 0
    assert Engine(tmp_path / "new", SETTINGS.optimizer).vocab_size == VOCAB

    again = run(samples=file, weights=tmp_path / "new", reference=weights, optimizer=tmp_path / "adam")
    assert again["kl_ref"] > 0, "held to the first weights"
    with pytest.raises(ValueError, match="exists"):
        run(samples=file, weights=weights, out=tmp_path / "new")


def test_why_there_is_no_step(weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match=r"torn\.parquet can't be read as Parquet"):
        run(samples=tmp_path / "torn.parquet", weights=weights, out=out)
    pl.DataFrame({"x": [1]}).write_parquet(tmp_path / "other.parquet")
    with pytest.raises(ValueError, match=r"the columns created_at, .* are missing"):
        run(samples=tmp_path / "other.parquet", weights=weights, out=out)
    rows = [{**to_row(make_sample(0)), "mask": [1]}]
    pq.write_table(pa.Table.from_pylist(rows, schema(Sample)), tmp_path / "short.parquet")
    with pytest.raises(ValueError, match=r"short\.parquet, row 0 \(s0000-.*mask"):
        run(samples=tmp_path / "short.parquet", weights=weights, out=out)
    neutral = write(tmp_path / "neutral.parquet", [make_sample(1, reward=0.0, hint=None, enhanced_prompt_ids=None)])
    with pytest.raises(ValueError, match="nothing to learn from"):
        run(samples=neutral, weights=weights, out=out)
    good = write(tmp_path / "good.parquet", [make_sample(seed) for seed in range(4)])
    with pytest.raises(ValueError, match="exploding norm"):
        step(Files(samples=good, weights=weights, out=out), replace(SETTINGS, max_grad_norm=1e-9), Console(quiet=True))
    with pytest.raises(ValueError, match=r"no config\.json"):
        run(samples=good, weights=tmp_path, out=out)
    assert not out.exists()
