"""`clawrl demo`: start everything, let a scripted student talk to it until it has learned, show the score before and after.

What it leaves out: any shortcut. The student is an ordinary client of the HTTP API (`flows/people/`), its replies are
judged like anybody's, and the system is left up afterwards.
"""

import asyncio
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from flows import people
from infra.admin import Running
from infra.home import Home
from infra.soak import settle
from infra.up import start

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
    problems = people.unseen()
    task = bars.add_task(title, total=len(problems))
    return await people.evaluate(
        people.client(running.base_url, running.api_key),
        model=running.settings.model.name,
        problems=problems,
        on_answer=lambda: bars.advance(task),
    )


async def _talk(running: Running, bars: Progress, target: int, seed: int) -> None:
    """Talk until the target version serves; the bars show the next batch filling and the training."""
    first = running.admin()["learner"]["head"]
    done = bars.add_task("updates live", total=target - first)
    batch = bars.add_task("judged turns for the next update", total=running.settings.pool.batch_size)
    student = people.Student(
        people.client(running.base_url, running.api_key), model=running.settings.model.name, seed=seed
    )
    talking = asyncio.create_task(student.talk())
    moved, seen = time.monotonic(), (first, 0)
    try:
        while True:
            await asyncio.sleep(1.0)
            status = await asyncio.to_thread(running.admin)
            learner = status["learner"]
            served, waiting = status["policy"].get("version") or first, learner["batch"]["waiting"]
            bars.update(done, completed=served - first)
            training = learner.get("training_since")
            bars.update(
                batch,
                completed=min(waiting, running.settings.pool.batch_size),
                description="training on a full batch" if training else "judged turns for the next update",
            )
            if served >= target:
                return
            if talking.done() and not talking.cancelled():
                talking.result()
            if (served, waiting) != seen:
                moved, seen = time.monotonic(), (served, waiting)
            if time.monotonic() - moved > STUCK_S:
                raise ValueError(f"nothing was learned for {STUCK_S:.0f} s; `clawrl status` shows what is wrong")
    finally:
        talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)


def _show(console: Console, before: people.Evaluation, after: people.Evaluation, first: int, version: int) -> None:
    table = Table(title=f"first answers on {before.count} unseen problems (share without each fault)")
    table.add_column("")
    table.add_column(f"v{first}", justify="right")
    table.add_column(f"v{version}", justify="right")
    for name in before.criteria:
        table.add_row(name, f"{before.criteria[name]:.2f}", f"{after.criteria[name]:.2f}")
    table.add_section()
    table.add_row("score: all of them at once", f"{before.score:.3f}", f"{after.score:.3f}", style="bold")
    console.print(table)
