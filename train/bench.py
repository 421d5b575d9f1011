"""Measures one update on this machine: seconds per phase, memory at its peak and at rest.

What it leaves out: quality. The samples are this model's own kind of text, repeated; only their shape matters.
Run: python -m train.bench [--model DIR] [--samples 16] [--prompt 100] [--response 120] [--steps 2] [--threads 2]
     [--endpoint http://127.0.0.1:8333 --url s3://bucket/bench]   with the object store's part (keys from AWS_*)
"""

import argparse
import hashlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.objects import ObjectStore
from storage.records import Sample, VersionSpan, new_id
from train.settings import OptimizerSettings, TrainSettings

MODEL = Path(__file__).resolve().parent.parent / ".models" / "smollm2-135m-instruct"


def make_samples(model: Path, count: int, prompt: int, response: int) -> list[Sample]:
    """Samples of exactly these lengths, a hint of 30 tokens on every second one, β 0.05 on all."""
    from train.gate import load_probes

    probes = load_probes(model / "tokenizer.json")
    text = tuple(token for probe in probes for token in (*probe.prompt_ids, *probe.response_ids))
    text = text * (2 + (prompt + response + count) // len(text))
    samples = []
    for index in range(count):
        ids = text[index * 7 : index * 7 + prompt + response]
        hint = index % 2 == 0
        samples.append(
            Sample(
                sample_id=f"bench-{index}-{new_id()}",
                exchange_id=f"bench-{index}",
                tenant="bench",
                track="personal",
                token_ids=ids,
                mask=(0,) * prompt + (1,) * response,
                rollout_logprobs=(-1.0,) * response,
                temperature=0.7,
                versions=(VersionSpan(version=0, start=0, end=response),),
                reward=1.0 if index % 3 else -1.0,
                hint="bench" if hint else None,
                enhanced_prompt_ids=text[:30] + ids[:prompt] if hint else None,
                group_id=None,
                step_index=None,
                kl_weight=0.05,
                loss_weight=1.0,
                created_at=time.time(),
            )
        )
    return samples


def status_mb(name: str) -> int:
    """A field of this process's status, as VmRSS, in MB."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields[name].split()[0]) // 1024


class Memory:
    """Resident memory of this process, in MB: now, and the highest since `reset`."""

    def __init__(self) -> None:
        self.peak = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.peak = max(self.peak, self.now()[0])
            time.sleep(0.02)

    def reset(self) -> None:
        """Forget the peak."""
        self.peak = 0

    @staticmethod
    def now() -> tuple[int, int]:
        """(all, without the file pages that the system can take back)."""
        return status_mb("VmRSS"), status_mb("RssAnon")


@contextmanager
def timed(name: str, memory: Memory) -> Iterator[None]:
    """Print what the block took."""
    memory.reset()
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    now, anonymous = memory.now()
    print(f"{name:<22} {wall:7.2f} s  {cpu:7.2f} cpu-s  peak {max(memory.peak, now):5d} MB"
          f"  now {now:5d} MB ({anonymous} without file pages)", flush=True)  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m train.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=100, help="tokens")
    parser.add_argument("--response", type=int, default=120, help="tokens")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--micro-batch-tokens", type=int, default=TrainSettings().batch.micro_batch_tokens)
    parser.add_argument("--recompute-above", type=int, default=OptimizerSettings().recompute_above_tokens)
    parser.add_argument("--endpoint")
    parser.add_argument("--url")
    options = parser.parse_args()
    os.environ.update(TrainSettings.environment())  # before torch
    if not (options.model / "config.json").exists():
        sys.exit(f"bench: no model in {options.model}: run `python -m infra.model`, or give --model")
    measure(options)


def measure(options: argparse.Namespace) -> None:
    """All phases of an update, one after the other."""
    import torch

    from train.gate import Gate, load_probes
    from train.megatron.engine import Engine
    from train.settings import BatchSettings
    from train.update import learn

    torch.set_num_threads(options.threads)
    batch = BatchSettings(micro_batch_tokens=options.micro_batch_tokens, max_train_tokens=1 << 20)
    settings, memory = TrainSettings(batch=batch), Memory()
    with timed("model", memory):
        engine = Engine(options.model, OptimizerSettings(recompute_above_tokens=options.recompute_above))
    with timed("gate's start", memory):
        gate = Gate(settings.gate, load_probes(options.model / "tokenizer.json"), engine.distributions)
    samples = make_samples(options.model, options.samples, options.prompt, options.response)
    with tempfile.TemporaryDirectory() as tmp:
        for step in range(options.steps):
            phases: list[tuple[str, float]] = [("start", time.perf_counter())]
            with timed(f"step {step}: learn", memory):
                learned = learn(
                    engine, samples, options.model, settings, new_id(),
                    lambda phase, done, total, to=phases: to.append((phase, time.perf_counter())),
                )  # fmt: skip
            ends = dict(phases)
            print(f"  teacher {ends.get('teacher', ends['start']) - ends['start']:.1f} s, "
                  f"reference to {ends.get('reference', ends['start']) - ends['start']:.1f} s, "
                  f"learn to {ends['learn'] - ends['start']:.1f} s; {learned.fault or 'no fault'}")  # fmt: skip
            engine.rest()
            with timed(f"step {step}: gate", memory):
                report = gate.check(engine)
            with timed(f"step {step}: export", memory):
                engine.export(Path(tmp) / f"v{step}", options.model)
            print("  " + ", ".join(f"{name} {value:.4g}" for name, value in learned.metrics.items()))
            print(f"  gate: {report}")
        _publish(options, engine, Path(tmp), memory)


def _publish(options: argparse.Namespace, engine: object, tmp: Path, memory: Memory) -> None:
    """What an export costs on its way out."""
    weights, state = tmp / "v0" / "model.safetensors", tmp / "optimizer"
    state.mkdir()
    with timed("hash", memory), weights.open("rb") as file:
        hashlib.file_digest(file, "sha256")
    with timed("save optimiser", memory):
        engine.save_state(state, {})
    with timed("load optimiser", memory):
        engine.load_state(state, {})
    if options.url:
        store = ObjectStore(
            options.url, endpoint=options.endpoint,
            access_key=os.environ.get("AWS_ACCESS_KEY_ID"), secret_key=os.environ.get("AWS_SECRET_ACCESS_KEY"),
        )  # fmt: skip
        for path in (weights, *state.iterdir()):
            with timed(f"upload {path.stat().st_size >> 20} MB", memory):
                store.upload_file(path, f"bench/{path.name}")
            store.delete(f"bench/{path.name}")


if __name__ == "__main__":
    main()
