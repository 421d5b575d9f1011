"""`python -m serve.environments`: look at tasks, play them, run their experts, serve and measure environments.

What it leaves out: everything but words, options and exit codes.
"""

import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
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
from serve.environments.runs import Job, local, play_all
from serve.environments.sandbox import require
from serve.environments.tasks import Task

WIDE = 160  # where nobody looks at a terminal: a file, a pipe
console = Console(highlight=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE)
TRACK = click.Choice(TRACKS)
OWN = "Own tasks in place of ours: a file or folder in one of the forms that README.md lists."
REPOSITORIES = "Folder of the git repositories (owner/name) that rows of swe tasks name."


@click.group()
def main() -> None:
    """Environments that agents learn from: terminal, tool_call, swe, gui."""


@main.command("list")
@click.argument("name", type=TRACK, metavar="TRACK")
def list_tasks(name: str) -> None:
    """The tasks of TRACK, by skill."""
    tasks = sorted(track(name).load(), key=lambda task: (task.split, task.skill, task.difficulty))
    table = _table(tasks, "skill", "split", "level", "steps")
    for task in tasks:
        table.add_row(task.task_id, task.skill, task.split, str(task.difficulty), str(len(task.expert)))
    console.print(table)
    console.print("[dim]level: 1 easy to 5 hard; steps: of its expert[/dim]")


def _table(tasks: Iterable[Task], *others: str) -> Table:
    """Whose first column, the names that other commands take, is never cut."""
    table = Table()
    table.add_column("task", no_wrap=True, min_width=max((len(task.task_id) for task in tasks), default=4))
    for name in others:
        table.add_column(name, no_wrap=name not in ("skill", "split"), overflow="fold")
    return table


@main.command()
@click.argument("name", type=TRACK, metavar="TRACK")
@click.argument("task_id", metavar="TASK")
@click.option("--tasks", "path", type=click.Path(path_type=Path), help=OWN)
@click.option("--repositories", type=click.Path(path_type=Path), help=REPOSITORIES)
def play(name: str, task_id: str, path: Path | None, repositories: Path | None) -> None:
    """Do TASK of TRACK yourself: type the actions; `help` says which there are. Exit code 0: solved."""
    from serve.environments.play import play as play_task

    (task,) = _chosen(name, None, None, task_id, path, repositories)
    run = asyncio.run(play_task(task, console, settings=EnvironmentSettings(repositories=repositories)))
    sys.exit(0 if run.outcome is not None and run.outcome.solved else 1)


def _options(command: Callable) -> Callable:
    for option in (
        click.option("--out", type=click.Path(path_type=Path), help="Append each episode to this file, as JSON lines."),
        click.option(
            "--form",
            type=click.Choice(["tools", "plain"]),
            default="tools",
            show_default=True,
            help="Format of the answers: tool calls, or text for models that can't.",
        ),
        click.option("--repositories", type=click.Path(path_type=Path), help=REPOSITORIES),
        click.option("--tasks", "path", type=click.Path(path_type=Path), help=OWN),
        click.option(
            "--at-once", type=click.IntRange(1, 256), default=4, show_default=True, help="Episodes at a time."
        ),
        click.option("--skill", help="Only tasks of this skill."),
        click.option("--split", type=click.Choice(["train", "held_out"]), help="Only tasks of this split."),
        click.option("--task", "only", help="Only this task."),
    ):
        command = option(command)
    return command


def _chosen(
    name: str, skill: str | None, split: str | None, only: str | None, path: Path | None, repositories: Path | None
) -> list[Task]:
    tasks = list(track(name).load()) if path is None else _own(name, path, repositories)
    if only:
        tasks = [find_task(name, only, tasks)]
    chosen = [task for task in tasks if skill in (None, task.skill) and split in (None, task.split)]
    if not chosen:
        asked = [f"--{what} {value}" for what, value in (("skill", skill), ("split", split)) if value]
        skills = ", ".join(sorted({f"{task.skill} ({task.split})" for task in tasks}))
        raise ValueError(f"no task of {name} fits {' '.join(asked)}; its skills are {skills}")
    return chosen


