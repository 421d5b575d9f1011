"""Measurements of the pool: latency of a lease, experts a second, what many episodes leave behind, kills.

What it leaves out: limits as tests. A measurement prints what it saw; `leaks` and `chaos` also say whether it is good.
Run: python -m serve.environments bench latency|throughput|leaks|chaos
"""

import asyncio
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from serve.environments.catalog import EnvironmentSettings, track
from serve.environments.episode import EpisodeRun
from serve.environments.gui.browser import shared
from serve.environments.leases import LeaseTable, LeaseTerms
from serve.environments.policies import ScriptedPolicy
from serve.environments.pool import Pool, PoolSettings
from serve.environments.protocol import Action, Observation
from serve.environments.runs import Job, play_all
from serve.environments.spares import Spares
from serve.environments.tasks import Task
from storage.records import new_id

Measure = Callable[..., Awaitable[dict[str, Any]]]
AT_ONCE = 16


@asynccontextmanager
async def running(settings: PoolSettings) -> AsyncIterator[Pool]:
    """A pool on a Ray of its own, on loopback."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # this is what keeps Ray on loopback on Linux
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    ray.init(
        num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", object_store_memory=100_000_000,
        log_to_driver=False, logging_level="error",
    )  # fmt: skip
    pool = await Pool.start(settings)
    try:
        yield pool
    finally:
        await pool.stop()
        ray.shutdown()


def _percentiles(times_s: Sequence[float]) -> dict[str, float]:
    ordered = sorted(times_s)
    return {"p50_ms": 1000 * ordered[len(ordered) // 2], "p90_ms": 1000 * ordered[int(len(ordered) * 0.9)]}


def _first_task(name: str) -> Task:
    """An easy one whose expert begins with the track's main action."""
    tasks = sorted(track(name).load(), key=lambda task: (task.difficulty, len(task.expert), task.task_id))
    if name == "tool_call":
        tasks = [task for task in tasks if isinstance(task.expert[0], dict) and "python" in task.expert[0]]
    return tasks[0]


Episode = Callable[[Task], Awaitable[None]]


async def _through(pool: Pool, task: Task) -> None:
    """Lease + reset + step + close through the pool: four calls of Ray."""
    async with pool.lease(task.track) as environment:
        seen = await environment.reset(task)
        await environment.step(_first_action(task, seen))


async def _beside(table: LeaseTable, task: Task) -> None:
    """The same on leases of this process, as a worker and the HTTP server hold them."""
    lease = new_id()
    await table.open(lease, task.track, LeaseTerms())
    seen = await table.reset(lease, task)
    await table.step(lease, 0, _first_action(task, seen))
    await table.close(lease)


def _first_action(task: Task, seen: Observation) -> Action:
    return track(task.track).expert_action(task.expert[0], seen)


