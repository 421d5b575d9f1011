"""Judging as a service: a Ray Serve deployment around `make_judge`.

What it does: `await handle.judge.remote(item)` gives a Verdict; `status()` says how many turns were judged, how many
got no verdict and why, and how long it took. What it leaves out: waiting and trying again (`serve/live.py`) and the
judge model's own engine.
"""

import re
import time
from collections import Counter, deque
from dataclasses import dataclass

from ray import serve
from ray.serve import Application

from judge import JudgeInput, JudgeSettings, make_judge
from serve.loopback import stay_on_loopback
from storage.records import Verdict

_KEPT_LATENCIES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingStatus:
    """How judging goes on one replica, since it started."""

    judge: str
    judged: int  # turns with a reward
    rewards: dict[str, int]  # "+1", "0", "-1" -> turns
    hints: int  # turns with a hint
    failed: int  # turns without a verdict
    failed_by_reason: dict[str, int]
    waiting: int  # being judged now
    latency_p50_s: float | None  # of the last 512 verdicts
    latency_p95_s: float | None
    last_at: float | None  # Unix seconds of the last verdict


class Judging:
    """What the deployment does, without Ray: counts around a judge."""

    def __init__(self, settings: JudgeSettings) -> None:
        self._judge = make_judge(settings)
        self._rewards: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._hints = 0
        self._waiting = 0
        self._latencies_s: deque[float] = deque(maxlen=_KEPT_LATENCIES)
        self._last_at: float | None = None

    async def judge(self, item: JudgeInput) -> Verdict:
        """The judge's verdict; one without a reward says why in `error`."""
        self._waiting += 1
        try:
            verdict = await self._judge.judge(item)
        finally:
            self._waiting -= 1
        self._last_at = time.time()
        self._latencies_s.append(verdict.latency_s)
        self._hints += verdict.hint is not None
        if verdict.reward is None:
            self._failed[_reason(verdict.error)] += 1
        else:
            self._rewards[f"{verdict.reward:+d}" if verdict.reward else "0"] += 1
        return verdict

    def status(self) -> JudgingStatus:
        """Counts since the start."""
        ranked = sorted(self._latencies_s)
        return JudgingStatus(
            judge=self._judge.name,
            judged=sum(self._rewards.values()),
            rewards=dict(self._rewards),
            hints=self._hints,
            failed=sum(self._failed.values()),
            failed_by_reason=dict(self._failed),
            waiting=self._waiting,
            latency_p50_s=_percentile(ranked, 0.5),
            latency_p95_s=_percentile(ranked, 0.95),
            last_at=self._last_at,
        )


def _reason(error: str | None) -> str:
    """The error with its particulars cut off, so that the reasons can be counted."""
    short = re.sub(r", which ends: .*|: .*", "", (error or "unknown").removeprefix("no valid vote: "), flags=re.DOTALL)
    return short[:80]


def _percentile(ranked: list[float], share: float) -> float | None:
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else None


@serve.deployment(name="judge", max_ongoing_requests=64, ray_actor_options={"num_cpus": 0})
class JudgeDeployment(Judging):
    """`Judging` on Ray Serve."""

    def __init__(self, settings: JudgeSettings) -> None:
        stay_on_loopback()
        super().__init__(settings)


def build_app(settings: JudgeSettings) -> Application:
    """For `serve.run(build_app(settings), name="judge", route_prefix=None)`: handles only, no HTTP."""
    return JudgeDeployment.bind(settings)
