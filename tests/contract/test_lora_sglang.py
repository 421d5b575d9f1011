"""An adapter from the trainer in the real SGLang: beside its base, and merged into it, with the trainer's log-probs."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from infra.model import default_dir, fetch
from serve.engine import Engine as Served
from serve.engine import EngineSettings
from tests.unit.train.lora_model import adapted_model, score, train
from train import lora_merge
from train.batch import Scored
from train.megatron import lora
from train.megatron.engine import Engine
from train.settings import LORA_TARGETS, LoraSettings, OptimizerSettings

PROMPTS = (
    "<|im_start|>user\nWhat is a glacier?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite three names for a cat.<|im_end|>\n<|im_start|>assistant\n",
)
SETTINGS = LoraSettings(rank=8, alpha=16.0)
FLAGS = (
    *("--enable-lora", "--lora-backend", "torch_native"),  # the others are Triton's kernels
    *("--max-lora-rank", str(SETTINGS.rank), "--lora-target-modules", *LORA_TARGETS),
)
# SGLang's LoRA layers ask for pinned memory without asking whether there is an accelerator to pin it for
UNPINNED = """
import runpy, torch
def plain(make):
    return lambda *args, pin_memory=False, **more: make(*args, **more)
for name in ("tensor", "empty", "zeros"):
    setattr(torch, name, plain(getattr(torch, name)))
torch.Tensor.pin_memory = lambda self, *args, **more: self
runpy.run_module("serve.sglang_cpu", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True, kw_only=True)
class UnpinnedSettings(EngineSettings):
    """SGLang as elsewhere, started by UNPINNED."""

    def command(self, model_path: Path | str, version: int, port: int) -> list[str]:
        """With the start replaced."""
        words = super().command(model_path, version, port)
        at = words.index("-m")
        return [*words[:at], "-c", UNPINNED, *words[at + 2 :]]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    settings = UnpinnedSettings(
        max_total_tokens=4096, log_dir=str(tmp_path / "logs"), start_timeout_s=400.0, extra_args=FLAGS
    )
    engine = Served(settings)
    await engine.start(fetch(default_dir()), 0)
    yield engine
    await engine.close()


async def say(served: Served, prompt: list[int], temperature: float, adapter: str | None) -> tuple[Scored, list[float]]:
    """What the engine says, and how likely it found that."""
    body: dict[str, Any] = {
        "input_ids": prompt,
        "sampling_params": {"temperature": temperature, "max_new_tokens": 32, "ignore_eos": True},
        "return_logprob": True,
        "lora_path": adapter,
    }
    found = await served.client._post("/generate", body, within_s=200.0)
    pairs = found["meta_info"]["output_token_logprobs"]
    response = tuple(token for _, token, _ in pairs)
    scored = Scored(prompt_ids=tuple(prompt), response_ids=response, temperature=temperature or 1.0)
    return scored, [value for value, _, _ in pairs]


async def answers(served: Served, adapter: str | None) -> list[tuple[Scored, list[float]]]:
    tokenizer = Tokenizer.from_file(str(fetch(default_dir()) / "tokenizer.json"))
    prompts = [tokenizer.encode(prompt, add_special_tokens=False).ids for prompt in PROMPTS]
    return [await say(served, prompt, temperature, adapter) for prompt in prompts for temperature in (0.0, 0.8)]


def greedy(said: list[tuple[Scored, list[float]]]) -> list[Scored]:
    return [scored for scored, _ in said if scored.temperature == 1.0]


def worst(logp: list[torch.Tensor], said: list[tuple[Scored, list[float]]]) -> float:
    return max(float((mine - torch.tensor(theirs)).abs().max()) for mine, (_, theirs) in zip(logp, said, strict=True))


def make_adapters(folder: Path, said: list[tuple[Scored, list[float]]]) -> lora.GPTModel:
    """Two versions of one adapter, and the second one merged. Returns the model as it is then."""
    model = adapted_model(fetch(default_dir()), SETTINGS)
    for version in (1, 2):
        train(model, [scored for scored, _ in said], steps=2, rate=2e-3)
        lora.export_adapter(model, folder / f"v{version}", fetch(default_dir()))
    lora_merge.merge(fetch(default_dir()), folder / "v2", folder / "merged")
    return model


async def test_sglang_serves_the_adapter_and_the_merged_model(served: Served, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    base = await answers(served, None)
    model = await asyncio.to_thread(make_adapters, tmp_path, base)  # connections need the loop
    merged = await asyncio.to_thread(Engine, tmp_path / "merged", OptimizerSettings())
    for version in (1, 2):
        began = time.monotonic()
        body = {"lora_name": f"v{version}", "lora_path": str(tmp_path / f"v{version}")}
        await served.client._post("/load_lora_adapter", body, within_s=60.0)
        print(f"adapter {version} loaded in {time.monotonic() - began:.2f} s")
    said = await answers(served, "v2")

    sequences = [scored for scored, _ in said]
    by_adapter = [each.detach() for each in await asyncio.to_thread(score, model, sequences)]
    by_merged = await asyncio.to_thread(merged.score, sequences, 512)
    print(f"largest difference: adapter {worst(by_adapter, said):.1e}, merged {worst(by_merged, said):.1e}")
    assert worst(by_adapter, said) < 1e-3 and worst(by_merged, said) < 1e-3
    assert greedy(await answers(served, "v1")) != greedy(said), "two adapters, one answer"
    assert greedy(await answers(served, None)) == greedy(base), "the base beside its adapters is as it was"
    with lora.base_only(model):
        assert worst([each.detach() for each in score(model, [scored for scored, _ in base])], base) < 1e-3
        assert worst([each.detach() for each in score(model, sequences)], said) > 1e-2

    await served.client._post("/unload_lora_adapter", {"lora_name": "v1"}, within_s=60.0)
    await served.client.load(tmp_path / "merged", 2)
    assert greedy(await answers(served, None)) == greedy(said), "greedy by merged weights and by the adapter differ"
