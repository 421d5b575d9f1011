"""One of two ranks that go through every layout, for test_layouts: python -m tests.unit.train.layouts RANK FOLDER.

FOLDER holds `models/<name>` and gets `<scenario>.pt` from rank 0, and what each scenario exports and saves.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from storage.records import Sample
from tests.unit.train.tiny import make_sample
from train.batch import Wanted, plain_sequence
from train.megatron.engine import Engine
from train.settings import BatchSettings, LossSettings, OptimizerSettings, ParallelSettings, TrainSettings
from train.update import learn

RATE = 1e-3
SAMPLES = [make_sample(seed, sample_id=f"s{seed}") for seed in range(9)]
FEW = SAMPLES[:1]  # fewer than the data-parallel shares
LAYOUTS = {
    "tensor": ParallelSettings(tensor=2),
    "pipeline": ParallelSettings(pipeline=2),
    "data": ParallelSettings(data=2),
}
DISTRIBUTED, BF16 = {"distributed": True}, {"precision": "bf16", "distributed": True}
EXTRAS = LossSettings(entropy_weight=0.1, distill_weight=1.0, distill_top_k=4)  # of scenarios named so
# scenario: (model, layout, what Adam is); qwen3 is untied, the others tie their embeddings
SCENARIOS: dict[str, tuple[str, str, dict]] = {
    f"{model}.{layout}": (model, layout, {}) for layout in LAYOUTS for model in ("llama", "qwen3")
} | {
    "qwen2.tensor": ("qwen2", "tensor", {}),
    "llama.tensor.extras": ("llama", "tensor", {}),
    "llama.data.extras": ("llama", "data", {}),
    "qwen3.tensor.bf16": ("qwen3", "tensor", BF16),
    "qwen3.pipeline.bf16": ("qwen3", "pipeline", BF16),
    "qwen3.data.distributed": ("qwen3", "data", DISTRIBUTED),
}


def single(name: str) -> str:
    """The same scenario on one rank."""
    model, _, *suffix = name.split(".")
    return ".".join([model, *suffix])


def settings(kind: dict, extras: bool = False) -> TrainSettings:
    return TrainSettings(
        batch=BatchSettings(full_batch=4, micro_batch_tokens=40, minibatches=2 if extras else 1),
        loss=EXTRAS if extras else LossSettings(),
        optimizer=OptimizerSettings(learning_rate=RATE, **kind),
        max_drift=9.0,
    )


def steps(
    engine: Engine, samples: list[Sample], kind: dict, reference: Path, count: int = 3, extras: bool = False
) -> list[dict]:
    """Metrics of each step."""
    found = []
    for number in range(count):
        learned = learn(engine, samples, reference, settings(kind, extras), f"u{number}", lambda *_: None)
        assert learned.fault is None and len(learned.scores) == len(samples), learned
        found.append(learned.metrics)
        engine.rest()
    return found


def play(make: Callable[[Path, OptimizerSettings], Engine], folder: Path, name: str, kind: dict, out: Path) -> dict:
    """Everything that a layout must not change."""
    optimizer = settings(kind).optimizer
    engine = make(folder, optimizer)
    sequences = [plain_sequence(sample) for sample in SAMPLES]
    found: dict = {
        "scores": engine.score(sequences, 40),
        "distribution": engine.distributions(sequences[0]),
        "more": engine.score_more(sequences, Wanted(entropy=True, top=4), 40)[2],
        "metrics": steps(engine, SAMPLES, kind, folder, extras="extras" in name),
    }
    engine.export(out / f"{name}.out", folder)
    state = out / f"{name}.state"
    if not dist.is_initialized() or dist.get_rank() == 0:
        state.mkdir()
    if dist.is_initialized():
        dist.barrier()
    assert engine.save_state(state, {"number": "3"})
    found["few"] = steps(engine, FEW, kind, folder, 1)
    engine.export(out / f"{name}.next", folder)
    other = make(out / f"{name}.out", optimizer)  # from its own files the next step is the same, bit for bit
    other.load_state(state, {"number": "3"})
    steps(other, FEW, kind, folder, 1)
    pairs = zip(engine.model.parameters(), other.model.parameters(), strict=True)
    found["restart"] = all(torch.equal(one, two) for one, two in pairs)
    again = make(folder, optimizer)  # and the same batch gives the same steps
    found["again"] = steps(again, SAMPLES, kind, folder, extras="extras" in name) == found["metrics"]
    found["fault"] = again.weight_fault()
    next(again.model.parameters()).data.fill_(float("nan") if dist.is_initialized() and dist.get_rank() else 1.0)
    found["fault of one rank"] = again.weight_fault()
    return found


def main() -> None:
    """All scenarios, one after the other, in one pair of processes."""
    from megatron.core import parallel_state

    from train.megatron.ranks import Place

    rank, out = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    store = dist.FileStore(str(out / "store"), 2)
    current = None
    for name, (model, layout, kind) in sorted(SCENARIOS.items(), key=lambda item: item[1][1]):
        if layout != current and current is not None:
            parallel_state.destroy_model_parallel()
        current = layout
        place = Place(rank=rank, layout=LAYOUTS[layout], store=store, timeout_s=120)

        def make(folder: Path, optimizer: OptimizerSettings, place: Place = place) -> Engine:
            return Engine(folder, optimizer, place)

        found = play(make, out / "models" / model, name, kind, out)
        one = out / "single" / single(name)
        engine = make(one.with_name(f"{one.name}.out"), settings(kind).optimizer)
        engine.load_state(one.with_name(f"{one.name}.state"), {"number": "3"})
        found["from single"] = steps(engine, FEW, kind, out / "models" / model, 1)
        engine.export(out / f"{name}.from_single", out / "models" / model)
        if rank == 0:
            torch.save(found, out / f"{name}.pt")
            print(name, flush=True)


if __name__ == "__main__":
    main()
