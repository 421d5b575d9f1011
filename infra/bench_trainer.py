"""The trainer against a loop of transformers and torch's AdamW: the same batch, the same threads, one run.

What it does: each variant in a process of its own (so that peaks of memory are its own), a step to warm up, then a
measured one; prints tokens per CPU second, peaks and ratios. `Plain` is the loop that one would write: four samples at
a time in order of arrival, padded, logits at every position. Tests hold its loss, norms and weights against the
trainer's.
What it leaves out: quality, the object store (`python -m train.bench`).

    python -m infra.bench_trainer compare     fp32 and bf16, equal lengths and a real spread
    python -m infra.bench_trainer long        512 to 8,192 tokens in one sample: tokens/s and memory
    python -m infra.bench_trainer lora        rank 16 against all weights
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from storage.records import Sample
from train.bench import MODEL, make_samples, status_mb
from train.settings import BatchSettings, LoraSettings, OptimizerSettings, TrainSettings

EQUAL = ((100, 120),) * 16
# tokens of 16 GSM8K problems in SmolLM2-135M's chat format, and of what it answered at T 0.7 (at most 400)
SPREAD = (
    (84, 104), (116, 390), (98, 161), (88, 163), (123, 324), (130, 259), (58, 58), (124, 400),
    (106, 221), (72, 126), (103, 274), (93, 400), (74, 139), (132, 293), (82, 85), (72, 168),
)  # fmt: skip
MICRO_BATCH = 4  # samples, of the plain loop
MICRO_TOKENS = 1024  # of the trainer: four samples of equal length too
LENGTHS = (512, 1024, 2048, 4096, 8192)


class Plain:
    """transformers and torch.optim.AdamW. In bf16 by autocast: like the trainer's, its weights stay in fp32."""

    def __init__(self, folder: Path, settings: TrainSettings, precision: str = "fp32") -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.settings, self._torch = settings, torch
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
        adam = settings.optimizer
        matrices = [parameter for parameter in self.model.parameters() if parameter.dim() > 1]
        vectors = [parameter for parameter in self.model.parameters() if parameter.dim() <= 1]
        groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        self._adam = torch.optim.AdamW(
            groups, lr=adam.learning_rate, betas=(adam.beta1, adam.beta2), eps=adam.eps, weight_decay=adam.weight_decay
        )

    def step(self, samples: Sequence[Sample], others: dict[str, dict[str, Any]] | None = None) -> dict[str, float]:
        """One step on rewards, hints and β as the trainer takes it. `others`: {sample_id: {"teacher", "ref": [R]}}."""
        total = 0.0
        self._adam.zero_grad()
        for start in range(0, len(samples), MICRO_BATCH):
            loss = self._loss(samples[start : start + MICRO_BATCH], others or {})
            (loss / len(samples)).backward()
            total += float(loss.detach())
        clip = self.settings.optimizer.clip_grad
        norm = self._torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self._adam.step()
        return {"loss": total / len(samples), "grad_norm": float(norm)}

    def log_probs(self, prompts: Sequence[Sequence[int]], samples: Sequence[Sample]) -> list[Any]:
        """[R] log-probs of each sample's response after a prompt, at its temperature, by one padded forward."""
        torch = self._torch
        rows = [[*prompt, *sample.response_ids] for prompt, sample in zip(prompts, samples, strict=True)]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        with self._autocast:
            logits = self.model(ids, attention_mask=mask).logits
        temperatures = torch.tensor([sample.temperature or 1.0 for sample in samples])[:, None, None]
        logp = (logits[:, :-1].float() / temperatures).log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        return [
            logp[index, len(prompt) - 1 : len(row) - 1]
            for index, (prompt, row) in enumerate(zip(prompts, rows, strict=True))
        ]

    def _loss(self, samples: Sequence[Sample], others: dict[str, dict[str, Any]]) -> Any:
        torch, total = self._torch, 0.0
        logp = self.log_probs([sample.token_ids[: sample.prompt_length] for sample in samples], samples)
        for sample, ell in zip(samples, logp, strict=True):
            old = ell.detach()
            more = others.get(sample.sample_id, {})
            advantage = torch.full_like(old, sample.reward or 0.0)
            if "teacher" in more:
                advantage += (more["teacher"] - old).clamp(
                    -self.settings.advantages.gap_clip, self.settings.advantages.gap_clip
                )
            weight = (old - torch.tensor(sample.rollout_logprobs)).exp().clamp(max=self.settings.loss.max_importance)
            token = -weight * (ell - old).exp() * advantage
            if "ref" in more:
                gap = more["ref"] - ell
                token = token + sample.kl_weight * (gap.exp() - gap - 1)
            total = total + token.mean()
        return total


def batch(lengths: Sequence[tuple[int, int]]) -> list[Sample]:
    """Samples of these lengths, with rewards only."""
    made = [make_samples(MODEL, index + 1, *pair)[index] for index, pair in enumerate(lengths)]
    return [
        replace(sample, sample_id=f"b{index}", hint=None, enhanced_prompt_ids=None, kl_weight=0.0,
                reward=1.0 if index % 3 else -1.0)
        for index, sample in enumerate(made)
    ]  # fmt: skip


