"""A person in an environment: types the actions, sees what they lead to, and how it ends.

What it does: says before the first prompt what can be typed, asks until an action is understood (neither `help` nor
what is not understood uses up a step), shows what follows, and the checks in the end. The words for each track are in
`hint`. `done` or `submit`, alone on a line, ends the episode in every track but tool_call, where a final answer does.
What it leaves out: editing of lines, and the time limit of the episode, which a person is not held to.

A line that opens a fence (```) goes on until the fence is closed: that is how commands of several lines are typed, such
as loops (`done` alone would end the episode). In terminal and swe a line that ends in a backslash goes on too.
End of input (Ctrl-D) evaluates at once. Ctrl-C ends the episode unevaluated.
"""

import ast
import asyncio
import json
import re
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from serve.environments.catalog import EnvironmentSettings, track
from serve.environments.episode import (
    EpisodeRun,
    EpisodeSettings,
    PolicyAnswer,
    PolicyFailed,
    PolicyRequest,
    run_episode,
)
from serve.environments.gui.plain import FORMS
from serve.environments.prompts import write_answer
from serve.environments.protocol import Action, Call, Observation
from serve.environments.runs import local
from serve.environments.tasks import Task
from serve.environments.tool_call.answers import read_json
from serve.environments.tool_call.declared import describe
from serve.environments.tool_call.functions import Function, nearest
from serve.environments.tool_call.spec import ToolTask
from storage.records import new_id

SHELLS = ("terminal", "swe")
ENDINGS = ("done", "submit")
HELP = ("help", "?")
EPISODE_S = 86_400.0  # a person thinks as long as it takes; limits.step_s holds as ever
FENCE = re.compile(r"\s*(`{3,})([^`]*)$")
ANSWER = re.compile(
    r"(?:final\s+)?answer(?:(?P<sure>\s*:|\s+(?=[-+]?[\d.]))|\s(?!\s*[=(]))\s*(?P<value>.*)", re.IGNORECASE | re.DOTALL
)
NAME = re.compile(r"[^\W\d]\w*")
CALL = re.compile(r"[^\W\d]\w*\s*(?:\{.*\}|\(.*\))", re.DOTALL)


class NotUnderstood(ValueError):
    """What was typed is no action; says what is understood."""


@dataclass
class Person:
    """Asks at the keyboard."""

    console: Console
    pictures: list[Path] = field(default_factory=list)
    shown: Observation | None = None  # the last one
    gone: bool = False  # end of input

    async def act(self, request: PolicyRequest) -> PolicyAnswer:
        """Show what is seen, and ask until an action is understood.

        Raises:
            PolicyFailed: end of input.
            KeyboardInterrupt: Ctrl-C at the prompt.
        """
        task = request.task
        if request.index == 0:
            self.console.print(f"[bold]{escape(task.instruction)}[/bold]\n", soft_wrap=True)
        self.show(request.observation)
        if request.index == 0:
            self._say(hint(task), "dim")
        while True:
            text = self._read(task, f"{task.track} {request.index + 1}/{task.limits.steps}>")
            if text.strip() in HELP:
                self._say(help_text(task), "dim")
                continue
            try:
                action = typed_action(task, text, request.observation)
            except NotUnderstood as why:
                self._say(str(why), "yellow")
                continue
            return PolicyAnswer(message=write_answer(track(task.track), action, "tools"))

    def show(self, observation: Observation) -> None:
        """Print an observation; its pictures go to files."""
        self.shown = observation
        self._say(observation.text, "cyan")
        for image in observation.images:
            stays = "" if self.pictures else "; the folder stays until you remove it"
            folder = self.pictures[0].parent if self.pictures else Path(tempfile.mkdtemp(prefix="clawrl-screens-"))
            path = folder / f"screen-{len(self.pictures) + 1}.png"
            path.write_bytes(image)
            self.pictures.append(path)
            self._say(f"(the screen is in {path}{stays})", "dim")

    def _say(self, text: str, style: str) -> None:
        self.console.print(escape(text), style=style, soft_wrap=True)

    def _read(self, task: Task, prompt: str) -> str:
        try:
            with _ctrl_c_raises():
                lines = [self.console.input(f"[green]{escape(prompt)}[/green] ")]
                while _goes_on(task.track, lines):
                    lines.append(self.console.input("... "))
        except EOFError:
            self.gone = True
            raise PolicyFailed("end of input") from None
        return "\n".join(lines)


