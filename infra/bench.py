"""`clawrl bench`: measure the running system. Every figure that the README gives comes from here.

    clawrl bench rest       memory of each part, and the share of a core all of them take while nobody talks
    clawrl bench memory     5,000 short turns over 300 sessions: what they add to gateway and learner
    clawrl bench swap       from commit to the first token of the new weights, of the versions that went live
    clawrl bench gateway    against the same SGLang called directly, and 30 requests in flight over five swaps
    clawrl bench step       the trainer's step on 16 samples, on its own (needs the system to be down)

What it leaves out: judging the figures. Ratios are taken within one run, since machines are noisy.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
from openai import APIError, AsyncOpenAI
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from infra.admin import Running
from infra.home import Home
from infra.processes import of_instance
from infra.status import memory_by_part, part_of

REST_S = 30.0
TURNS, SESSIONS = 5000, 300


def run(home: Home, console: Console, which: tuple[str, ...]) -> None:
    """The named ones, or all that need the system up. Raises ValueError for an unknown name."""
    known: dict[str, Callable[[Home, Console], None]] = {
        "rest": rest, "memory": memory, "swap": swap, "gateway": gateway, "step": step,
    }  # fmt: skip
    unknown = [name for name in which if name not in known]
    if unknown:
        raise ValueError(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    for name in which or ("rest", "swap", "gateway", "memory"):
        console.rule(name)
        known[name](home, console)


def rest(home: Home, console: Console) -> None:
    """Proportional memory (PSS) and CPU time over 30 s without a request."""
    running = Running(home)
    requests = running.admin()["gateway"]["requests"]
    before, began = _cpu(running), time.monotonic()
    with Progress(console=console) as bar:
        task = bar.add_task("idle", total=REST_S)
        while time.monotonic() - began < REST_S:
            time.sleep(1)
            bar.update(task, completed=time.monotonic() - began)
    after, seconds = _cpu(running), time.monotonic() - began
    asked = running.admin()["gateway"]["requests"] - requests
    memory = memory_by_part(home)
    table = Table("part", "processes", "GB", "share of a core")
    total_cpu = 0.0
    for part in sorted(memory, key=lambda name: -memory[name]["gb"]):
        share = (after.get(part, 0.0) - before.get(part, 0.0)) / seconds
        total_cpu += share
        row = memory[part]
        table.add_row(part, f"{row['processes']:.0f}", f"{row['gb']:.2f}", f"{share:.1%}")
    table.add_section()
    total_gb = sum(row["gb"] for row in memory.values())
    table.add_row(
        "all", f"{sum(row['processes'] for row in memory.values()):.0f}", f"{total_gb:.2f}", f"{total_cpu:.1%}"
    )
    console.print(table)
    if asked:
        console.print(f"[red]not at rest:[/red] {asked} requests came meanwhile; measure again when nobody talks")


def swap(home: Home, console: Console) -> None:
    """For each version that went live in this run: seconds from its commit until it served, and of the swap alone."""
    running = Running(home)
    policy = running.admin()["policy"]
    commits = {version.number: version.created_at for version in running.versions().versions()}
    table = Table("version", "commit to serving, s", "the swap itself, s")
    for entry in policy.get("swaps", []):
        if entry["version"] in commits and entry["at"] > commits[entry["version"]]:
            table.add_row(
                f"v{entry['version']}", f"{entry['at'] - commits[entry['version']]:.1f}", f"{entry['seconds']:.2f}"
            )
    console.print(table if table.row_count else "no version went live since the policy started; run the demo first")


def memory(home: Home, console: Console) -> None:
    """5,000 turns of two tokens each over 300 sessions, eight at a time."""
    running = Running(home)
    asyncio.run(_turns(running, console, 64, 8))  # caches fill before the first measurement
    before = memory_by_part(home)
    failed = asyncio.run(_turns(running, console, TURNS, SESSIONS))
    time.sleep(5)
    after = memory_by_part(home)
    table = Table("part", "before, MB", "after, MB", "added, MB")
    for part in ("gateway", "learner"):
        old, new = before[part]["gb"] * 1024, after[part]["gb"] * 1024
        table.add_row(part, f"{old:.0f}", f"{new:.0f}", f"{new - old:+.0f}")
    console.print(table)
    console.print(f"{TURNS} turns over {SESSIONS} sessions, {failed} failed")


def gateway(home: Home, console: Console) -> None:
    """See `infra/bench_gateway.py`."""
    running = Running(home)
    model = str(running.settings.model.folder)
    subprocess.run(
        [sys.executable, "-m", "infra.bench_gateway", "--url", running.state.url("gateway"), "--model-dir", model],
        check=False, env={**os.environ, "CLAWRL_API_KEY": running.api_key},
    )  # fmt: skip


def step(home: Home, console: Console) -> None:
    """See `train/bench.py`."""
    subprocess.run([sys.executable, "-m", "train.bench"], check=False)


async def _turns(running: Running, console: Console, turns: int, sessions: int) -> int:
    histories: list[list[dict[str, str]]] = [[] for _ in range(sessions)]
    order = iter(range(turns))
    failed = 0

    async def talker(bar: Progress, task) -> None:
        nonlocal failed
        for number in order:
            history = histories[number % sessions]
            history[:] = history[-2:]
            history.append({"role": "user", "content": f"Turn {number}. Go on."})
            try:
                answer = await client.chat.completions.create(
                    model=running.settings.model.name, messages=history, max_tokens=2,
                    extra_headers={"X-Session-Id": f"bench-{number % sessions}"},
                )  # fmt: skip
                history.append({"role": "assistant", "content": answer.choices[0].message.content or ""})
            except APIError:
                failed += 1
                history.pop()
            bar.advance(task)

    client = AsyncOpenAI(base_url=running.base_url, api_key=running.api_key, timeout=120, max_retries=2)
    async with client:
        with Progress(console=console) as bar:
            task = bar.add_task(f"{turns} turns", total=turns)
            # a session's turns are in order since its next one comes `sessions` requests later
            await asyncio.gather(*(talker(bar, task) for _ in range(8)))
    return failed


def _cpu(running: Running) -> dict[str, float]:
    """CPU seconds of each part so far."""
    used: dict[str, float] = {}
    for process in of_instance(running.state.instance):
        try:
            times = process.cpu_times()
            part = part_of(process)
        except psutil.NoSuchProcess:
            continue
        used[part] = used.get(part, 0.0) + times.user + times.system
    return used