def one(options: argparse.Namespace) -> None:
    """A variant's measured step, as one line of JSON."""
    import torch

    torch.set_num_threads(options.threads)
    lengths = json.loads(options.lengths)
    samples = batch([tuple(pair) for pair in lengths])
    base_mb = status_mb("VmRSS")
    optimizer = OptimizerSettings(precision=options.precision)
    settings = TrainSettings(
        batch=BatchSettings(max_train_tokens=1 << 20, micro_batch_tokens=options.micro_tokens),
        optimizer=optimizer, max_drift=1e9, max_grad_norm=1e9,
        lora=LoraSettings() if options.variant == "lora" else None,
    )  # fmt: skip
    step = _plain_step(settings, options) if options.variant == "plain" else _engine_step(settings, options)
    rounds = []
    for _ in range(1 + options.steps):
        Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
        wall, cpu = time.perf_counter(), time.process_time()
        metrics = step(samples)
        rounds.append((time.perf_counter() - wall, time.process_time() - cpu, status_mb("VmHWM"), metrics))
    wall, cpu, peak, metrics = min(rounds[1:], key=lambda each: each[1]) if options.steps else rounds[0]
    tokens = sum(len(sample.token_ids) for sample in samples)
    print(json.dumps({"tokens": tokens, "wall_s": wall, "cpu_s": cpu, "peak_mb": peak, "base_mb": base_mb, **metrics}))


def _plain_step(settings: TrainSettings, options: argparse.Namespace) -> Any:
    return Plain(MODEL, settings, options.precision).step


def _engine_step(settings: TrainSettings, options: argparse.Namespace) -> Any:
    from train.megatron.engine import Engine
    from train.update import learn

    engine = Engine(MODEL, settings.optimizer, adapter=settings.lora)

    def step(samples: Sequence[Sample]) -> dict[str, float]:
        learned = learn(engine, samples, MODEL, settings, "bench", lambda *_: None)
        assert learned.fault is None, learned.fault
        engine.rest()
        return {name: learned.metrics[name] for name in ("loss", "grad_norm")}

    return step


def run(
    variant: str,
    precision: str,
    lengths: Sequence[tuple[int, int]],
    threads: int,
    steps: int,
    micro: int = MICRO_TOKENS,
) -> dict[str, float]:
    """A variant in a process of its own."""
    command = [sys.executable, "-m", "infra.bench_trainer", "one", "--variant", variant, "--precision", precision,
               "--lengths", json.dumps(lengths), "--threads", str(threads), "--steps", str(steps),
               "--micro-tokens", str(micro)]  # fmt: skip
    environment = {**os.environ, **TrainSettings.environment(), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise ValueError(f"{variant} in {precision} failed: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare(console: Console, threads: int, steps: int) -> None:
    """fp32 at equal lengths and at a real spread; bf16 on two samples only, for the loop takes minutes for each on CPUs
    without bf16 instructions."""
    table = Table(
        "batch", "precision", "tokens per CPU s", "plain loop", "ratio", "peak, MB", "plain, MB", "norm", "plain"
    )
    for name, lengths, precision in (("equal", EQUAL, "fp32"), ("spread", SPREAD, "fp32"), ("two", EQUAL[:2], "bf16")):
        ours, plain = (run(variant, precision, lengths, threads, steps) for variant in ("trainer", "plain"))
        speeds = [found["tokens"] / found["cpu_s"] for found in (ours, plain)]
        peaks = [f"{found['peak_mb']:.0f}" for found in (ours, plain)]
        norms = [f"{found['grad_norm']:.4f}" for found in (ours, plain)]
        speed = [f"{each:.1f}" for each in speeds]
        table.add_row(name, precision, *speed, f"{speeds[0] / speeds[1]:.2f}", *peaks, *norms)
        console.print(f"{name} {precision}: {ours['cpu_s']:.1f} CPU s, plain {plain['cpu_s']:.1f}")
    console.print(table)


def lora(console: Console, threads: int, steps: int) -> None:
    """An adapter of rank 16 against all weights, in the product's own micro-batches."""
    micro = BatchSettings().micro_batch_tokens
    adapter, full = (run(variant, "fp32", EQUAL[:8], threads, steps, micro) for variant in ("lora", "trainer"))
    table = Table("", "CPU s", "peak, MB", "above the start, MB")
    for name, found in (("rank 16", adapter), ("all weights", full)):
        table.add_row(
            name, f"{found['cpu_s']:.1f}", f"{found['peak_mb']:.0f}", f"{found['peak_mb'] - found['base_mb']:.0f}"
        )
    ratios = [adapter[key] / full[key] for key in ("cpu_s", "peak_mb")]
    table.add_row("ratio", *(f"{ratio:.2f}" for ratio in ratios), "")
    console.print(table)


def long(console: Console, threads: int) -> None:
    """One sample, ever longer."""
    table = Table("tokens", "tokens/s", "tokens per CPU s", "peak, MB")
    for length in LENGTHS:
        found = run("trainer", "fp32", ((length // 4, length - length // 4),), threads, 0 if length > 2048 else 1)
        table.add_row(
            f"{length:,}",
            f"{length / found['wall_s']:.1f}",
            f"{length / found['cpu_s']:.1f}",
            f"{found['peak_mb']:.0f}",
        )
        console.print(f"{length} tokens: {found['wall_s']:.1f} s")
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m infra.bench_trainer", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("compare", "long", "lora", "one"))
    parser.add_argument("--variant", choices=("trainer", "plain", "lora"), default="trainer")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--lengths", default="[[60, 60]]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--micro-tokens", type=int, default=MICRO_TOKENS, help="of the trainer's micro-batches")
    parser.add_argument("--steps", type=int, default=1, help="measured steps after the warm-up; the quickest counts")
    options = parser.parse_args()
    if not (MODEL / "config.json").exists():
        sys.exit(f"bench: no model in {MODEL}: run `python -m infra.model`")
    if options.what == "one":
        one(options)
    elif options.what == "compare":
        compare(Console(), options.threads, options.steps)
    elif options.what == "lora":
        lora(Console(), options.threads, options.steps)
    else:
        long(Console(), options.threads)


if __name__ == "__main__":
    main()