@contextmanager
def _ctrl_c_raises() -> Iterator[None]:
    """While a line is read, Ctrl-C raises KeyboardInterrupt: asyncio's own handler would wait for the line's end."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _goes_on(name: str, lines: list[str]) -> bool:
    """Whether another line belongs to these."""
    if opened := FENCE.match(lines[0]):
        closing = lines[-1].strip()
        return len(lines) == 1 or len(closing) < len(opened[1]) or set(closing) != {"`"}
    backslashes = len(lines[-1]) - len(lines[-1].rstrip("\\"))
    return name in SHELLS and backslashes % 2 == 1


def hint(task: Task) -> str:
    """What can be typed, in one line."""
    if task.track == "tool_call":
        types, ends = _tool_forms(ToolTask.of(task))
    elif task.track == "gui":
        types, ends = f"type an action, such as {FORMS['click']} or {FORMS['type']}", "done ends the episode"
    else:
        types = "type a bash command; one of several lines goes between two lines of ```"
        ends = f"{'submit' if task.track == 'swe' else 'done'} ends the episode"
    return f"({types}; {ends}; help shows this again; end of input, Ctrl-D, evaluates at once)"


def help_text(task: Task) -> str:
    """The same, and what there is to call (tool_call) or to do (gui)."""
    if task.track == "tool_call":
        return f"{hint(task)}\n{describe(ToolTask.of(task))}"
    if task.track == "gui":
        return (
            f"{hint(task)}\nThe actions are: {'; '.join(FORMS.values())}. Ids like e12 stand in brackets on the page."
        )
    return hint(task)


def _tool_forms(read: ToolTask) -> tuple[str, str]:
    """What a tool_call task understands, and what ends it."""
    forms = ["Python such as print(1 + 1), several lines of it between two lines of ```"] if read.python else []
    if read.functions:
        one = read.functions[0]
        forms.append(f"a call such as {_example(one)} or {_example(one, as_json=True)}")
    ends = "done, or Answer: 5, ends the episode" if read.kind == "call" else "Answer: 5 ends the episode"
    return (f"type {', or '.join(forms)}" if forms else "nothing can be called here"), ends


def _example(function: Function, as_json: bool = False) -> str:
    """A call of a function as it is typed, with dots for the values."""
    needed = function.parameters.get("required", [])
    if as_json:
        return f"{function.name} {{{', '.join(f'{json.dumps(one)}: ...' for one in needed)}}}"
    return f"{function.name}({', '.join(f'{one}=...' for one in needed)})"


def typed_action(task: Task, text: str, observation: Observation) -> Action:
    """What a typed text asks for.

    Raises:
        NotUnderstood: it is no action of the task.
    """
    module = track(task.track)
    stripped = text.strip()
    if not stripped:
        raise NotUnderstood("nothing was typed; help shows what can be")
    if stripped.lower() in ENDINGS:
        action = _ending(task)
    elif task.track == "tool_call":
        action = _tool_action(ToolTask.of(task), stripped)
    elif task.track == "gui" or FENCE.match(text.split("\n")[0]):
        action = module.parse_plain(stripped)
    else:
        action = module.expert_action(text, observation)
    if action.fault is not None:
        raise NotUnderstood(action.fault)
    return action


def _ending(task: Task) -> Action:
    if task.track != "tool_call":
        return Action(text="", calls=(Call(name="submit" if task.track == "swe" else "done", arguments={}),))
    if ToolTask.of(task).kind == "call":  # only what was called counts, but there must be an answer
        return Action(text="", calls=(Call(name="answer", arguments={"value": "done"}),))
    raise NotUnderstood("this task ends with its answer: write it like Answer: 5")


def _tool_action(read: ToolTask, text: str) -> Action:
    """A final answer, a call of a function, or Python where the task allows it."""
    code = read.python and _is_python(text)
    answer = ANSWER.fullmatch(text)
    if FENCE.match(text.split("\n")[0]):
        if text.startswith("```\n"):
            text = f"```{'python' if read.python else 'json'}{text[3:]}"
        action = track("tool_call").parse_plain(text)
    elif answer and (answer["sure"] or not code):
        action = track("tool_call").parse_plain(f"Answer: {answer['value']}")
    else:
        action = Action(text="", calls=(_typed_call(read, text, code),))
    if not read.python and any(call.name == "python" for call in action.calls):
        raise _no_action(read, "this task has no Python")
    return action


def _typed_call(read: ToolTask, text: str, code: bool) -> Call:
    functions = {one.name: one for one in read.functions}
    first = NAME.match(text)
    name = first[0] if first else ""
    rest = text[len(name) :].strip()
    if name in functions or name == "answer" or (name == "python" and read.python):
        if rest.startswith("{"):
            return Call(name=name, arguments=_json_arguments(name, rest))
        if rest.startswith("("):
            like = _example(functions[name]) if name in functions else f"{name}(...)"
            return Call(name=name, arguments=_literal_arguments(name, text, like))
    if code:
        return Call(name="python", arguments={"code": text})
    if name in functions:
        raise NotUnderstood(
            f"{name} is called like {_example(functions[name])} or {_example(functions[name], as_json=True)}; "
            f"it is {functions[name].signature()}"
        )
    if CALL.fullmatch(text) and functions:
        raise _no_action(read, f"there is no function {name!r}; {nearest(name, functions)}")
    raise _no_action(read, f"{text[:80]!r} is no {'Python' if read.python else 'call and no answer'}")


def _no_action(read: ToolTask, why: str) -> NotUnderstood:
    return NotUnderstood(f"{why} ({'; '.join(_tool_forms(read))})")


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _json_arguments(name: str, text: str) -> dict[str, Any]:
    try:
        arguments = read_json(text)
    except ValueError as error:
        raise NotUnderstood(f"the arguments of {name} are not JSON: {error}") from None
    assert isinstance(arguments, dict), "it begins with a brace"
    return arguments


def _literal_arguments(name: str, text: str, like: str) -> dict[str, Any]:
    """The arguments of `name(key=value, ...)`; of `answer(value)` too."""
    try:
        call = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        call = None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise NotUnderstood(f"this can't be read as one call: write {like}, texts in quotes")
    given = [(one.arg, one.value) for one in call.keywords]
    if name == "answer" and len(call.args) == 1:
        given.append(("value", call.args[0]))
    elif call.args:
        raise NotUnderstood(f"each argument of {name} needs its name: write {like}")
    arguments = {}
    for key, node in given:
        if key is None:
            raise NotUnderstood(f"each argument of {name} needs its name: write {like}")
        try:
            arguments[key] = ast.literal_eval(node)
            json.dumps(arguments[key], allow_nan=False)
        except (ValueError, TypeError, RecursionError, MemoryError):
            what = 'a number, a "text", True, False, None, a list or a dict of those'
            raise NotUnderstood(f"{key} of {name} is {ast.unparse(node)[:60]}: {what} is needed") from None
    return arguments


async def play(task: Task, console: Console, *, settings: EnvironmentSettings | None = None) -> EpisodeRun:
    """One episode at the keyboard, evaluated however it ends but by Ctrl-C.

    Where the end of input ended it, its status is `error`, and its outcome is that of the checks all the same.

    Args:
        task: what to do.
        console: where it is shown and typed.
        settings: of the environment.

    Raises:
        KeyboardInterrupt, asyncio.CancelledError: Ctrl-C at the prompt, or while an action was carried out. What ran
            was ended.
    """
    person = Person(console)
    unhurried = replace(task, limits=replace(task.limits, episode_s=EPISODE_S))
    opened = local(task.track) if settings is None else local(task.track, settings)
    try:
        async with opened as environment:
            run = await run_episode(environment, unhurried, person, episode_id=new_id(), settings=EpisodeSettings())
            if person.gone:
                run = replace(run, outcome=await environment.evaluate())
                console.print("\n(end of input: evaluated as it is)")
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("\n(interrupted: not evaluated)")
        raise
    run = replace(run, task=task)
    if run.steps and run.steps[-1].after is not person.shown:
        person.show(run.steps[-1].after)
    _show_end(run, console)
    return run


def _show_end(run: EpisodeRun, console: Console) -> None:
    if run.episode.status == "truncated" and len(run.steps) == run.task.limits.steps:
        console.print(f"no steps left ({run.task.limits.steps})")
    if run.outcome is None:
        console.print(f"[red]error:[/red] {escape(run.episode.reason or '')}", soft_wrap=True)
        return
    for check in run.outcome.checks:
        mark = "[green]passed[/green]" if check.passed else "[red]failed[/red]"
        console.print(f"{mark} {escape(check.name)}  [dim]{escape(_once(check.detail))}[/dim]", soft_wrap=True)
    console.print(f"outcome {run.outcome.score:+.2f}")


def _once(detail: str) -> str:
    """A check's detail without lines that repeat the end of the line before: more than one part may say the same."""
    lines = detail.splitlines()
    return "\n".join(line for before, line in zip(["", *lines], lines, strict=False) if not _ends_with(before, line))


def _ends_with(before: str, line: str) -> bool:
    return before == line or before.endswith(f"; {line}")
