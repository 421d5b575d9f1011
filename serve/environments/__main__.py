"""`python -m serve.environments`: look at tasks, play them, run their experts, serve and measure environments.

What it leaves out: everything but words, options and exit codes.
"""

import asyncio
import os
import secrets
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from serve.environments.catalog import EnvironmentSettings, find_task, track
from serve.environments.episode import EpisodeRun, EpisodeSettings
from serve.environments.policies import ModelPolicy, ScriptedPolicy
from serve.environments.protocol import TRACKS, EnvironmentFailed
from serve.environments.runs import Job, play_all
from serve.environments.sandbox import require
from serve.environments.tasks import Task

console = Console(highlight=False)
TRACK = click.Choice(TRACKS)


@click.group()
def main() -> None:
    """Environments that agents learn from: terminal, tool_call, swe, gui."""


@main.command("list")
@click.argument("name", type=TRACK, metavar="TRACK")
def list_tasks(name: str) -> None:
    """The tasks of TRACK, by skill."""
    table = Table("skill", "split", "task", "difficulty", "steps of its expert")
    for task in sorted(track(name).load(), key=lambda task: (task.split, task.skill, task.difficulty)):
        table.add_row(task.skill, task.split, task.task_id, str(task.difficulty), str(len(task.expert)))
    console.print(table)


@main.command()
@click.argument("name", type=TRACK, metavar="TRACK")
@click.argument("task_id", metavar="TASK")
def play(name: str, task_id: str) -> None:
    """Do TASK of TRACK yourself: type the actions."""
    from serve.environments.play import play as play_task

    task = find_task(name, task_id)
    run = asyncio.run(play_task(task, console))
    sys.exit(0 if run.episode.status != "error" else 1)


def _options(command: Callable) -> Callable:
    for option in (
        click.option("--form", type=click.Choice(["tools", "plain"]), default="tools", help="Format of the answers."),
        click.option(
            "--at-once", type=click.IntRange(1, 256), default=4, show_default=True, help="Episodes at a time."
        ),
        click.option("--skill", help="Only tasks of this skill."),
        click.option("--split", type=click.Choice(["train", "held_out"]), help="Only tasks of this split."),
        click.option("--task", "only", help="Only this task."),
    ):
        command = option(command)
    return command


def _chosen(name: str, skill: str | None, split: str | None, only: str | None) -> list[Task]:
    tasks = [find_task(name, only)] if only else list(track(name).load())
    chosen = [task for task in tasks if skill in (None, task.skill) and split in (None, task.split)]
    if not chosen:
        skills = ", ".join(sorted({task.skill for task in track(name).load()}))
        raise ValueError(f"no task of {name} fits skill {skill!r}, split {split!r}; its skills are {skills}")
    return chosen


@main.command()
@click.argument("name", type=TRACK, metavar="TRACK")
@_options
def expert(name: str, form: str, at_once: int, **choice: Any) -> None:
    """Run the experts of TRACK: each must solve its task."""
    jobs = [Job(task, ScriptedPolicy(task.expert, form)) for task in _chosen(name, **choice)]
    runs = _play(jobs, form, at_once)
    bad = [run for run in runs if run.outcome is None or run.outcome.score != 1]
    _report(runs, bad, "solved", "an expert did not solve its task")


@main.command()
@click.argument("name", type=TRACK, metavar="TRACK")
@_options
def wrong(name: str, form: str, at_once: int, **choice: Any) -> None:
    """Run the wrong solutions of TRACK: each must be rejected by its checks."""
    jobs = [Job(task, ScriptedPolicy(task.wrong, form)) for task in _chosen(name, **choice)]
    runs = _play(jobs, form, at_once)
    bad = [run for run in runs if run.outcome is None or run.outcome.score == 1]
    _report(runs, bad, "rejected", "a wrong solution passed, or could not be evaluated")


@main.command("run")
@click.argument("name", type=TRACK, metavar="TRACK")
@click.option("--base-url", required=True, help="Of an OpenAI-compatible API, such as http://127.0.0.1:8700/v1")
@click.option("--model", required=True)
@click.option("--api-key-env", default="CLAWRL_API_KEY", show_default=True, help="The variable that holds its key.")
@click.option("--temperature", type=float, default=1.0, show_default=True)
@click.option("--max-tokens", type=int, default=512, show_default=True)
@click.option("--samples", type=click.IntRange(1, 64), default=1, show_default=True, help="Episodes of each task.")
@_options
def run_model(
    name: str, base_url: str, model: str, api_key_env: str, temperature: float, max_tokens: int, samples: int,
    form: str, at_once: int, **choice: Any,
) -> None:  # fmt: skip
    """Let a model do the tasks of TRACK."""
    key = os.environ.get(api_key_env)
    if not key:
        raise ValueError(f"{api_key_env} is not set: put the API's key there, or name another with --api-key-env")
    policy = ModelPolicy(base_url, key, model, temperature=temperature, max_tokens=max_tokens)
    jobs = [Job(task, policy) for task in _chosen(name, **choice) for _ in range(samples)]
    runs = _play(jobs, form, at_once, policy.close)
    _report(runs, [run for run in runs if run.outcome is None], "evaluated", "an episode ended as an error")


