"""`clawrl soak`: kill gateway, engine, learner and trainer at random moments of scripted traffic, then audit.

The client's own account is the truth: an answer counts as accepted when its last frame arrived. The auditor, which
reads only journal, Parquet and manifests, must find every one of them, and no sample trained twice or lost.
What it leaves out: repairing anything. Ray and the parts themselves must come back. Run: clawrl soak --kills 60
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
from openai import APIError, AsyncOpenAI
from rich.console import Console
from rich.progress import Progress

from infra.admin import Running
from infra.audit import report
from infra.home import Home
from infra.processes import of_instance
from infra.status import part_of

PARTS = ("gateway", "engine", "learner", "trainer")
REPLIES = (
    "Perfect, thanks!", "No, that is wrong. Please show the numbers and start with the result.",
    "Too long. Please answer in one short sentence next time.", "Great, exactly what I needed.",
)  # fmt: skip


@dataclass
class Account:
    """What the client knows for itself."""

    accepted: list[str] = field(default_factory=list)  # "id nonce" of answers whose last frame arrived
    failed: int = 0  # requests that ended in an error, as they may while a part is dead
    kills: dict[str, int] = field(default_factory=dict)


def run(home: Home, console: Console, *, kills: int, seed: int) -> int:
    """Soak a running system; returns the exit code: 0 where the audit finds nothing wrong."""
    running = Running(home)
    with Progress(console=console) as progress:
        task = progress.add_task("kills", total=kills)

        def killed(part: str, number: int) -> None:
            progress.update(task, completed=number)
            if not console.is_terminal:  # bars move on a terminal only
                console.print(f"{time.strftime('%H:%M:%S')} kill {number} of {kills}: {part}")

        account = asyncio.run(soak(running, kills=kills, seed=seed, on_kill=killed))
    console.print(
        f"{len(account.accepted)} turns accepted, {account.failed} requests failed while a part was dead, "
        f"kills: {', '.join(f'{part} {count}' for part, count in sorted(account.kills.items()))}"
    )
    expect = write_expected(account, home.run / "soak_expected.txt")
    settle(running, console)
    return report(home, console, expect)


async def soak(
    running: Running,
    *,
    kills: int,
    seed: int,
    talkers: int = 3,
    max_tokens: int = 48,
    on_kill: Callable[[str, int], None] | None = None,
    gap_s: tuple[float, float] = (0.0, 8.0),
) -> Account:
    """Talk with `talkers` conversations at once and kill a part every few seconds. Bounded by `kills`."""
    rng, account, over = random.Random(seed), Account(), asyncio.Event()
    talks = [asyncio.create_task(_talk(running, account, over, i, max_tokens)) for i in range(talkers)]
    order = [PARTS[i % len(PARTS)] for i in range(kills)]
    rng.shuffle(order)
    for number, part in enumerate(order, 1):
        await _some_turns(account, talkers, running)
        await asyncio.sleep(rng.uniform(*gap_s))
        await _kill(running, part, account)
        if on_kill:
            on_kill(part, number)
    await _some_turns(account, talkers, running)
    over.set()
    await asyncio.gather(*talks)
    return account


async def _some_turns(account: Account, count: int, running: Running, limit_s: float = 240.0) -> None:
    """Wait until the traffic has got through again: a kill hits a working system."""
    target, until = len(account.accepted) + count, time.monotonic() + limit_s
    while len(account.accepted) < target:
        if time.monotonic() > until:
            raise ValueError(f"no answer for {limit_s:.0f} s after a kill ({account.kills}); see {running.home.logs}")
        await asyncio.sleep(0.1)


async def _talk(running: Running, account: Account, over: asyncio.Event, number: int, max_tokens: int) -> None:
    client = AsyncOpenAI(base_url=running.base_url, api_key=running.api_key, timeout=90, max_retries=0)
    turn = 0
    history: list[dict[str, str]] = []
    while not over.is_set():
        nonce = f"n{number}-{turn}-{time.time_ns()}"
        reply = REPLIES[(turn + number) % len(REPLIES)]
        history = history[-4:] if len(history) < 5 else []
        history.append({"role": "user", "content": f"{reply} What is {turn} plus {number}? ({nonce})"})
        turn += 1
        try:
            exchange_id, text = await _ask(client, running, history, max_tokens)
        except (APIError, httpx.HTTPError, OSError):  # boundary: a part is dead
            account.failed += 1
            history.pop()
            await asyncio.sleep(0.5)
            continue
        account.accepted.append(f"{exchange_id} {nonce}")
        history.append({"role": "assistant", "content": text})


async def _ask(client: AsyncOpenAI, running: Running, history: list, max_tokens: int) -> tuple[str, str]:
    """One answer, to its last frame. Raises APIError where it was cut."""
    parts, finish, name = [], None, ""
    stream = await client.chat.completions.create(
        model=running.settings.model.name, messages=history, stream=True, max_tokens=max_tokens
    )
    async for chunk in stream:
        name = chunk.id
        for choice in chunk.choices:
            parts.append(choice.delta.content or "")
            finish = choice.finish_reason or finish
    if finish is None:
        raise OSError("the stream ended without its last frame")
    return name.removeprefix("chatcmpl-"), "".join(parts)


async def _kill(running: Running, part: str, account: Account) -> None:
    """Kill -9 a process of the part; waits until there is one to kill, so that each kill hits a living part."""
    for _ in range(600):
        found = await asyncio.to_thread(_pids, running, part)
        if found:
            os.kill(found[0], signal.SIGKILL)
            account.kills[part] = account.kills.get(part, 0) + 1
            return
        await asyncio.sleep(0.2)
    raise ValueError(f"{part} did not come back within 120 s after a kill; see {running.home.logs}")


def _pids(running: Running, part: str) -> list[int]:
    found = []
    for process in of_instance(running.state.instance):
        try:
            if part_of(process) == part:
                found.append(process.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def settle(running: Running, console: Console, limit_s: float = 240.0) -> None:
    """Wait until every part answers again and nothing is being judged or trained. Raises ValueError after the limit."""
    until, last = time.monotonic() + limit_s, "no answer yet"
    while time.monotonic() < until:
        try:
            status = running.admin()
            learner = status["learner"]
            busy = learner["judge"]["waiting"] or learner["training_since"]
            if status["policy"].get("state") == "ready" and not busy:
                return
            last = f"policy {status['policy'].get('state')}, {learner['judge']['waiting']} to judge"
        except (ConnectionError, KeyError, TypeError) as fault:  # boundary: parts are still coming back
            last = str(fault)
        time.sleep(1.0)
    raise ValueError(f"the system did not settle within {limit_s:.0f} s: {last}")


def write_expected(account: Account, path: Path) -> Path:
    """The client's account as the auditor reads it."""
    path.write_text("\n".join(account.accepted) + "\n")
    return path
