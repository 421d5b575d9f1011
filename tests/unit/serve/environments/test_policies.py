"""A model behind an API: whatever is at its address, an episode ends with a reason."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from serve.environments.catalog import find_task
from serve.environments.episode import run_episode
from serve.environments.policies import ModelPolicy
from serve.environments.runs import local

SEEN: list[web.Request] = []


@asynccontextmanager
async def api(answer: Any) -> AsyncIterator[str]:
    """A stand-in for an API: the same answer to every request."""

    async def respond(request: web.Request) -> web.Response:
        SEEN.append(request)
        return (
            web.Response(text=answer, content_type="text/html")
            if isinstance(answer, str)
            else web.json_response(answer)
        )

    app = web.Application()
    app.router.add_post("/v1/chat/completions", respond)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def completion(**message: Any) -> dict[str, Any]:
    return {
        "id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}],
    }  # fmt: skip


async def played(answer: Any):
    async with api(answer) as url, local("tool_call") as environment:
        policy = ModelPolicy(url, "key", "m")
        try:
            return await run_episode(
                environment, find_task("tool_call", "arith-small-sum"), policy, episode_id="episode-1"
            )
        finally:
            await policy.close()


async def test_it_is_asked_as_a_side_turn_of_its_episode_and_its_answer_is_taken() -> None:
    SEEN.clear()
    run = await played(completion(content="Answer: 5"))
    assert (run.episode.status, run.episode.outcome) == ("done", 1.0)
    assert SEEN[0].headers["X-Session-Id"] == "episode-1" and SEEN[0].headers["X-Turn-Type"] == "side"


NO_COMPLETIONS = [
    {"hello": 1}, "<html>a page</html>", {"choices": []}, {"choices": [{"index": 0}]}, {"choices": [None]}, []
]  # fmt: skip


@pytest.mark.parametrize("answer", NO_COMPLETIONS)
async def test_what_is_no_completion_ends_the_episode_with_a_reason(answer: Any) -> None:
    run = await played(answer)
    assert run.episode.status == "error" and run.outcome is None
    assert "answered with no chat completion" in run.episode.reason and "/v1" in run.episode.reason
