"""One update from files: samples and weights in, new weights out. For debugging, and to read how a step goes.

What it does: reads the samples, selects those that can train, computes gradients, steps, asks the gate, exports.
What it leaves out: versions, leases and the object store (`train/trainer.py`): nothing is committed or registered. It
steps on any number of samples, and goes on with no adapter: `--weights` is a whole model.

Run: python -m train.step --samples FILE.parquet --weights DIR [--out DIR] [--reference DIR] [--learning-rate 1e-5]
                          [--optimizer DIR] [--precision bf16] [--lora-rank 16] [--objective sft]
FILE is a shard of the dataset's `samples`, or any Parquet file with those columns. DIR is a folder that transformers
loads. Without --out the step is only shown; with --lora-rank an adapter is written. --optimizer is a folder: read if
it is there, replaced after the step.
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from safetensors import SafetensorError

from storage.arrow import from_row, schema
from storage.records import Sample, new_id
from train.settings import LoraSettings, TrainSettings

if TYPE_CHECKING:
    from train.megatron.engine import Engine


@dataclass(frozen=True, kw_only=True)
class Files:
    """Where an update comes from and goes to."""

    samples: Path
    weights: Path
    out: Path | None = None  # must not exist
    reference: Path | None = None  # what the KL term holds on to; none: `weights`
    optimizer: Path | None = None


def read_samples(path: Path) -> list[Sample]:
    """The rows of a Parquet file. Raises ValueError that names the file, the row and what is wrong with it."""
    try:
        frame = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as fault:
        raise ValueError(f"{path} can't be read as Parquet: {fault}") from fault
    missing = set(schema(Sample).names) - set(frame.columns)
    if missing:
        raise ValueError(f"{path} holds no samples: the columns {', '.join(sorted(missing))} are missing")
    samples = []
    for number, row in enumerate(frame.iter_rows(named=True)):
        try:
            samples.append(from_row(Sample, row))
        except (ValueError, TypeError) as fault:
            raise ValueError(f"{path}, row {number} ({row['sample_id']}): {fault}") from fault
    return samples


def step(files: Files, settings: TrainSettings, console: Console) -> dict[str, float]:
    """One update; its metrics. Raises ValueError, with nothing written, where there is nothing to learn from, the
    gradients must not be used, or the gate refuses the new weights."""
    if files.out is not None and files.out.exists():
        raise ValueError(f"{files.out} exists: name a folder that does not, or remove it")
    if files.optimizer is None:
        return _step(files, settings, console)
    if settings.lora is not None:
        raise ValueError("--optimizer and --lora-rank: a new adapter has no state to go on from; leave one out")
    state = files.optimizer.resolve()
    if files.out is not None and state == files.out.resolve():
        raise ValueError(f"{state}: weights and optimiser state can't be one folder: name two")
    state.parent.mkdir(parents=True, exist_ok=True)
    with (state.parent / f".{state.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as fault:
            raise ValueError(f"{state} is in use by another step: wait for it, or name another folder") from fault
        if _old(state).exists() and not state.exists():  # a step that ended between two renames
            _old(state).rename(state)
        return _step(replace(files, optimizer=state), settings, console)


def _step(files: Files, settings: TrainSettings, console: Console) -> dict[str, float]:
    from train.gate import Gate, load_probes
    from train.megatron.engine import Engine
    from train.update import learn

    samples = read_samples(files.samples)
    engine = Engine(files.weights, settings.optimizer, adapter=settings.lora)
    if files.optimizer is not None and files.optimizer.exists():
        _load_state(engine, files, console)
    kept = _select(samples, engine.vocab_size, settings, console)
    reference = files.reference or files.weights
    probes = load_probes(files.weights / "tokenizer.json")
    with Progress(TextColumn("{task.description:<10}"), BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn(),
                  console=console) as bars:  # fmt: skip
        tasks: dict[str, int] = {}

        def show(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=total)
            bars.update(tasks[phase], completed=done, total=total)  # type: ignore[arg-type]

        with engine.borrow(reference):
            gate = Gate(settings.gate, probes, engine.distributions)
        learned = learn(engine, kept, reference, settings, new_id(), show)
        if learned.fault:
            raise ValueError(f"these gradients must not be used: {learned.fault}")
        engine.rest()
        show("gate", 0, 1)
        report = gate.check(engine)
        show("gate", 1, 1)
    metrics = {**learned.metrics, "kl_start": report.kl_start, "entropy": report.entropy}
    _show(metrics, console)
    if report.reason:
        raise ValueError(f"the gate refuses the new weights: {report.reason}")
    if files.out is not None:
        _export(engine, files.out, files.weights)
        console.print(f"written: {files.out}")
    if files.optimizer is not None:
        _save_state(engine, files)
    return metrics


def _load_state(engine: "Engine", files: Files, console: Console) -> None:
    """Adam's state; where it was saved with other weights, its own fp32 copy of those is not taken."""
    assert files.optimizer is not None
    try:
        engine.load_state(files.optimizer, {"weights": _hash(files.weights)})
    except ValueError as fault:
        engine.load_state(files.optimizer, {})
        engine.load(files.weights)
        console.print(f"the optimiser's state goes with other weights, its moments are used all the same ({fault})")