async def _times(console: Console, where: str, episode: Episode, episodes: int) -> list[dict[str, Any]]:
    """Back to back, which soon uses up the spares; and with half a second between, as when a model thinks."""
    rows = []
    for name in ("terminal", "tool_call", "gui"):
        task = _first_task(name)
        await episode(task)
        for pause_s, how in ((0.0, "back to back"), (0.5, "warm, 0.5 s between")):
            times = []
            for _ in range(episodes if name != "gui" else max(5, episodes // 3)):
                await asyncio.sleep(pause_s)
                began = time.perf_counter()
                await episode(task)
                times.append(time.perf_counter() - began)
            rows.append({"where": where, "track": name, "how": how, **_percentiles(times)})
            console.print(f"[dim]{rows[-1]}[/dim]")
    return rows


async def latency(console: Console, episodes: int = 60) -> dict[str, Any]:
    """Lease + reset + step + close, in one process and through the pool."""
    spares = Spares(2)
    table = LeaseTable(lambda name: track(name).make(EnvironmentSettings(start=spares.start)), capacity=4)
    rows = await _times(console, "one process", lambda task: _beside(table, task), episodes)
    await table.close_all("measured")
    await spares.close()
    await shared().close()
    async with running(PoolSettings(light_workers=1, gui_workers=1, spares=2)) as pool:
        rows += await _times(console, "pool", lambda task: _through(pool, task), episodes)
    return {"rows": rows}


def _jobs(names: Sequence[str], episodes: int) -> list[Job]:
    tasks = [task for name in names for task in track(name).load()]
    random.Random(0).shuffle(tasks)
    return [Job(task, ScriptedPolicy(task.expert)) for task in (tasks[i % len(tasks)] for i in range(episodes))]


async def _play(console: Console, pool: Pool, jobs: Sequence[Job], at_once: int = AT_ONCE) -> list[EpisodeRun]:
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("episodes", total=len(jobs))
        return await play_all(
            jobs, at_once=at_once, lease=lambda name: pool.lease(name), on_end=lambda run: progress.advance(bar)
        )


def _summary(runs: Sequence[EpisodeRun]) -> dict[str, Any]:
    return {
        "episodes": len(runs),
        "solved": sum(run.outcome is not None and run.outcome.score == 1 for run in runs),
        "statuses": dict(Counter(run.episode.status for run in runs)),
        "reasons": dict(Counter((run.episode.reason or "")[:80] for run in runs if run.episode.reason).most_common(8)),
    }


async def throughput(console: Console, episodes: int = 240) -> dict[str, Any]:
    """Experts through the whole pool, 16 at once."""
    rows = []
    async with running(PoolSettings()) as pool:
        for name in ("tool_call", "terminal", "swe"):
            jobs = _jobs([name], episodes if name != "swe" else max(16, episodes // 4))
            await _play(console, pool, jobs[:16])
            began = time.perf_counter()
            runs = await _play(console, pool, jobs)
            took = time.perf_counter() - began
            rows.append({"track": name, "at_once": AT_ONCE, "per_s": len(runs) / took, **_summary(runs)})
            console.print(f"[dim]{rows[-1]}[/dim]")
    return {"rows": rows, "good": all(row["solved"] == row["episodes"] for row in rows)}


def _ours() -> list[psutil.Process]:
    """Sandboxes and browsers, whoever holds them: bubblewrap's own processes on this machine."""
    return [process for process in psutil.process_iter(["name"]) if process.info["name"] == "bwrap"]


def _temporary() -> set[str]:
    return {path.name for path in Path(tempfile.gettempdir()).iterdir() if not path.name.startswith("clawrl-sandbox-")}


async def leaks(console: Console, episodes: int = 1000) -> dict[str, Any]:
    """What is left of many episodes: processes, leases, folders, memory."""
    before, folders = len(_ours()), _temporary()
    async with running(PoolSettings(spares=1)) as pool:
        folders |= _temporary()  # Ray's own
        runs = await _play(console, pool, _jobs(["terminal", "tool_call"], episodes // 5))
        early = [worker["rss_mb"] for worker in (await pool.status())["workers"]]
        runs += await _play(console, pool, _jobs(["terminal", "tool_call"], episodes - len(runs)))
        await asyncio.sleep(3)
        status = await pool.status()
        late = [worker["rss_mb"] for worker in status["workers"]]
        held = sum(len(worker["live"]) for worker in status["workers"])
        left = _temporary() - folders
    await asyncio.sleep(1)
    result = {
        **_summary(runs), "leases_left": status["leases"] + held, "processes_left": len(_ours()) - before,
        "folders_left": sorted(left), "worker_mb_after_a_fifth": early, "worker_mb_at_the_end": late,
    }  # fmt: skip
    grew = max(b - a for a, b in zip(early, late, strict=True))
    nothing = result["leases_left"] == 0 and result["processes_left"] <= 0 and not left
    return {**result, "grew_mb": grew, "good": nothing and grew < 20 and result["solved"] == len(runs)}


class _Killer:
    """Kills a worker, a browser, or a random process below a worker, at random moments."""

    def __init__(self, pool: Pool, seed: int) -> None:
        self._pool, self._random = pool, random.Random(seed)
        self.killed: Counter[str] = Counter()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(0.3, 1.2))
            kind = self._random.choices(["child", "worker", "browser"], [6, 1, 2])[0]
            pids = [worker["pid"] for worker in (await self._pool.status())["workers"] if "pid" in worker]
            targets = self._targets(kind, pids)
            if targets:
                os.kill(self._random.choice(targets), signal.SIGKILL)
                self.killed[kind] += 1

    def _targets(self, kind: str, pids: Sequence[int]) -> list[int]:
        found = []
        for pid in pids:
            try:
                below = psutil.Process(pid).children(recursive=True)
                if kind == "worker":
                    found.append(pid)
                elif kind == "browser":
                    found += [
                        p.pid for p in below if p.name().startswith("chrom") and "--type=" not in str(p.cmdline())
                    ]
                else:
                    found += [p.pid for p in below if p.name() != "node"]
            except psutil.Error:
                continue
        return found


async def chaos(console: Console, episodes: int = 200, seed: int = 0) -> dict[str, Any]:
    """Kills during episodes: each ends as done or as error with its reason, none after its deadline."""
    async with running(PoolSettings(light_workers=2, gui_workers=1)) as pool:
        killer = _Killer(pool, seed)
        killing = asyncio.create_task(killer.run())
        runs = await _play(console, pool, _jobs(["terminal", "tool_call", "gui", "swe"], episodes))
        killing.cancel()
        status = await pool.status()
    late = [r for r in runs if r.episode.ended_at - r.episode.started_at > r.task.limits.episode_s + 60]
    silent = [r for r in runs if r.episode.status == "error" and not r.episode.reason]
    unsolved = [r for r in runs if r.outcome is not None and r.outcome.score != 1]
    return {
        **_summary(runs), "killed": dict(killer.killed), "workers_lost": status["counts"]["workers_lost"],
        "past_their_deadline": len(late), "errors_without_reason": len(silent),
        "scored_below_1": [(r.task.task_id, r.outcome.score) for r in unsolved],
        "good": not late and not silent and not unsolved,
    }  # fmt: skip


MEASURES: dict[str, Measure] = {"latency": latency, "throughput": throughput, "leaks": leaks, "chaos": chaos}


def show(console: Console, result: dict[str, Any], as_json: bool) -> None:
    """As JSON, or as a table."""
    if as_json:
        print(json.dumps(result, indent=2, default=str))
        return
    for row in result.get("rows", []):
        console.print(", ".join(f"{k} {v:.1f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
    rest = {name: value for name, value in result.items() if name != "rows"}
    table = Table("what", "value")
    for name, value in rest.items():
        table.add_row(name, str(value))
    if rest:
        console.print(table)
