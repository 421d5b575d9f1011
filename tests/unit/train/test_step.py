"""`python -m train.step`: files in, files out, and clear words where there is no step."""

import fcntl
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
from train.settings import BatchSettings, LoraSettings, OptimizerSettings, TrainSettings
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


def good(tmp_path: Path) -> Path:
    return write(tmp_path / "s.parquet", [*map(make_sample, range(8))])


def test_a_state_goes_with_its_weights_in_bf16_too(weights: Path, tmp_path: Path) -> None:
    """With the weights that it was saved with the fp32 copy is taken; with others only the moments are."""
    settings = replace(SETTINGS, optimizer=replace(SETTINGS.optimizer, precision="bf16"))
    state, console = tmp_path / "adam", Console(record=True, width=200)

    def bf16(**files: Path) -> None:
        step(Files(samples=good(tmp_path), optimizer=state, **files), settings, console)

    bf16(weights=weights, out=tmp_path / "one")
    bf16(weights=tmp_path / "one", reference=weights, out=tmp_path / "two")
    assert "goes with other weights" not in console.export_text(clear=False)
    bf16(weights=weights, out=tmp_path / "three")
    assert "goes with other weights" in console.export_text()
    start, two, three = (load_file(folder / "model.safetensors") for folder in
                         (weights, tmp_path / "two", tmp_path / "three"))  # fmt: skip
    far = {name: [float((each[name].float() - start[name]).abs().max()) for each in (two, three)] for name in start}
    assert max(three for _, three in far.values()) < 0.75 * max(two for two, _ in far.values())


def test_folders_of_others_are_left_alone(weights: Path, tmp_path: Path) -> None:
    file = good(tmp_path)
    with pytest.raises(ValueError, match="can't be one folder"):
        run(samples=file, weights=weights, out=tmp_path / "x", optimizer=tmp_path / "x")
    with pytest.raises(ValueError, match="a new adapter has no state"):
        step(Files(samples=file, weights=weights, optimizer=tmp_path / "x"), replace(SETTINGS, lora=LoraSettings()),
             Console(quiet=True))  # fmt: skip
    (tmp_path / "adam.old").mkdir()
    (tmp_path / "real").mkdir()
    run(samples=file, weights=weights, optimizer=tmp_path / "real" / "adam")
    (tmp_path / "adam").symlink_to(tmp_path / "real" / "adam")
    run(samples=file, weights=weights, optimizer=tmp_path / "adam")
    assert (tmp_path / "adam.old").is_dir() and (tmp_path / "real" / "adam" / "state.json").exists()


def test_a_step_that_ended_between_two_renames_is_found_again(weights: Path, tmp_path: Path) -> None:
    file, state = good(tmp_path), tmp_path / "adam"
    run(samples=file, weights=weights, optimizer=state)
    state.rename(tmp_path / ".adam.old")
    run(samples=file, weights=weights, optimizer=state)
    engine = Engine(weights, SETTINGS.optimizer)
    engine.load_state(state, {})
    assert {int(each["step"]) for each in engine.adam().state.values()} == {2}


def test_two_steps_on_one_state_do_not_meet(weights: Path, tmp_path: Path) -> None:
    state = tmp_path / "adam"
    with (tmp_path / ".adam.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="in use by another step"):
            run(samples=good(tmp_path), weights=weights, optimizer=state)
    run(samples=good(tmp_path), weights=weights, optimizer=state)


def test_an_adapter_is_written_as_peft_has_it(weights: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, lora=LoraSettings(rank=4))
    step(Files(samples=good(tmp_path), weights=weights, out=tmp_path / "a"), settings, Console(quiet=True))
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
