"""`clawrl demo`: start everything, let a scripted student talk to it until it has learned, show what it brought.

What it leaves out: any shortcut. The student is an ordinary client of the HTTP API (`flows/people/`), its replies are
judged like anybody's, and the system is left up afterwards.
"""

import asyncio
import time
from typing import Any

from openai import AsyncOpenAI
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from flows import people
from infra.admin import Running
from infra.home import Home
from infra.soak import settle
from infra.up import start

PROBLEMS, ANSWER_TOKENS = 24, 128
STUCK_S = 600.0  # without any new sample or update the demo says so and ends


def run(home: Home, console: Console, *, updates: int, seed: int) -> None:
    """Up, score, talk, score. Raises ValueError where no update comes."""
    start(home, console)
    running = Running(home)
    settle(running, console)
    first = running.admin()["learner"]["head"]
    console.print(f"A scripted student talks to v{first} about grade-school problems until {updates} updates are live.")
    with _progress(console) as bars:
        before = asyncio.run(_score(running, bars, f"score of v{first}"))
        asyncio.run(_talk(running, bars, first + updates, seed))
        version = running.admin()["policy"]["version"]
        after = asyncio.run(_score(running, bars, f"score of v{version}"))
    _show(console, before, after, first, version)
    console.print(f"It is still up: {running.base_url} (`clawrl chat`, `clawrl sessions`, `clawrl down`).")


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<34}"), BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )


async def _score(running: Running, bars: Progress, title: str) -> people.Evaluation:
    task = bars.add_task(title, total=PROBLEMS)
    return await people.evaluate(
        _client(running),
        model=running.settings.model.name,
        problems=PROBLEMS,
        max_tokens=ANSWER_TOKENS,
        on_answer=lambda done, _: bars.update(task, completed=done),
    )


def _client(running: Running) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=running.base_url, api_key=running.api_key, timeout=300, max_retries=3)


async def _talk(running: Running, bars: Progress, target: int, seed: int) -> None:
    """Talk until the target version serves; the bars show the next batch filling and the training.

    She is quiet while the trainer works on a full batch: on two cores it would take three times as long.
    """
    size = running.settings.pool.batch_size
    first = running.admin()["learner"]["head"]
    done = bars.add_task("updates live", total=target - first)
    batch = bars.add_task("judged answers", total=size)
    watch = _Watch(running, bars, done, batch, first)
    lap = 0
    while await watch.look() < target:
        if watch.full:
            await asyncio.sleep(1.0)
            continue
        taste = people.StudentSettings(model=running.settings.model.name, max_tokens=ANSWER_TOKENS, seed=seed + lap)
        stop = asyncio.Event()
        talking = asyncio.create_task(people.Student(_client(running), taste).run(turns=100, stop=stop))
        try:
            while not watch.full and not talking.done():
                await asyncio.sleep(1.0)
                await watch.look()
        finally:
            stop.set()
            await talking
        lap += 1


class _Watch:
    """Follows the learner's status into the bars. Raises ValueError where nothing moves for a long time."""

    def __init__(self, running: Running, bars: Progress, done: TaskID, batch: TaskID, first: int) -> None:
        self._running, self._bars, self._done, self._batch = running, bars, done, batch
        self._first, self._size = first, running.settings.pool.batch_size
        self._seen: tuple[Any, ...] = ()
        self._moved = time.monotonic()
        self.full = False

    async def look(self) -> int:
        """The version that serves now."""
        status = await asyncio.to_thread(self._running.admin)
        learner = status["learner"]
        served, waiting = status["policy"].get("version") or 0, learner["batch"]["waiting"]
        phase = (learner.get("trainer") or {}).get("phase") if learner.get("training_since") else None
        self.full = waiting >= self._size or learner["head"] > served
        self._bars.update(self._done, completed=max(0, served - self._first))
        text = f"training: {phase}" if phase else "judged answers for the next update"
        self._bars.update(self._batch, completed=min(waiting, self._size), description=text)
        now = (served, waiting, learner["turns"]["accepted"], phase)
        if now != self._seen:
            if not self._bars.console.is_terminal:  # bars move on a terminal only
                self._bars.console.print(
                    f"v{served} serves, {waiting} of {self._size} judged answers, {phase or 'talking'}"
                )
            self._seen, self._moved = now, time.monotonic()
        if time.monotonic() - self._moved > STUCK_S:
            raise ValueError(f"nothing moved for {STUCK_S:.0f} s; `clawrl status` shows what is wrong")
        return served


def _show(console: Console, before: people.Evaluation, after: people.Evaluation, first: int, version: int) -> None:
    table = Table(title=f"first answers to {before.answers} unseen problems: share that keeps each of her wishes")
    table.add_column("")
    table.add_column(f"v{first}", justify="right")
    table.add_column(f"v{version}", justify="right")
    for name in before.kept:
        table.add_row(name, f"{before.kept[name]:.2f}", f"{after.kept[name]:.2f}")
    table.add_section()
    table.add_row("score (mean, 0 to 1)", f"{before.mean:.3f}", f"{after.mean:.3f}", style="bold")
    table.add_row("nothing to say against", f"{before.content:.2f}", f"{after.content:.2f}")
    table.add_row("right number (watched, not rewarded)", f"{before.right:.2f}", f"{after.right:.2f}")
    table.add_row("words", f"{before.words:.0f}", f"{after.words:.0f}")
    console.print(table)
