"""`python -m flows.people --base-url URL --api-key KEY`: the student talks to a served model.

What it does: scores unseen problems before, talks for `--turns` problems, scores again, and prints both tables.
What it leaves out: starting a server (`clawrl up`).
"""

import argparse
import asyncio
import dataclasses
import json
import os
import sys
from collections.abc import Sequence

import openai
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from flows.people.rubric import CRITERIA
from flows.people.student import Evaluation, RunReport, Student, StudentSettings, TurnReport, evaluate


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    usual = StudentSettings()
    parser = argparse.ArgumentParser(prog="python -m flows.people", description="A scripted student talks to a model.")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1", help="the server's address, with /v1")
    parser.add_argument("--api-key", default=os.environ.get("CLAWRL_API_KEY", "none"), help="or CLAWRL_API_KEY")
    parser.add_argument("--model", default=usual.model)
    parser.add_argument("--turns", type=int, default=64, help="problems to talk about; 0: only score")
    parser.add_argument("--sessions", type=int, default=usual.sessions, help="conversations at once")
    parser.add_argument("--temperature", type=float, default=usual.temperature)
    parser.add_argument("--problems", type=int, default=24, help="unseen problems in a score; 0: don't score")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true", help="print each answer and reply")
    parser.add_argument("--json", action="store_true", help="print numbers as JSON, and no progress")
    return parser.parse_args(arguments)


def _table(scores: dict[str, Evaluation]) -> Table:
    table = Table(title="first answers to unseen problems")
    table.add_column("")
    for name, evaluation in scores.items():
        versions = ", ".join(f"v{number}" for number in evaluation.versions)
        table.add_column(f"{name} ({versions})" if versions else name, justify="right")
    rows = [("score", lambda e: f"{e.mean:.3f}"), ("nothing to say against", lambda e: f"{e.content:.1%}")]
    rows += [(f"  {name}", lambda e, name=name: f"{e.kept[name]:.1%}") for name in CRITERIA]
    rows += [("right (watched only)", lambda e: f"{e.right:.1%}"), ("words", lambda e: f"{e.words:.0f}")]
    for label, show in rows:
        table.add_row(label, *(show(evaluation) for evaluation in scores.values()))
    return table


async def _run(options: argparse.Namespace, console: Console) -> tuple[dict[str, Evaluation], RunReport]:
    settings = StudentSettings(
        model=options.model, sessions=options.sessions, temperature=options.temperature, seed=options.seed
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    scores: dict[str, Evaluation] = {}
    report = RunReport()
    async with openai.AsyncOpenAI(base_url=options.base_url, api_key=options.api_key) as client:
        with Progress(*columns, console=console, disable=options.json) as progress:

            async def scored(name: str) -> None:
                if options.problems:
                    task = progress.add_task(f"scoring {name}", total=options.problems)
                    scores[name] = await evaluate(
                        client,
                        model=options.model,
                        problems=options.problems,
                        temperature=options.temperature,
                        sessions=options.sessions,
                        on_answer=lambda done, _: progress.update(task, completed=done),
                    )

            await scored("before" if options.turns else "now")
            if options.turns:
                task = progress.add_task("talking", total=options.turns)

                def on_turn(turn: TurnReport) -> None:
                    progress.advance(task)
                    if options.verbose and not options.json:
                        progress.console.print(f"\n> {turn.problem.question}\n{turn.answer.text}", markup=False)
                        progress.console.print(f"[{turn.score.total:g}] {turn.reply}", markup=False)

                report = await Student(client, settings, on_turn).run(options.turns)
                await scored("after")
    return scores, report


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when she could talk, 1 with the reason when the server could not be reached or refused."""
    options, console = _options(arguments), Console()
    try:
        scores, report = asyncio.run(_run(options, console))
    except openai.APIError as failure:
        print(
            f"the model at {options.base_url} could not be talked to: {failure}. Is it up? See clawrl status.",
            file=sys.stderr,
        )
        return 1
    if options.json:
        found = {name: dataclasses.asdict(evaluation) for name, evaluation in scores.items()}
        print(json.dumps({"scores": found, "talk": {**dataclasses.asdict(report), "mean": report.mean}}))
        return 0
    if scores:
        console.print(_table(scores))
    if report.turns:
        console.print(
            f"{report.turns} problems talked about, {report.content} praised, mean score {report.mean:.3f}, "
            f"{report.failed} conversations failed"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
