"""The trainer's log-probs are the engine's: the 135M model in real SGLang and in Megatron, before and after a swap."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from infra.model import default_dir, fetch
from serve.engine import Engine as Served
from serve.engine import EngineSettings
from train.batch import Scored
from train.megatron.engine import Engine
from train.settings import OptimizerSettings

PROMPTS = (
    "<|im_start|>user\nWhat is a glacier?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite three names for a cat.<|im_end|>\n<|im_start|>assistant\n",
)
TEMPERATURES = (0.6, 1.0, 1.3, 0.0)
TOKENS = 48


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    engine = Served(EngineSettings(max_total_tokens=4096, log_dir=str(tmp_path / "logs"), start_timeout_s=400.0))
    await engine.start(fetch(default_dir()), 0)
    yield engine
    await engine.client.close()
    await engine.stop()


async def sampled(served: Served, tokenizer: Tokenizer) -> list[tuple[Scored, tuple[float, ...]]]:
    """What the engine says, and how likely it found that."""
    answers = []
    for temperature in TEMPERATURES:
        for prompt in PROMPTS:
            ids = tokenizer.encode(prompt, add_special_tokens=False).ids
            sampling = {"temperature": temperature, "max_new_tokens": TOKENS, "top_p": 0.95}
            chunks = [c async for c in served.client.generate_stream(ids, sampling, f"r{len(answers)}")]
            response = tuple(token for chunk in chunks for token in chunk.ids)
            logprobs = tuple(value for chunk in chunks for value in chunk.logprobs)
            scored = Scored(prompt_ids=tuple(ids), response_ids=response, temperature=temperature or 1.0)
            answers.append((scored, logprobs))
    return answers


def worst(engine: Engine, answers: list[tuple[Scored, tuple[float, ...]]]) -> float:
    found = engine.score([scored for scored, _ in answers], 512)
    return max(
        float((logp - torch.tensor(logprobs)).abs().max()) for logp, (_, logprobs) in zip(found, answers, strict=True)
    )


def train_away(engine: Engine, sequences: list[Scored]) -> None:
    """A step large enough to see."""
    engine.accumulate(sequences, lambda group, found: (-sum(each.logp.mean() for each in found), len(group)), 512)
    engine.step()
    engine.rest()


async def test_log_probs_agree_with_the_engine_of_the_same_version(served: Served, tmp_path: Path) -> None:
    model = fetch(default_dir())
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    torch.set_num_threads(1)
    engine = Engine(model, OptimizerSettings(learning_rate=2e-4))
    answers = await sampled(served, tokenizer)
    assert {len(logprobs) for _, logprobs in answers} - {0}
    before = await asyncio.to_thread(worst, engine, answers)
    print(f"largest difference at version 0: {before:.1e}")
    assert before < 1e-3

    await asyncio.to_thread(train_away, engine, [scored for scored, _ in answers[:2]])  # connections need the loop
    await asyncio.to_thread(engine.export, tmp_path / "v1", model)
    assert await asyncio.to_thread(worst, engine, answers) > 1e-2  # the weights did move
    await served.client.load(tmp_path / "v1", 1)
    after = await asyncio.to_thread(worst, engine, await sampled(served, tokenizer))
    print(f"largest difference at version 1: {after:.1e}")
    assert after < 1e-3
