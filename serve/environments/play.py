"""A person in an environment: types the actions, sees what they lead to, and how it ends.

What is typed is one line: a command (terminal, swe), Python, `name {"argument": 1}` or `Answer: 5` (tool_call), an
action such as `click e12` (gui). A line that opens a fence (```) goes on until the fence is closed, and is read as a
model's plain answer would be. `done` or `submit` ends the episode, as the track has it; end of file evaluates at once.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from serve.environments.catalog import track
from serve.environments.episode import (
    EpisodeRun,
    EpisodeSettings,
    PolicyAnswer,
    PolicyFailed,
    PolicyRequest,
    run_episode,
)
from serve.environments.prompts import write_answer
from serve.environments.protocol import Action
from serve.environments.runs import local
from serve.environments.tasks import Task
from storage.records import new_id

CALL = re.compile(r"(\w+)\s*(\{.*\})\s*$", re.DOTALL)


@dataclass
class Person:
    """Asks at the keyboard."""

    console: Console
    pictures: int = 0
    gone: bool = False  # end of input

    async def act(self, request: PolicyRequest) -> PolicyAnswer:
        """Show what is seen, and read an action.

        Raises:
            PolicyFailed: end of file.
        """
        if request.index == 0:
            self.console.print(f"[bold]{escape(request.task.instruction)}[/bold]\n")
        self._show(request)
        module = track(request.task.track)
        action = typed_action(request.task, self._read(request.task.track), request)
        return PolicyAnswer(message=write_answer(module, action, "tools"))

    def _show(self, request: PolicyRequest) -> None:
        self.console.print(escape(request.observation.text), style="cyan", soft_wrap=True)
        for image in request.observation.images:
            self.pictures += 1
            name = f"screen-{self.pictures}.png"
            Path(name).write_bytes(image)
            self.console.print(f"[dim](the screen is in {name})[/dim]")

    def _read(self, name: str) -> str:
        try:
            lines = [self.console.input(f"[green]{name}>[/green] ")]
            if lines[0].lstrip().startswith("```"):
                while lines[-1].strip() != "```" or len(lines) == 1:
                    lines.append(self.console.input("... "))
        except EOFError:
            self.gone = True
            raise PolicyFailed("end of input") from None
        return "\n".join(lines)


def typed_action(task: Task, text: str, request: PolicyRequest) -> Action:
    """What a typed text asks for."""
    module = track(task.track)
    if text.lstrip().startswith("```") or task.track == "gui":
        return module.parse_plain(text)
    if task.track == "tool_call":
        if call := CALL.match(text):
            return module.parse_plain(f'```json\n{{"name": "{call[1]}", "arguments": {call[2]}}}\n```')
        if text.lower().startswith("answer:"):
            return module.parse_plain(text)
        return module.parse_plain(f"```python\n{text}\n```")
    if not text.strip():
        return Action(text="", fault="nothing was typed: type a command, or done (submit) to end")
    return module.expert_action(text, request.observation)


async def play(task: Task, console: Console) -> EpisodeRun:
    """One episode at the keyboard; it is evaluated however it ends."""
    person = Person(console)
    async with local(task.track) as environment:
        run = await run_episode(environment, task, person, episode_id=new_id(), settings=EpisodeSettings())
        if person.gone:
            outcome = await environment.evaluate()
            console.print("\n(end of input: evaluated as it is)")
        else:
            outcome = run.outcome
    if run.steps:
        console.print(escape(run.steps[-1].after.text), style="cyan", soft_wrap=True)
    if outcome is None:
        console.print(f"[red]error:[/red] {escape(run.episode.reason or '')}", soft_wrap=True)
    else:
        for check in outcome.checks:
            mark = "[green]passed[/green]" if check.passed else "[red]failed[/red]"
            console.print(f"{mark} {escape(check.name)}  [dim]{escape(check.detail)}[/dim]", soft_wrap=True)
        console.print(f"outcome {outcome.score:+.2f}")
    return run