@main.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8760, show_default=True)
@click.option("--places", type=click.IntRange(1, 1024), default=8, show_default=True, help="Episodes at once.")
@click.option(
    "--key-env", default="CLAWRL_ENVIRONMENTS_KEY", show_default=True, help="The variable that holds the key."
)
@click.option(
    "--behind-tls-proxy", is_flag=True, help="A proxy in front does TLS: allows another address than loopback."
)
def serve(host: str, port: int, places: int, key_env: str, behind_tls_proxy: bool) -> None:
    """Serve environments over HTTP. Without a key in its variable, one is made and printed."""
    from aiohttp import web

    from serve.environments.http_server import make_app
    from serve.environments.spares import Spares

    if host not in ("127.0.0.1", "::1", "localhost") and not behind_tls_proxy:
        raise ValueError(f"--host {host}: the key would go over the network in the clear. Say --behind-tls-proxy if a "
                         "proxy in front of it does TLS, or stay on 127.0.0.1")  # fmt: skip
    require()
    key = os.environ.get(key_env) or f"sk-env-{secrets.token_urlsafe(24)}"
    if not os.environ.get(key_env):
        console.print(f"key: {key}", soft_wrap=True)
    spares = Spares(1)
    app = make_app(lambda name: track(name).make(EnvironmentSettings(start=spares.start)), key, capacity=places)
    app.on_cleanup.append(lambda _: spares.close())
    web.run_app(app, host=host, port=port, print=lambda text: console.print(text.splitlines()[0]))


@main.command()
@click.argument("what", type=click.Choice(["latency", "throughput", "leaks", "chaos"]))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--episodes", type=int, help="How many; each measurement has its own default.")
def bench(what: str, as_json: bool, episodes: int | None) -> None:
    """Measure: latency of a lease; experts a second; what 1,000 episodes leave behind; kills in 200 episodes."""
    from serve.environments.bench import MEASURES, show

    result = asyncio.run(MEASURES[what](console, **({"episodes": episodes} if episodes else {})))
    show(console, result, as_json)
    sys.exit(0 if result.get("good", True) else 1)


async def _nothing() -> None:
    """What is to be done after episodes of scripts."""


def _play(
    jobs: Sequence[Job], form: str, at_once: int, after: Callable[[], Awaitable[None]] = _nothing
) -> list[EpisodeRun]:
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("episodes", total=len(jobs))

        async def play_jobs() -> list[EpisodeRun]:
            try:
                return await play_all(
                    jobs, at_once=at_once, settings=EpisodeSettings(form=form),
                    on_end=lambda run: progress.advance(bar),
                )  # fmt: skip
            finally:
                await after()

        return asyncio.run(play_jobs())


def _report(runs: Sequence[EpisodeRun], bad: Sequence[EpisodeRun], good_word: str, complaint: str) -> None:
    table = Table("task", "skill", "split", "level", "steps", "outcome", "seconds", "reason")
    for run in sorted(runs, key=lambda run: (run.task.skill, run.task.difficulty, run.task.task_id)):
        score = "" if run.outcome is None else f"{run.outcome.score:+.2f}"
        failed = "" if run.outcome is None else ", ".join(c.name for c in run.outcome.checks if not c.passed)
        style = "red" if run in bad else ""
        table.add_row(
            run.task.task_id, run.task.skill, run.task.split, str(run.task.difficulty), str(len(run.steps)), score,
            f"{run.episode.ended_at - run.episode.started_at:.2f}", escape(run.episode.reason or failed)[:100],
            style=style,
        )  # fmt: skip
    console.print(table)
    statuses = ", ".join(f"{count} {status}" for status, count in Counter(r.episode.status for r in runs).items())
    scores = [run.outcome.score for run in runs if run.outcome is not None]
    mean = f", mean outcome {sum(scores) / len(scores):+.2f}" if scores else ""
    took = max(run.episode.ended_at for run in runs) - min(run.episode.started_at for run in runs)
    good = len(runs) - len(bad)
    console.print(f"{good} of {len(runs)} {good_word}; {statuses}{mean}; {took:.1f} s, {len(runs) / took:.1f} a second")
    if bad:
        console.print(f"[red]{len(bad)}[/red] times {complaint}: {', '.join(run.task.task_id for run in bad[:10])}")
        sys.exit(1)


def _main() -> None:
    """Faults that people can mend end as one line and exit code 1."""
    try:
        main(standalone_mode=False)
    except click.ClickException as fault:
        fault.show()
        sys.exit(fault.exit_code)
    except click.Abort:
        sys.exit(130)
    except (ValueError, OSError, EnvironmentFailed) as fault:  # boundary: the command line
        console.print(f"[red]environments:[/red] {escape(str(fault))}", soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        console.print("\nstopped; every sandbox of it has ended")
        sys.exit(130)


if __name__ == "__main__":
    _main()
