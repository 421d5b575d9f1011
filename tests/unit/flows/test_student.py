"""The student over real HTTP, against a server that answers by script."""

import asyncio
import itertools
import json

import openai
import pytest
from aiohttp import web

from flows.people import Student, StudentSettings, evaluate, load_problems
from flows.people.__main__ import main

QUESTIONS = {problem.question: problem for part in ("practice", "unseen") for problem in load_problems(part)}


class ScriptedModelServer:
    """Streams chat completions over real HTTP. No model: every second problem gets an answer that the student likes."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict, dict]] = []  # (headers, body)
        self.fail_with: int | None = None
        self._count = itertools.count()
        self.in_flight = self.most_in_flight = 0

    async def start(self) -> str:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(({k.lower(): v for k, v in request.headers.items()}, body))
        if self.fail_with:
            return web.json_response({"error": {"message": "scripted failure"}}, status=self.fail_with)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(0.01)
        problem = QUESTIONS.get(body["messages"][-1]["content"])
        text = "Noted."
        if problem:
            good = f"It is {problem.working} = {problem.answer}, all told."
            text = good if next(self._count) % 2 else f"Certainly! {good}"
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-weight-version": "3"})
        await response.prepare(request)
        for piece in [text[:7], text[7:]]:
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
                     "choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}  # fmt: skip
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        self.in_flight -= 1
        return response


@pytest.fixture
async def server():
    scripted = ScriptedModelServer()
    scripted.base_url = await scripted.start()  # type: ignore[attr-defined]
    yield scripted
    await scripted.stop()


@pytest.fixture
async def client(server):
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0) as made:
        yield made


async def test_she_asks_listens_and_replies(server, client):
    turns = []
    report = await Student(client, StudentSettings(model="m"), turns.append).run(12)
    assert report.turns == len(turns) == 12 and report.content == 6 and report.failed == 0
    assert report.mean == pytest.approx(0.75)
    assert server.most_in_flight == 4, "four conversations at once"
    assert len({turn.problem.problem_id for turn in turns}) == 12 and turns[0].answer.version == 3
    asked = [(headers, body) for headers, body in server.requests if len(body["messages"]) == 1]
    replied = [(headers, body) for headers, body in server.requests if len(body["messages"]) == 3]
    assert len(asked) == len(replied) == 12
    assert all("x-turn-type" not in headers for headers, _ in server.requests)
    assert all(body["max_tokens"] == 128 and body["stream"] for _, body in asked)
    assert all("x-session-done" not in headers for headers, _ in asked)
    assert all(headers["x-session-done"] == "true" and body["max_tokens"] == 8 for headers, body in replied)
    said = {turn.answer.text: turn.reply for turn in turns}
    for _, body in replied:
        assert said[body["messages"][1]["content"]] == body["messages"][2]["content"]
    assert len({headers["x-session-id"] for headers, _ in server.requests}) == 12


async def test_several_problems_in_one_session(server, client):
    report = await Student(client, StudentSettings(model="m", sessions=1, problems_per_session=3)).run(6)
    assert report.turns == 6
    assert [len(body["messages"]) for _, body in server.requests] == [1, 3, 5, 7, 9, 11] * 2
    done = [headers.get("x-session-done") for headers, _ in server.requests]
    assert done == [None, None, None, None, None, "true"] * 2


async def test_she_stops_when_told(client):
    stop = asyncio.Event()
    report = await Student(client, StudentSettings(model="m", sessions=1), lambda turn: stop.set()).run(50, stop)
    assert report.turns == 1


async def test_a_failing_server_is_counted_and_given_up(server, client):
    server.fail_with = 500
    student = Student(client, StudentSettings(model="m", give_up_after=2))
    with pytest.raises(openai.InternalServerError):
        await student.run(20)


async def test_evaluation_is_of_unseen_problems_and_never_trains(server, client):
    seen = []
    found = await evaluate(client, model="m", problems=24, on_answer=lambda done, scored: seen.append(done))
    assert found.answers == 24 and found.mean == pytest.approx(0.75) and found.content == 0.5 and found.right == 1.0
    assert found.kept["opener"] == 0.5 and found.kept["noise"] == 1.0 and found.versions == (3,)
    assert seen == list(range(1, 25))
    assert all(headers["x-turn-type"] == "side" for headers, _ in server.requests)
    unseen = {problem.question for problem in load_problems("unseen")}
    assert {body["messages"][0]["content"] for _, body in server.requests} == unseen


async def test_a_score_with_answers_missing_is_no_score(server, client):
    server.fail_with = 503
    with pytest.raises(openai.InternalServerError):
        await evaluate(client, model="m", problems=3)
    with pytest.raises(ValueError, match="at least one problem"):
        await evaluate(client, model="m", problems=0)


async def test_command(server, capsys):
    arguments = ["--base-url", server.base_url, "--api-key", "k", "--model", "m", "--turns", "4", "--problems", "4"]
    assert await asyncio.to_thread(main, arguments) == 0
    out = capsys.readouterr().out
    assert "before (v3)" in out and "after (v3)" in out and "4 problems talked about" in out
    assert await asyncio.to_thread(main, [*arguments, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["scores"]) == {"before", "after"}


def test_command_says_when_nobody_is_there(capsys):
    assert main(["--base-url", "http://127.0.0.1:9/v1", "--turns", "0", "--problems", "1"]) == 1
    assert "could not be talked to" in capsys.readouterr().err


def test_settings_are_checked():
    with pytest.raises(ValueError, match="at least 1"):
        StudentSettings(sessions=0)
    with pytest.raises(ValueError, match="between 0 and 2"):
        StudentSettings(temperature=9.0)