def _own(name: str, path: Path, repositories: Path | None) -> list[Task]:
    from serve.environments.own import load_own

    tasks, faults = load_own(name, path, repositories)
    for fault in faults:
        console.print(f"[yellow]left out:[/yellow] {escape(str(fault))}", soft_wrap=True)
    if not tasks:
        raise ValueError(f"{path} holds no task that can be used")
    return list(tasks)


@main.command()
@click.argument("name", type=TRACK, metavar="TRACK")
@_options
def expert(name: str, form: str, at_once: int, out: Path | None, **choice: Any) -> None:
    """Run the experts of TRACK: each must solve its task."""
    jobs = [Job(task, ScriptedPolicy(task.expert, form)) for task in _with(_chosen(name, **choice), "expert")]
    runs = _play(jobs, form, at_once, out, choice["repositories"])
    bad = [run for run in runs if run.outcome is None or run.outcome.score != 1]
    _report(runs, bad, "solved", "an expert did not solve its task")


@main.command()
@click.argument("name", type=TRACK, metavar="TRACK")
@_options
def wrong(name: str, form: str, at_once: int, out: Path | None, **choice: Any) -> None:
    """Run the wrong solutions of TRACK: each must be rejected by its checks."""
    jobs = [Job(task, ScriptedPolicy(task.wrong, form)) for task in _with(_chosen(name, **choice), "wrong")]
    runs = _play(jobs, form, at_once, out, choice["repositories"])
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
    form: str, at_once: int, out: Path | None, **choice: Any,
) -> None:  # fmt: skip
    """Let a model do the tasks of TRACK. With --out, what it said and what was checked is kept."""
    key = os.environ.get(api_key_env)
    if not key:
        raise ValueError(f"{api_key_env} is not set: put the API's key there, or name another with --api-key-env")
    policy = ModelPolicy(base_url, key, model, temperature=temperature, max_tokens=max_tokens)
    jobs = [Job(task, policy) for task in _chosen(name, **choice) for _ in range(samples)]
    runs = _play(jobs, form, at_once, out, choice["repositories"], policy.close)
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
@click.option("--repositories", type=click.Path(path_type=Path), help=REPOSITORIES)
@click.option("--pages", type=click.Path(path_type=Path), help="Folder of own pages that gui tasks may show.")
def serve(
    host: str, port: int, places: int, key_env: str, behind_tls_proxy: bool, repositories: Path | None,
    pages: Path | None,
) -> None:  # fmt: skip
    """Serve environments over HTTP. Without a key in its variable, one is made and printed."""
    from aiohttp import web

    from serve.environments.gui.site import PAGES
    from serve.environments.http_server import make_app
    from serve.environments.spares import Spares

    if host not in ("127.0.0.1", "::1", "localhost") and not behind_tls_proxy:
        raise ValueError(f"--host {host}: the key would go over the network in the clear. Say --behind-tls-proxy if a "
                         "proxy in front of it does TLS, or stay on 127.0.0.1")  # fmt: skip
    require()
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ValueError(f"{host}:{port} can't be listened on: {error.strerror}; choose another --port") from error
    key = os.environ.get(key_env) or f"sk-env-{secrets.token_urlsafe(24)}"
    if not os.environ.get(key_env):
        console.print(f"key: {key}", soft_wrap=True)
    spares = Spares(1)
    settings = EnvironmentSettings(start=spares.start, repositories=repositories, pages=pages or PAGES)
    app = make_app(lambda name: track(name).make(settings), key, capacity=places)
    app.on_cleanup.append(lambda _: spares.close())
    web.run_app(app, sock=listening, print=lambda text: console.print(text.splitlines()[0]))


@main.command()
@click.argument("what", type=click.Choice(["latency", "throughput", "leaks", "chaos"]))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--episodes", type=int, help="How many; each measurement has its own default.")
def bench(what: str, as_json: bool, episodes: int | None) -> None:
    """Measure: latency of a lease; experts a second; what 1,000 episodes leave behind; kills in 200 episodes."""
    from serve.environments.bench import MEASURES, show

    said = Console(stderr=True) if as_json else console
    with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):  # Ray tells there of workers that died
        result = asyncio.run(MEASURES[what](said, **({"episodes": episodes} if episodes else {})))
    show(console, result, as_json)
    sys.exit(0 if result.get("good", True) else 1)


