"""The judge deployment on a real Ray Serve."""

import os

import pytest

from judge import JudgeInput, JudgeSettings
from storage.records import NextState


def _item(content: str, role: str = "user") -> JudgeInput:
    state = NextState(
        next_state_id="n", exchange_id="x", role=role, content=content, source_exchange_id=None, arrived_at=0.0
    )  # type: ignore[arg-type]
    return JudgeInput(exchange_id="x", question="What is 2 + 2?", answer="5", next_state=state)


@pytest.fixture(scope="module")
def handle():
    os.environ.update(
        RAY_USAGE_STATS_ENABLED="0",
        RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
    )
    import ray
    from ray import serve

    from serve.judging import build_app

    ray.init(num_cpus=2, object_store_memory=100_000_000, include_dashboard=False, log_to_driver=False)
    serve.start(proxy_location="Disabled")
    yield serve.run(build_app(JudgeSettings()), name="judge", route_prefix=None)
    serve.shutdown()
    ray.shutdown()


def test_it_judges_and_counts(handle):
    texts = ("Perfect, thanks.", "No, that's wrong. Please start with the number.", "What's the weather like?")
    verdicts = [handle.judge.remote(_item(text)).result(timeout_s=60) for text in texts]
    assert [verdict.reward for verdict in verdicts] == [1, -1, 0]
    assert verdicts[1].hint == "Please start with the number."
    status = handle.status.remote().result(timeout_s=60)
    assert (status.judge, status.judged, status.failed, status.hints) == ("rules/1", 3, 0, 1)
    assert status.rewards == {"+1": 1, "-1": 1, "0": 1} and status.latency_p50_s is not None


async def test_failures_are_counted_by_reason():
    from serve.judging import Judging

    judging = Judging(
        JudgeSettings(judge="llm", base_url="http://127.0.0.1:9/v1", model="m", retries=0, directive=False)
    )
    verdicts = [await judging.judge(_item("ok")) for _ in range(2)]
    assert all(verdict.reward is None for verdict in verdicts)
    status = judging.status()
    assert status.judged == 0 and status.failed == 2 and status.waiting == 0
    assert status.failed_by_reason == {"APIConnectionError after 1 try": 2}
