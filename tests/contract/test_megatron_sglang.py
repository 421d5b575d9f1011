"""The trainer's log-probs are the engine's: the 135M model in real SGLang and in Megatron, before and after a swap."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from infra.model import default_dir, fetch
from serve.engine import Engine as Served
from serve.engine import EngineSettings
from train.batch import Scored
from train.megatron.channel import Channel, announced, chunks
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


async def through_memory(served: Served, engine: Engine, version: int) -> float:
    """The trainer's weights to the engine by a process group; an answer that is running meanwhile ends well."""
    ids = [1, 2, 3, 4]

    async def talk() -> list:
        sampling = {"temperature": 1.0, "max_new_tokens": 60, "ignore_eos": True}
        return [chunk async for chunk in served.client.generate_stream(ids, sampling, "meanwhile")]

    talking = asyncio.create_task(talk())
    channel = Channel()
    place = (channel.host, channel.port, channel.world, channel.name, channel.backend)
    await asyncio.gather(served.client.open_group(*place), asyncio.to_thread(channel.join))
    pieces = chunks(engine.model)
    assert len(pieces) > 1

    async def send(number: int) -> None:
        await asyncio.to_thread(channel.send, [tensor for _, tensor in pieces[number]])

    began = time.perf_counter()
    await served.client.receive(channel.name, [announced(piece) for piece in pieces], send, version)
    seconds = time.perf_counter() - began
    await served.client.close_group(channel.name)
    channel.close()
    answer = await talking
    assert sum(len(chunk.ids) for chunk in answer) == 60
    assert [span.version for span in answer[-1].spans][-1] == version
    return seconds


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

    await asyncio.to_thread(train_away, engine, [scored for scored, _ in answers[2:4]])
    seconds = await through_memory(served, engine, 2)
    print(f"version 2 from memory in {seconds:.2f} s")
    third = await sampled(served, tokenizer)
    assert await asyncio.to_thread(worst, engine, third) < 1e-3
    assert (await served.client.info())["weight_version"] == "2"
    for scored, _ in third[-len(PROMPTS) :]:  # temperature 0: each token is the trainer's own first choice
        first = (await asyncio.to_thread(engine.distributions, scored)).argmax(-1)
        assert tuple(first.tolist()) == scored.response_ids