def _with(tasks: list[Task], kind: str) -> list[Task]:
    """Those that have such a solution; tasks of others may have none."""
    having = [task for task in tasks if getattr(task, kind)]
    if len(having) < len(tasks):
        console.print(f"[yellow]{len(tasks) - len(having)} of {len(tasks)} tasks have no {kind} solution[/yellow]")
    if not having:
        raise ValueError(f"none of these tasks has an entry `{kind}`: there is nothing to run")
    return having


async def _nothing() -> None:
    """What is to be done after episodes of scripts."""


def _play(
    jobs: Sequence[Job], form: str, at_once: int, out: Path | None, repositories: Path | None,
    after: Callable[[], Awaitable[None]] = _nothing,
) -> list[EpisodeRun]:  # fmt: skip
    settings = EnvironmentSettings(repositories=repositories)
    ended: list[EpisodeRun] = []
    with contextlib.ExitStack() as open_files, Progress(console=console, transient=True) as progress:
        file = None if out is None else open_files.enter_context(out.open("a", encoding="utf-8"))
        bar = progress.add_task("episodes", total=len(jobs))

        def on_end(run: EpisodeRun) -> None:
            ended.append(run)
            progress.advance(bar)
            if file is not None:
                file.write(json.dumps(run.to_json(), ensure_ascii=False) + "\n")
                file.flush()

        async def play_jobs() -> list[EpisodeRun]:
            try:
                return await play_all(
                    jobs, at_once=at_once, settings=EpisodeSettings(form=form), on_end=on_end,
                    lease=lambda name: local(name, settings),
                )  # fmt: skip
            finally:
                await after()

        try:
            return asyncio.run(play_jobs())
        except KeyboardInterrupt:
            progress.stop()
            _show(ended)
            console.print(f"stopped after {len(ended)} of {len(jobs)} episodes; every sandbox has ended")
            sys.exit(130)


def _wide(cell: str) -> tuple[str, ...]:
    """A cell that is left out where there is no room for it."""
    return (cell,) if console.width > 100 else ()


def _show(runs: Sequence[EpisodeRun], bad: Sequence[EpisodeRun] = ()) -> None:
    """A line for each episode; below, what there is to say of those that did not solve their task."""
    tasks = [run.task for run in runs]
    table = _table(tasks, "level", "steps", "outcome", "seconds", "status", *_wide("skill"))
    notes = []
    for run in sorted(runs, key=lambda run: (run.task.skill, run.task.difficulty, run.task.task_id)):
        score = "" if run.outcome is None else f"{run.outcome.score:+.2f}"
        failed = [] if run.outcome is None else [check for check in run.outcome.checks if not check.passed]
        table.add_row(
            run.task.task_id, str(run.task.difficulty), str(len(run.steps)), score,
            f"{run.episode.ended_at - run.episode.started_at:.2f}", run.episode.status,
            *_wide(run.task.skill), style="red" if run in bad else "",
        )  # fmt: skip
        said = run.episode.reason or "; ".join(f"{check.name}: {check.detail}".strip(": ") for check in failed)
        notes += [f"{run.task.task_id}: {' '.join(said.split())[:300]}"] if said else []
    console.print(table)
    for note in notes:
        console.print(f"[dim]{escape(note)}[/dim]", soft_wrap=True)


def _report(runs: Sequence[EpisodeRun], bad: Sequence[EpisodeRun], good_word: str, complaint: str) -> None:
    _show(runs, bad)
    statuses = ", ".join(f"{count} {status}" for status, count in Counter(r.episode.status for r in runs).items())
    scores = [run.outcome.score for run in runs if run.outcome is not None]
    mean = f", mean outcome {sum(scores) / len(scores):+.2f}" if scores else ""
    solved = f", {sum(score == 1 for score in scores)} solved" if good_word == "evaluated" else ""
    took = max(run.episode.ended_at for run in runs) - min(run.episode.started_at for run in runs)
    good = len(runs) - len(bad)
    rate = f"{took:.1f} s, {len(runs) / took:.2g} a second"
    console.print(f"{good} of {len(runs)} {good_word}{solved}; {statuses}{mean}; {rate}")
    if bad:
        names = ", ".join(run.task.task_id for run in bad[:10])
        console.print(f"[red]{len(bad)} of {len(runs)}[/red]: {complaint}: {names}", soft_wrap=True)
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