def _hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _export(engine: "Engine", out: Path, base: Path) -> None:
    """Whole or not at all."""
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        engine.export(part, base)
        part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _old(state: Path) -> Path:
    return state.with_name(f".{state.name}.old")


def _save_state(engine: "Engine", files: Files) -> None:
    """Beside it first: an interrupted step leaves the state of the one before."""
    state = files.optimizer
    assert state is not None
    part = state.with_name(f".{state.name}.part")
    for path in (part, _old(state)):
        shutil.rmtree(path, ignore_errors=True)
    part.mkdir(parents=True)
    engine.save_state(part, {"weights": _hash(files.out) if files.out is not None else ""})
    if state.exists():
        state.rename(_old(state))
    part.rename(state)
    shutil.rmtree(_old(state), ignore_errors=True)


def _select(samples: Sequence[Sample], vocab_size: int, settings: TrainSettings, console: Console) -> list[Sample]:
    """Those that can train; says why of the others. Without a store each version counts as the head's ancestor."""
    from train.batch import select

    versions = {span.version for sample in samples for span in sample.versions}
    kept, left_out = select(
        samples,
        head=max(versions, default=0),
        lineage=versions,
        consumed=(),
        vocab_size=vocab_size,
        settings=settings.batch,
        objective=settings.loss.objective,
    )
    console.print(f"{len(samples)} samples, {len(kept)} of them train")
    for reason, count in Counter(left_out.values()).most_common():
        console.print(f"  {count} left out: {reason}")
    if not kept:
        raise ValueError("nothing to learn from: no sample can train")
    return kept


def _show(metrics: dict[str, float], console: Console) -> None:
    table = Table("metric", "value")
    for name, value in metrics.items():
        table.add_row(name, f"{value:.6g}")
    console.print(table)


def main() -> int:
    """0 after a step, 2 where there was none."""
    defaults, path = TrainSettings(), {"type": Path, "metavar": "DIR"}
    parser = argparse.ArgumentParser(
        prog="python -m train.step", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=Path, required=True, metavar="FILE", help="Parquet with the samples' columns")
    parser.add_argument("--weights", required=True, **path, help="what to start from; with --lora-rank the base")
    parser.add_argument("--out", **path, help="where the new weights go; must not exist")
    parser.add_argument("--reference", **path, help="what β holds on to (default: --weights, so that KL begins at 0)")
    parser.add_argument("--optimizer", **path, help="Adam's state: read if there, replaced after the step")
    parser.add_argument("--learning-rate", type=float, default=defaults.optimizer.learning_rate, help="(%(default)s)")
    parser.add_argument("--max-train-tokens", type=int, default=defaults.batch.max_train_tokens, help="(%(default)s)")
    parser.add_argument("--precision", default="fp32", help="fp32 or bf16 (%(default)s)")
    parser.add_argument("--lora-rank", type=int, help="train a new adapter of this rank; not with --optimizer")
    parser.add_argument("--objective", choices=("policy", "sft"), default="policy", help="(%(default)s)")
    given = vars(parser.parse_args())
    os.environ.update(TrainSettings.environment())  # before torch
    warnings.simplefilter("ignore")  # Megatron and torch say a dozen things at each import that concern nobody here
    base = defaults
    try:
        settings = replace(
            base,
            optimizer=replace(
                base.optimizer, learning_rate=given.pop("learning_rate"), precision=given.pop("precision")
            ),
            batch=replace(base.batch, max_train_tokens=given.pop("max_train_tokens")),
            loss=replace(base.loss, objective=given.pop("objective")),
            lora=None if (rank := given.pop("lora_rank")) is None else LoraSettings(rank=rank),
        )
        step(Files(**given), settings, Console())
    except (ValueError, OSError, SafetensorError) as fault:  # boundary: users get one line
        print(f"step: {fault}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
