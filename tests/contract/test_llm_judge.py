"""The `llm` judge against a real HTTP server that replays judge outputs: what each must become as a vote.

The outputs in `judge_replays.jsonl` are written in the manner of judge models, not recorded from one: right,
malformed, cut, injected, slow and failing ones.
"""

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from judge import JudgeInput, JudgeSettings, make_judge
from storage.records import NextState, Verdict

REPLAYS = [json.loads(line) for line in (Path(__file__).parent / "judge_replays.jsonl").read_text("utf-8").splitlines()]
EVALUATIVE = [r for r in REPLAYS if r["kind"] == "evaluative"]
DIRECTIVE = [r for r in REPLAYS if r["kind"] == "directive"]


class ReplayJudgeServer:
    """Speaks /v1/chat/completions over real HTTP and replays what the named row says: no model runs here.

    The request's `model` names the row; `{fence}` in its text becomes the fence word of the request.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self._seen: Counter[tuple[str, str]] = Counter()
        self._rows = {row["replay_id"]: row for row in REPLAYS}
        self.base_url = ""
        self.in_flight = self.most_in_flight = 0

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self._replay(request, body)
        finally:
            self.in_flight -= 1

    async def _replay(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        row = self._rows[body["model"]]
        system = body["messages"][0]["content"]
        kind = "directive" if "HINT_START" in system else "evaluative"
        if kind != row["kind"]:
            return _completion("It went wrong.\n\\boxed{-1}", "stop")
        turn = self._seen[(row["replay_id"], kind)]
        self._seen[(row["replay_id"], kind)] += 1
        await asyncio.sleep(row.get("delay_s", 0))
        if row.get("drop"):
            assert request.transport is not None
            request.transport.close()
        statuses = row.get("statuses", [200])
        status = statuses[min(turn, len(statuses) - 1)]
        if status != 200:
            return web.json_response({"error": {"message": f"replayed {status}"}}, status=status)
        if "raw" in row:
            kind_of = "text/html" if row["raw"].startswith("<") else "application/json"
            return web.Response(text=row["raw"], content_type=kind_of)
        found = re.search(r"DATA-[0-9a-f]{16}", system)
        assert found
        text = row["text"].replace("{fence}", found.group()) if row["text"] else row["text"]
        return _completion(text, row.get("finish_reason", "stop"))


def _completion(text: str | None, finish_reason: str) -> web.Response:
    choice = {"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", "content": text}}
    return web.json_response(
        {"id": "replay", "object": "chat.completion", "created": 1, "model": "replay", "choices": [choice]}
    )


@pytest.fixture
async def server():
    replaying = ReplayJudgeServer()
    await replaying.start()
    yield replaying
    await replaying.stop()


def _item(row: dict[str, Any], **changes: Any) -> JudgeInput:
    fields: dict[str, Any] = {
        "next_state_id": "n", "exchange_id": "x", "role": "user", "source_exchange_id": None, "arrived_at": 0.0,
        "content": row.get("next_state", "It fails with an error, start with the result please."),
    }  # fmt: skip
    return JudgeInput(
        exchange_id="x",
        question="How do I read a file?",
        answer=row.get("answer", "With open()."),
        next_state=NextState(**{**fields, **changes}),
    )


async def _judged(server: ReplayJudgeServer, row: dict[str, Any], item: JudgeInput | None = None, **s: Any) -> Verdict:
    settings = {"judge": "llm", "base_url": server.base_url, "model": row["replay_id"], "backoff_s": 0.01,
                "timeout_s": 1.5, "directive": row["kind"] == "directive", **s}  # fmt: skip
    judge = make_judge(JudgeSettings(**settings))
    try:
        return await judge.judge(item or _item(row))
    finally:
        await judge.close()  # type: ignore[attr-defined]


def test_there_are_enough_replays():
    assert len(REPLAYS) >= 60


@pytest.mark.parametrize("row", EVALUATIVE, ids=lambda row: row["replay_id"])
async def test_evaluative_vote(server, row):
    verdict = await _judged(server, row)
    assert verdict.reward == row["expect"]
    assert (verdict.error is None) == (row["expect"] is not None)
    assert len(verdict.evaluative) == (row["expect"] is not None)
    assert verdict.judge == f"llm/1:{row['replay_id']}" and verdict.prompt_version.startswith("judge-prompts/")


@pytest.mark.parametrize("row", DIRECTIVE, ids=lambda row: row["replay_id"])
async def test_directive_vote(server, row):
    verdict = await _judged(server, row)
    assert verdict.hint == row["expect_hint"]
    assert verdict.reward == -1, "the evaluative vote stands whatever becomes of the hint"
    assert verdict.chosen_by == ("longest" if row["expect_hint"] else None)


def _row(name: str) -> dict[str, Any]:
    return next(row for row in REPLAYS if row["replay_id"] == name)


async def test_retries_are_bounded_and_only_where_they_help(server):
    verdict = await _judged(server, _row("http-500"), retries=2)
    assert len(server.requests) == 3 and "HTTP 500 after 3 tries" in (verdict.error or "")
    server.requests.clear()
    verdict = await _judged(server, _row("http-401"))
    assert len(server.requests) == 1 and "HTTP 401 after 1 try" in (verdict.error or "")


async def test_slow_judge_is_given_up_in_time(server):
    verdict = await _judged(server, _row("slow"), timeout_s=0.3)
    assert verdict.reward is None and "within 0.3 s" in (verdict.error or "") and verdict.latency_s < 2


async def test_votes_run_in_parallel_and_each_has_its_own_fence(server):
    verdict = await _judged(server, _row("late-but-in-time"), votes=5, directive=True)
    assert server.most_in_flight >= 5 and len(verdict.evaluative) == 5 and verdict.reward == 1
    fences = {re.search(r"DATA-[0-9a-f]{16}", r["messages"][0]["content"]).group() for r in server.requests}  # type: ignore[union-attr]
    assert len(fences) == 10


async def test_requests_carry_the_papers_settings(server):
    await _judged(server, _row("hint-good"))
    by_limit = {request["max_tokens"]: request for request in server.requests}
    assert set(by_limit) == {4096, 8192} and all(r["temperature"] == 0.6 for r in server.requests)
    assert "HINT_START" in by_limit[8192]["messages"][0]["content"]


async def test_judged_text_stands_inside_the_fence_only(server):
    row = _row("inject-resisted")
    await _judged(server, row)
    system, user = (message["content"] for message in server.requests[0]["messages"])
    fence = re.search(r"DATA-[0-9a-f]{16}", system).group()  # type: ignore[union-attr]
    assert row["answer"] not in system
    assert f"<<<{fence} ANSWER>>>\n{row['answer']}\n<<<END {fence} ANSWER>>>" in user


async def test_a_given_score_decides_and_is_not_asked_for(server):
    row = _row("hint-good")
    verdict = await _judged(server, row, _item(row, role="feedback", content="too long", score=-1.0))
    assert verdict.reward == -1 and verdict.hint and len(server.requests) == 1
    server.requests.clear()
    verdict = await _judged(server, row, _item(row, role="feedback", content="", score=1.0))
    assert verdict.reward == 1 and verdict.hint is None and not server.requests


async def test_nobody_there():
    row = _row("plain-good")
    judge = make_judge(
        JudgeSettings(judge="llm", base_url="http://127.0.0.1:9/v1", model="m", backoff_s=0.01, retries=1)
    )
    verdict = await judge.judge(_item(row))
    assert verdict.reward is None and "APIConnectionError after 2 tries" in (verdict.error or "")


async def test_the_key_never_reaches_the_verdict(server, monkeypatch):
    monkeypatch.setenv("CLAWRL_JUDGE_API_KEY", "sk-very-secret")
    verdict = await _judged(server, _row("http-401"))
    assert "sk-very-secret" not in str(verdict)
