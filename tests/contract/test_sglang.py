"""The real SGLang on the real 135M model: what the engine, the policy and the gateway rely on.

One server for all of it: starting one takes half a minute of CPU and 2 GB.
"""

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from infra.model import NAME, default_dir
from serve.engine import EngineSettings
from serve.engine_client import Chunk, EngineClient, EngineDown, EngineError
from serve.gateway import Gateway, GatewaySettings, Where
from serve.listener import Listener
from serve.policy import Policy, PolicySettings, Weights, base_weights
from serve.rendering import Renderer
from storage.journal import JournalTail, JournalWriter
from storage.records import Exchange

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

MODEL = default_dir()
ASK = [{"role": "user", "content": "Tell me about bread."}]
CLOCK = {"type": "function", "function": {"name": "clock", "description": "The time.",
                                          "parameters": {"type": "object", "properties": {}}}}  # fmt: skip


class FolderSource:
    """Versions as folders, the alias in memory."""

    def __init__(self, folder: Path) -> None:
        self.alias: int | None = None
        self._folder = folder

    def wanted(self) -> int | None:
        return self.alias

    def fetch(self, number: int) -> Weights:
        base = base_weights(self._folder / f"v{number:06d}")
        return Weights(number, base.path, base.sha256)


class PolicyLinkHere:
    """The policy in this process."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    async def where(self, fresh: bool = False) -> Where:
        return Where(**self.policy.address())

    async def status(self) -> dict[str, Any]:
        return self.policy.status()


@dataclass
class Served:
    """Policy and gateway, both real."""

    policy: Policy
    source: FolderSource
    gateway: Gateway
    url: str
    root: Path

    @property
    def client(self) -> EngineClient:
        return self.policy.engine.client

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.gateway.renderer.prompt_ids(ASK)

    def openai(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self.url + "/v1", api_key="sk-contract", max_retries=0)

    async def exchange(self, id: str, within_s: float = 10.0) -> Exchange:
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            for event in JournalTail(self.root, NAME).poll():
                if event.kind == "exchange" and event.record.exchange_id == id.removeprefix("chatcmpl-"):
                    return event.record
            await asyncio.sleep(0.1)
        raise AssertionError(f"{id} was not recorded")


def weights_folder(root: Path, number: int, scale: float) -> None:
    """A version: the base with its last norm scaled (so that greedy answers stay, and log-probabilities move)."""
    from safetensors.torch import load_file, save_file

    folder = root / f"v{number:06d}"
    folder.mkdir()
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / name, folder)
    tensors = load_file(MODEL / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * scale
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    root = tmp_path_factory.mktemp("served")
    for number, scale in ((1, 0.5), (2, 0.8)):
        weights_folder(root, number, scale)
    source = FolderSource(root)
    settings = PolicySettings(
        model=NAME, base_model_dir=str(MODEL), weights_dir=str(root / "weights"), poll_s=0.2,
        engine=EngineSettings(log_dir=str(root / "logs"), start_timeout_s=600),
    )  # fmt: skip
    policy = Policy(settings, source)
    await policy.start()
    await policy.ready(600)
    made = GatewaySettings(
        model=NAME, model_dir=str(MODEL), journal_root=str(root / "journal"), api_keys={"sk-contract": "t"},
        engine_wait_s=600,
    )  # fmt: skip
    journal = JournalWriter(root / "journal", NAME, "gateway-contract")
    gateway = Gateway(made, PolicyLinkHere(policy), journal, Renderer(MODEL))
    listener = Listener(gateway, "127.0.0.1", 0)
    await listener.start()
    yield Served(policy, source, gateway, f"http://127.0.0.1:{listener.port}", root / "journal")
    await listener.stop(2)
    await gateway.close()
    await policy.close()


async def collect(client: EngineClient, ids: Any, rid: str, **sampling: Any) -> list[Chunk]:
    return [chunk async for chunk in client.generate_stream(ids, {"temperature": 0, **sampling}, rid)]


def ids_of(chunks: list[Chunk]) -> list[int]:
    return [id for chunk in chunks for id in chunk.ids]


async def serve_version(served: Served, number: int) -> None:
    served.source.alias = number
    served.policy.poke()
    for _ in range(600):
        if served.policy.weights is not None and served.policy.weights.version == number:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"version {number} was not served: {served.policy.status()}")


async def test_increments_not_repetitions(served: Served) -> None:
    chunks = await collect(served.client, served.prompt, "a", max_new_tokens=12, ignore_eos=True)
    assert len(chunks) > 6  # a busy machine joins some
    ids = ids_of(chunks)
    logprobs = [value for chunk in chunks for value in chunk.logprobs]
    assert len(ids) == len(logprobs) == 12 and all(value <= 0 for value in logprobs)
    assert chunks[-1].finish == "length" and [(s.start, s.end) for s in chunks[-1].spans] == [(0, 12)]
    again = await collect(served.client, served.prompt, "b", max_new_tokens=12, ignore_eos=True)
    assert ids_of(again) == ids  # greedy


async def test_the_end_of_the_answer_is_a_sampled_token(served: Served) -> None:
    """It is recorded, so that the model learns to stop."""
    bias = {str(served.gateway.renderer.eos_ids[0]): 100}
    chunks = await collect(served.client, served.prompt, "e", max_new_tokens=5, logit_bias=bias)
    assert chunks[-1].finish == "stop" and chunks[-1].ids == (served.gateway.renderer.eos_ids[0],)


async def test_an_idle_connection_is_still_good_when_the_loop_was_busy_meanwhile(served: Served) -> None:
    assert (await collect(served.client, served.prompt, "before", max_new_tokens=3))[-1].finish
    time.sleep(6.5)  # noqa: ASYNC251: no task of ours runs, so that nobody sees the server hang up; its default is 5 s
    assert (await collect(served.client, served.prompt, "after", max_new_tokens=3))[-1].finish


async def test_abort_ends_one_answer_only(served: Served) -> None:
    one = asyncio.create_task(collect(served.client, served.prompt, "one", max_new_tokens=400, ignore_eos=True))
    two = asyncio.create_task(collect(served.client, served.prompt, "two", max_new_tokens=20, ignore_eos=True))
    await asyncio.sleep(1)
    await served.client.abort("one")
    aborted = await asyncio.wait_for(one, 60)
    assert aborted[-1].finish == "abort" and sum(len(chunk.ids) for chunk in aborted) < 400
    assert (await two)[-1].finish == "length"
    await served.client.abort("nobody")


async def test_a_swap_cuts_no_answer_and_each_token_knows_its_version(served: Served) -> None:
    await serve_version(served, 1)
    before = await collect(served.client, served.prompt, "w", max_new_tokens=4)
    running = [
        asyncio.create_task(collect(served.client, served.prompt, f"s{n}", max_new_tokens=60, ignore_eos=True))
        for n in range(4)
    ]
    await asyncio.sleep(1.5)
    await serve_version(served, 2)
    for chunks in await asyncio.gather(*running):
        spans = chunks[-1].spans
        assert chunks[-1].finish == "length" and sum(len(chunk.ids) for chunk in chunks) == 60
        assert [span.version for span in spans] == [1, 2] and spans[-1].end == 60
    after = await collect(served.client, served.prompt, "x", max_new_tokens=4)
    assert after[0].version == 2
    assert abs(after[0].logprobs[0] - before[0].logprobs[0]) > 1e-3  # these are other weights
    status = served.policy.status()
    assert status["sha256"] == base_weights(status["path"]).sha256 and status["last_swap_s"] < 60


async def test_weights_that_do_not_fit_are_refused_and_the_old_ones_go_on(served: Served, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((MODEL / "config.json").read_text())
    before = await collect(served.client, served.prompt, "f", max_new_tokens=4)
    with pytest.raises(EngineError):
        await served.client.load(tmp_path, 9)
    after = await collect(served.client, served.prompt, "g", max_new_tokens=4)
    assert ids_of(after) == ids_of(before)
    assert after[0].logprobs[0] == pytest.approx(before[0].logprobs[0], abs=1e-4)


async def test_the_official_client_streams_through_the_gateway(served: Served) -> None:
    chunks, arrived = [], []
    async with served.openai() as client:
        stream = await client.chat.completions.create(
            model=NAME, messages=ASK, stream=True, max_tokens=40, temperature=0.7,
            stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
        )  # fmt: skip
        async for chunk in stream:
            chunks.append(chunk)
            arrived.append(time.monotonic())
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 40
    assert len(texts) >= 0.8 * 40
    assert arrived[1] - arrived[0] < 0.5 * (arrived[-1] - arrived[0])
    exchange = await served.exchange(chunks[0].id)
    assert len(exchange.response_ids) == 40 and exchange.finish_reason == "length"
    assert exchange.prompt_ids == served.prompt
    assert exchange.answer["content"] == "".join(texts)


async def test_a_tool_can_be_required(served: Served) -> None:
    async with served.openai() as client:
        answer = await client.chat.completions.create(
            model=NAME, messages=ASK, tools=[CLOCK], tool_choice="required", max_tokens=40, temperature=0
        )
    choice = answer.choices[0]
    exchange = await served.exchange(answer.id)
    assert exchange.sampling["tool_choice"] == "required"
    if choice.finish_reason == "tool_calls":  # a 135M model may fail at closing the call: then it is content
        assert choice.message.tool_calls and choice.message.tool_calls[0].function.name == "clock"


async def test_json_answers_keep_to_their_schema(served: Served) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with served.openai() as client:
        answer = await client.chat.completions.create(
            model=NAME, messages=ASK, max_tokens=60, temperature=0,
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        )  # fmt: skip
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content or "")["n"], int)
    assert (answer.choices[0].message.content or "").lstrip().startswith("{")


async def test_a_stop_string_stops_the_engine_too(served: Served) -> None:
    async with served.openai() as client:
        answer = await client.chat.completions.create(
            model=NAME, messages=ASK, max_tokens=200, temperature=0, stop=["."], extra_body={"ignore_eos": True}
        )
    assert answer.choices[0].finish_reason == "stop" and "." not in (answer.choices[0].message.content or "")
    exchange = await served.exchange(answer.id)
    assert len(exchange.response_ids) < 200


async def test_a_client_that_hangs_up_frees_the_engine(served: Served) -> None:
    body = {"model": NAME, "messages": ASK, "stream": True, "max_tokens": 2000, "ignore_eos": True}
    url, headers = served.url + "/v1/chat/completions", {"authorization": "Bearer sk-contract"}
    async with aiohttp.ClientSession(headers=headers) as http, http.post(url, json=body) as response:
        id = response.headers["x-exchange-id"]
        for _ in range(5):
            await response.content.readuntil(b"\n\n")
    exchange = await served.exchange(id, within_s=30)
    assert exchange.finish_reason == "abort" and 0 < len(exchange.response_ids) < 500
    assert served.gateway.in_flight == 0


async def test_it_listens_on_loopback_only(served: Served) -> None:
    assert served.policy.engine.pid is not None
    engine = psutil.Process(served.policy.engine.pid)
    listening = [
        connection.laddr.ip
        for process in (engine, *engine.children(recursive=True))
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening and set(listening) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


async def test_a_killed_engine_takes_its_children_and_comes_back_with_its_version(served: Served) -> None:
    """Last: it starts the engine again."""
    await serve_version(served, 1)
    pid = served.policy.engine.pid
    assert pid is not None
    children = psutil.Process(pid).children(recursive=True)
    stream = asyncio.create_task(collect(served.client, served.prompt, "k", max_new_tokens=400, ignore_eos=True))
    await asyncio.sleep(1)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineDown):
        await stream
    _, alive = await asyncio.to_thread(psutil.wait_procs, children, 10)
    assert not alive
    async with served.openai() as client:  # waits for it
        answer = await client.chat.completions.create(model=NAME, messages=ASK, max_tokens=5)
    assert served.policy.restarts == 1 and served.policy.engine.pid != pid
    assert (await served.exchange(answer.id)).version == 1
