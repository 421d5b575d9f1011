"""The gateway over real HTTP, real templates and a real journal; only the engine is a stand-in."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tokenizers import Tokenizer

from serve.gateway import Gateway, GatewaySettings
from serve.listener import Listener
from serve.rendering import Renderer
from storage.journal import JournalTail, JournalWriter
from storage.records import Exchange, NextState
from tests.unit.serve.rendering_models import byte_level_model
from tests.unit.serve.stand_in_engine import StandInEngine, StandInLink

KEY, OTHER = "sk-alice-1", "sk-bob-1"
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
HI = [{"role": "user", "content": "hello"}]


@dataclass
class Rig:
    """A gateway that listens, and what is around it."""

    gateway: Gateway
    engine: StandInEngine
    link: StandInLink
    tokenizer: Tokenizer
    root: Path
    url: str
    http: aiohttp.ClientSession

    def says(self, text: str) -> None:
        """What the engine will answer."""
        self.engine.ids = self.tokenizer.encode(text, add_special_tokens=False).ids

    def post(self, path: str = "/v1/chat/completions", key: str = KEY, headers: Any = None, **body: Any) -> Any:
        given = {"model": "m", "messages": HI, **body} if path.endswith("completions") else body
        sent = {"authorization": f"Bearer {key}", **(headers or {})}
        return self.http.post(self.url + path, json=given, headers=sent)

    def get(self, path: str, key: str = KEY) -> Any:
        return self.http.get(self.url + path, headers={"authorization": f"Bearer {key}"})

    def recorded(self) -> list[Any]:
        return [event.record for event in JournalTail(self.root, "m").poll()]

    async def exchanges(self, count: int = 1, within_s: float = 5.0) -> list[Exchange]:
        for _ in range(int(within_s / 0.05)):
            found = [record for record in self.recorded() if isinstance(record, Exchange)]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.05)
        raise AssertionError(f"{len(found)} of {count} exchanges were recorded")


async def events(response: aiohttp.ClientResponse) -> list[Any]:
    """Of a stream: parsed chunks, "[DONE]", and comments."""
    found: list[Any] = []
    for event in (await response.text()).split("\n\n"):
        if event.startswith("data: "):
            found.append(event[6:] if event == "data: [DONE]" else json.loads(event[6:]))
        elif event:
            found.append(event)
    return found


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return byte_level_model(tmp_path / "model")


@pytest.fixture
async def rig(model_dir: Path, tmp_path: Path) -> AsyncIterator[Rig]:
    engine = await StandInEngine().start()
    link = StandInLink(engine.url)
    root = tmp_path / "journal"
    settings = GatewaySettings(
        model="m", model_dir=str(model_dir), journal_root=str(root), api_keys={KEY: "alice", OTHER: "bob"},
        engine_wait_s=0.6, record_wait_s=1.0, max_body_bytes=200_000,
    )  # fmt: skip
    gateway = Gateway(settings, link, JournalWriter(root, "m", "gateway-test"), Renderer(model_dir))
    listener = Listener(gateway, "127.0.0.1", 0)
    await listener.start()
    async with aiohttp.ClientSession() as http:
        tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        yield Rig(gateway, engine, link, tokenizer, root, f"http://127.0.0.1:{listener.port}", http)
    await listener.stop(1)
    await gateway.close()
    await engine.stop()


async def test_a_streamed_answer_is_the_engines_ids_and_is_recorded(rig: Rig) -> None:
    rig.says("Good morning, wörld!")
    async with rig.post(stream=True, stream_options={"include_usage": True}) as response:
        assert response.status == 200
        found = await events(response)
    *chunks, counted, done = found
    assert done == "[DONE]" and counted["choices"] == []
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == "Good morning, wörld!"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    (exchange,) = await rig.exchanges()
    assert exchange.response_ids == tuple(rig.engine.ids)
    assert exchange.response_logprobs == (-0.25,) * len(rig.engine.ids)
    assert exchange.prompt_ids == tuple(rig.engine.requests[0]["input_ids"])
    assert exchange.answer["content"] == text and exchange.tenant == "alice"
    assert counted["usage"]["completion_tokens"] == len(rig.engine.ids)
    assert chunks[0]["id"] == f"chatcmpl-{exchange.exchange_id}" == f"chatcmpl-{response.headers['x-exchange-id']}"
    assert response.headers["x-weight-version"] == "0" and response.headers["x-recorded"] == "true"
    assert exchange.first_token_s is not None and exchange.first_token_s <= exchange.latency_s


async def test_the_first_chunk_arrives_before_the_last_token_is_sampled(rig: Rig) -> None:
    rig.says("one two three")
    rig.engine.gate = asyncio.Event()
    async with rig.post(stream=True) as response:
        first = await asyncio.wait_for(response.content.readuntil(b"\n\n"), 5)
        assert first.startswith(b"data: ")
        assert rig.engine.sent < len(rig.engine.ids)
        rig.engine.gate.set()
        assert (await response.text()).endswith("data: [DONE]\n\n")


async def test_a_whole_answer(rig: Rig) -> None:
    rig.says("Good morning")
    async with rig.post(logprobs=True, top_logprobs=1) as response:
        answer = await response.json()
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "Good morning", "refusal": None}
    assert len(choice["logprobs"]["content"]) == len(rig.engine.ids) == answer["usage"]["completion_tokens"]
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == "Good morning"
    assert response.headers["x-recorded"] == "true"
    assert rig.engine.requests[0]["top_logprobs_num"] == 1


async def test_a_stream_gives_every_tokens_logprob(rig: Rig) -> None:
    rig.says("Good morning  ")  # the white space at the end is held back
    async with rig.post(logprobs=True, stream=True) as response:
        found = await events(response)
    shown = [chunk["choices"][0]["logprobs"] for chunk in found[:-1]]
    assert sum(len(entry["content"]) for entry in shown if entry) == len(rig.engine.ids)


async def test_an_answer_cut_by_length_says_so(rig: Rig) -> None:
    rig.says("one two three four five")
    async with rig.post(max_tokens=3) as response:
        answer = await response.json()
    assert answer["choices"][0]["finish_reason"] == "length"
    (exchange,) = await rig.exchanges()
    assert exchange.finish_reason == "length" and len(exchange.response_ids) == 3
    assert exchange.sampling["max_tokens"] == 3


async def test_a_stop_string_ends_the_text(rig: Rig) -> None:
    rig.says("first line STOP second line")
    async with rig.post(stop=["STOP"], stream=True) as response:
        found = await events(response)
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in found[:-1])
    assert text.rstrip() == "first line" and found[-2]["choices"][0]["finish_reason"] == "stop"
    (exchange,) = await rig.exchanges()
    assert len(exchange.response_ids) < len(rig.engine.ids) or exchange.finish_reason == "stop"


async def test_a_tool_call_is_given_and_recorded(rig: Rig) -> None:
    rig.says('<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>')
    async with rig.post(tools=[CLOCK], stream=True) as response:
        found = await events(response)
    calls = [c for chunk in found[:-1] for c in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert calls[0]["function"]["name"] == "clock" and calls[0]["id"] and calls[0]["type"] == "function"
    assert "".join(call["function"]["arguments"] for call in calls) == "{}"
    assert found[-2]["choices"][0]["finish_reason"] == "tool_calls"
    (exchange,) = await rig.exchanges()
    assert exchange.answer["tool_calls"][0]["id"] == calls[0]["id"] and exchange.tools == [CLOCK]


async def test_tokens_of_two_versions_keep_their_spans(rig: Rig) -> None:
    rig.says("one two three four")
    rig.engine.swap_at = 2
    async with rig.post() as response:
        assert response.headers["x-weight-version"] == "1"
    (exchange,) = await rig.exchanges()
    assert [(s.version, s.start, s.end) for s in exchange.version_spans] == [(0, 0, 2), (1, 2, len(rig.engine.ids))]
    assert exchange.version == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_hangs_up_aborts_the_generation(rig: Rig, stream: bool) -> None:
    rig.says("word " * 200)
    rig.engine.delay_s = 0.02
    request = asyncio.create_task(rig.post(stream=stream).__aenter__())
    while rig.engine.sent < 3:
        await asyncio.sleep(0.01)
    if stream:
        (await request).close()
    else:
        request.cancel()
    (exchange,) = await rig.exchanges()
    assert exchange.finish_reason == "abort" and 0 < len(exchange.response_ids) < 100
    assert rig.engine.aborted and rig.gateway.in_flight == 0


async def test_an_engine_that_dies_in_the_middle_is_an_error_event_and_recorded(rig: Rig) -> None:
    rig.says("one two three four five")
    rig.engine.die_after = 3
    async with rig.post(stream=True) as response:
        found = await events(response)
    assert response.status == 200 and found[-1]["error"]["type"] == "overloaded_error"
    (exchange,) = await rig.exchanges()
    assert exchange.finish_reason == "error" and len(exchange.response_ids) == 3 and exchange.error
    assert exchange.version_spans[-1].end == 3


async def test_an_engine_that_dies_before_the_first_token_is_waited_for(rig: Rig) -> None:
    rig.says("one two")
    rig.engine.die_after = 0
    request = asyncio.create_task(rig.post().__aenter__())
    while not rig.engine.requests:
        await asyncio.sleep(0.01)
    rig.engine.die_after = None  # it was started again
    response = await request
    assert response.status == 200 and len(rig.engine.requests) == 2
    assert len(await rig.exchanges()) == 1


@pytest.mark.parametrize("state", ["starting", "restarting"])
async def test_an_engine_that_is_not_there_is_a_503_after_a_wait(rig: Rig, state: str) -> None:
    rig.link.state = state
    async with rig.post() as response:
        answer = await response.json()
    assert response.status == 503 and response.headers["retry-after"] == "5" and state in answer["error"]["message"]
    (exchange,) = await rig.exchanges()
    assert exchange.finish_reason == "error" and exchange.messages == HI


async def test_what_the_engine_refuses_is_told(rig: Rig) -> None:
    rig.engine.error = "this grammar does not compile"
    async with rig.post(response_format={"type": "json_object"}) as response:
        assert response.status == 400 and "grammar" in (await response.json())["error"]["message"]


async def test_an_abort_by_the_engine_is_an_error(rig: Rig) -> None:
    rig.says("one two three")
    rig.engine.abort_with = {"type": "abort", "message": "out of memory", "status_code": 503}
    async with rig.post() as response:
        assert response.status == 503
    (exchange,) = await rig.exchanges()
    assert exchange.finish_reason == "error" and exchange.error == "out of memory"


async def test_a_prompt_over_the_window_is_refused_naming_both_lengths_and_recorded(rig: Rig) -> None:
    window = rig.gateway.renderer.window
    async with rig.post(messages=[{"role": "user", "content": "word " * (2 * window)}]) as response:
        error = (await response.json())["error"]
    assert response.status == 400 and error["code"] == "context_length_exceeded" and str(window) in error["message"]
    (exchange,) = await rig.exchanges()
    assert exchange.finish_reason == "refused" and str(len(exchange.prompt_ids)) in error["message"]
    assert exchange.answer is None and response.headers["x-exchange-id"] == exchange.exchange_id


async def test_too_many_at_once_are_told_to_come_back(rig: Rig) -> None:
    rig.gateway.settings = replace(rig.gateway.settings, max_in_flight=1)
    rig.says("one two")
    rig.engine.gate = asyncio.Event()
    request = asyncio.create_task(rig.post().__aenter__())
    while not rig.gateway.in_flight:
        await asyncio.sleep(0.01)
    async with rig.post() as response:
        assert response.status == 429 and response.headers["retry-after"] == "1"
    rig.engine.gate.set()
    assert (await request).status == 200


async def test_keys_decide_who_asks(rig: Rig) -> None:
    async with rig.post(key="sk-wrong") as response:
        error = (await response.json())["error"]
    assert response.status == 401 and error["code"] == "invalid_api_key" and "sk-wrong" not in json.dumps(error)
    async with rig.http.get(rig.url + "/v1/models") as response:
        assert response.status == 401
    async with rig.http.get(rig.url + "/v1/models", headers={"x-api-key": KEY}) as response:
        assert response.status == 200
    assert KEY not in repr(rig.gateway.settings)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/chat/completions", 405), ("GET", "/nothing", 404), ("GET", "/v1/models/other", 404),
     ("GET", "/v1/models/m", 200), ("GET", "/v1/models", 200), ("GET", "/healthz", 200), ("GET", "/admin/status", 200)],
)  # fmt: skip
async def test_routes(rig: Rig, method: str, path: str, status: int) -> None:
    async with rig.http.request(method, rig.url + path, headers={"authorization": f"Bearer {KEY}"}) as response:
        assert response.status == status
        assert response.headers["x-weight-version"] == "0"
        assert isinstance(await response.json(), dict)


async def test_an_unknown_model_is_a_404(rig: Rig) -> None:
    async with rig.post(model="gpt-5") as response:
        assert response.status == 404 and (await response.json())["error"]["code"] == "model_not_found"


async def test_a_huge_body_is_a_413_that_the_client_gets_to_read(rig: Rig) -> None:
    async with rig.post(messages=[{"role": "user", "content": "x" * 400_000}]) as response:
        assert response.status == 413 and "200000" in (await response.json())["error"]["message"]


async def test_session_headers_are_recorded_and_fields_taken_out(rig: Rig) -> None:
    rig.says("one")
    headers = {"X-Session-Id": "s1", "X-Turn-Type": "side", "X-Session-Done": "true", "user-agent": "claw/1"}
    async with rig.post(headers=headers, user="u1") as response:
        assert response.status == 200
    (exchange,) = await rig.exchanges()
    assert (exchange.named_session, exchange.turn_type, exchange.session_done) == ("s1", "side", True)
    assert exchange.client == "claw/1" and exchange.session_fields is not None


async def test_feedback_becomes_a_next_state_of_its_answer(rig: Rig) -> None:
    rig.says("one")
    async with rig.post() as response:
        id = (await response.json())["id"]
    for fields, score in (
        ({"thumb": "down"}, -1.0),
        ({"score": 0.5, "text": "good"}, 0.5),
        ({"text": "shorter"}, None),
    ):
        async with rig.post("/v1/feedback", id=id, **fields) as response:
            assert response.status == 200 and (await response.json())["score"] == score
    states = [record for record in rig.recorded() if isinstance(record, NextState)]
    assert {state.exchange_id for state in states} == {id.removeprefix("chatcmpl-")}
    assert [state.score for state in states] == [-1.0, 0.5, None] and states[1].content == "good"
    rig.gateway.recorder.forget()  # as after a restart: it is found in the journal
    async with rig.post("/v1/feedback", id=id, score=1) as response:
        assert response.status == 200
    async with rig.post("/v1/feedback", key=OTHER, id=id, score=1) as response:
        assert response.status == 404


@pytest.mark.parametrize(
    ("fields", "status"),
    [({}, 400), ({"id": 3}, 400), ({"id": "chatcmpl-x", "score": 1}, 404), ({"id": "0" * 26, "score": 1}, 404),
     ({"id": "0" * 26, "score": 2}, 400), ({"id": "0" * 26}, 400), ({"id": "0" * 26, "thumb": "sideways"}, 400),
     ({"id": "0" * 26, "text": " "}, 400)],
)  # fmt: skip
async def test_wrong_feedback_is_refused(rig: Rig, fields: dict[str, Any], status: int) -> None:
    async with rig.post("/v1/feedback", **fields) as response:
        assert response.status == status, await response.text()


async def test_a_full_disk_does_not_stop_serving(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    from storage.segments import SegmentFile

    def refuse(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SegmentFile, "write", refuse)
    rig.says("one two")
    async with rig.post(stream=True) as response:
        found = await events(response)
    assert ": x-recorded: false" in found and found[-1] == "[DONE]"
    async with rig.post() as response:
        assert response.status == 200 and response.headers["x-recorded"] == "false"
    monkeypatch.undo()
    assert len(await rig.exchanges(2)) == 2  # written once the disk is back


@pytest.mark.parametrize("stream", [True, False])
async def test_closing_tells_those_whose_answers_take_too_long(rig: Rig, stream: bool) -> None:
    rig.gateway.settings = replace(rig.gateway.settings, drain_s=0.2)
    rig.says("word " * 200)
    rig.engine.delay_s = 0.05

    async def asks() -> tuple[int, str]:
        async with rig.post(stream=stream) as response:
            return response.status, await response.text()

    request = asyncio.create_task(asks())
    while not rig.gateway.in_flight:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)
    await rig.gateway.close()
    status, text = await request
    assert status == (200 if stream else 503) and "The server is shutting down" in text
    [exchange] = await rig.exchanges()
    assert exchange.response_ids and exchange.finish_reason == "error" and "shut down" in exchange.error


async def test_closing_lets_answers_end_and_takes_no_new_ones(rig: Rig) -> None:
    rig.says("word " * 20)
    rig.engine.delay_s = 0.02
    request = asyncio.create_task(rig.post().__aenter__())
    while not rig.gateway.in_flight:
        await asyncio.sleep(0.01)
    closing = asyncio.create_task(rig.gateway.close())
    await asyncio.sleep(0.05)
    async with rig.post() as response:
        assert response.status == 503
    assert (await request).status == 200
    await closing
    assert len(await rig.exchanges()) == 1
