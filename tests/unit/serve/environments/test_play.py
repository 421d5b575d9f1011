"""A person at the keyboard: what is understood, what uses up a step, how it ends; Ctrl-C in a real terminal."""

import asyncio
import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from serve.environments import play as play_module
from serve.environments.catalog import EnvironmentSettings, find_task, track
from serve.environments.episode import EpisodeRun
from serve.environments.play import NotUnderstood, play, typed_action
from serve.environments.protocol import Call, Check, Observation, Outcome, StepResult
from serve.environments.runs import local

SEEN = Observation(text="")
WITH_FUNCTIONS = "bank-balance"  # no Python; functions balance(account), transfer(source, target, amount), ...
WITH_PYTHON = "arith-run-product"
ROOT = Path(__file__).parents[4]


class Typed(Console):
    """A console whose input is this text; then the input ends, or Ctrl-C is pressed."""

    def __init__(self, text: str, end: type[BaseException] = EOFError) -> None:
        super().__init__(file=StringIO(), width=200, highlight=False)
        self.lines, self.end, self.prompts = text.splitlines(), end, []

    def input(self, prompt: Any = "", **options: Any) -> str:
        self.prompts.append(str(prompt))
        if not self.lines:
            raise self.end
        return self.lines.pop(0)

    @property
    def text(self) -> str:
        return self.file.getvalue()


async def typed(name: str, task_id: str, text: str) -> tuple[EpisodeRun, Typed]:
    console = Typed(text)
    return await play(find_task(name, task_id), console), console


def call(task_id: str, text: str) -> Call:
    (one,) = typed_action(find_task("tool_call", task_id), text, SEEN).calls
    return one


async def test_the_terminal_says_what_to_type_and_help_uses_no_step() -> None:
    run, console = await typed("terminal", "count-lines", "help\n?\n\nwc -l < names.txt > count.txt\ndone\n")
    assert (run.episode.status, len(run.steps)) == ("done", 2)
    assert run.outcome is not None and run.outcome.solved
    assert console.text.count("type a bash command") == 3 and "done ends the episode" in console.text
    assert "nothing was typed" in console.text
    assert ["terminal 1/12>" in prompt for prompt in console.prompts] == [True] * 4 + [False]
    assert console.text.count("The episode is over.") == 1  # the last observation, which no prompt followed


@pytest.mark.parametrize("word", ["done", "DONE", "submit", " SUBMIT "])
@pytest.mark.parametrize("name", ["terminal", "swe", "gui"])
def test_both_words_end_every_episode_that_has_no_answer(name: str, word: str) -> None:
    action = typed_action(track(name).load()[0], word, SEEN)
    assert action.calls == (Call(name="submit" if name == "swe" else "done", arguments={}),)


async def test_a_loop_over_several_lines_is_one_command() -> None:
    text = "```\nfor i in 1 2\ndo\necho a$i\ndone\n```\nfor i in 3 4; do \\\necho b$i; done\n"
    run, console = await typed("terminal", "count-lines", text)
    assert [step.after.text for step in run.steps] == ["a1\na2\nexit code: 0", "b3\nb4\nexit code: 0"]
    assert console.prompts.count("... ") == 6


async def test_the_end_of_input_evaluates_and_shows_nothing_twice() -> None:
    run, console = await typed("terminal", "count-lines", "wc -l < names.txt > count.txt; echo seen\n")
    assert run.outcome is not None and run.outcome.solved
    assert run.episode.status == "error" and "end of input" in (run.episode.reason or "")
    assert console.text.count("exit code: 0") == 1 and "evaluated as it is" in console.text


async def test_steps_used_up_is_said_and_the_last_observation_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run, console = await typed("terminal", "count-lines", "true\n" * 11 + "echo la''st\n")
    assert (run.episode.status, len(run.steps)) == ("truncated", 12)
    assert "no steps left (12)" in console.text and console.text.count("last\n") == 1
    assert "terminal 12/12>" in console.prompts[-1]


async def test_a_person_is_not_held_to_the_time_of_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.environments.episode.LATE_S", -299.9)  # of 240 s none would be left
    run, _ = await typed("terminal", "count-lines", "sleep 0.2\ndone\n")
    assert run.episode.status == "done" and run.task.limits.episode_s == 240


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('balance {"account": "A1"}', {"account": "A1"}),
        ('balance(account="A1")', {"account": "A1"}),
        ("transfer(source='A', target='B', amount=-1.5)", {"source": "A", "target": "B", "amount": -1.5}),
        ('```\n{"name": "balance", "arguments": {"account": "A1"}}\n```', {"account": "A1"}),
    ],
)
def test_a_call_is_understood(text: str, arguments: dict) -> None:
    assert call(WITH_FUNCTIONS, text).arguments == arguments


@pytest.mark.parametrize("task_id", [WITH_FUNCTIONS, WITH_PYTHON])
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("answer 5", "5"), ("answer: 5", "5"), ("Answer: 5", "5"), ("ANSWER -5", "-5"), ("answer:Bo", "Bo"),
        ("Final answer: x = 1", "x = 1"), ('answer("5")', "5"), ("answer(value=5)", 5), ("answer no way", "no way"),
    ],
)  # fmt: skip
def test_an_answer_is_understood(task_id: str, text: str, value: Any) -> None:
    assert call(task_id, text) == Call(name="answer", arguments={"value": value})


LOOP = "for i in [1]:\n    print(i)"


@pytest.mark.parametrize(
    ("text", "code"),
    [(one, one) for one in ("print(1 + 1)", "answer = 5", "answer == 5", "x = {'a': 1}")]
    + [(f"```\n{LOOP}\n```", LOOP), (f"```python\n{LOOP}\n```", LOOP), ('python {"code": "1"}', "1")],
)
def test_python_is_understood_where_the_task_allows_it(text: str, code: str) -> None:
    assert call(WITH_PYTHON, text) == Call(name="python", arguments={"code": code})
    with pytest.raises(NotUnderstood):
        call(WITH_FUNCTIONS, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("balance A1", 'balance(account=...) or balance {"account": ...}; it is balance(account: string)'),
        ("balance", "it is balance(account: string)"),
        ('balance("A1")', "each argument of balance needs its name: write balance(account=...)"),
        ("balance(**{'account': 'A1'})", "each argument of balance needs its name"),
        ("balance(account=A1)", 'account of balance is A1: a number, a "text"'),
        ("balance(account={1, 2})", "account of balance is {1, 2}"),
        ("balance(account='A1'", "can't be read as one call"),
        ("balance {account: A1}", "the arguments of balance are not JSON"),
        ("balence(account='A1')", "there is no function 'balence'; known are balance"),
        ("python {}", "there is no function 'python'"),
        ("```python\nprint(1)\n```", "this task has no Python"),
        ("what now", "'what now' is no call and no answer"),
        ("answer:", "the final answer is empty"),
        ("done", "ends with its answer"),
        ("  ", "nothing was typed"),
    ],
)
def test_what_is_not_understood_says_what_would_be(text: str, said: str) -> None:
    with pytest.raises(NotUnderstood) as why:
        call(WITH_FUNCTIONS, text)
    assert said in str(why.value)


async def test_tool_calls_are_played_and_only_what_is_understood_uses_a_step() -> None:
    text = 'help\nbalance A1\nbalance(account="A1")\nanswer 1\n'
    run, console = await typed("tool_call", WITH_FUNCTIONS, text)
    assert [step.action.calls[0].name for step in run.steps] == ["balance", "answer"]
    assert "balance returned" in run.steps[0].after.text and run.episode.status == "done"
    assert console.text.count("- balance(account: string): ") == 2  # in the first observation, and by help


async def test_where_only_calls_count_done_ends_it() -> None:
    task = next(one for one in track("tool_call").load() if one.payload["kind"] == "call")
    (ending,) = typed_action(task, "done", SEEN).calls
    assert ending == Call(name="answer", arguments={"value": "done"})


class Pictured:
    """An environment with a picture at each step, which its third step ends."""

    def __init__(self) -> None:
        self.steps, self.closed = 0, False

    async def reset(self, task: Any) -> Observation:
        return Observation(text="first", images=(b"0",))

    async def step(self, action: Any) -> StepResult:
        self.steps += 1
        if action.calls[0].name == "wait":
            await asyncio.sleep(60)
        return StepResult(observation=Observation(text="next", images=(b"1",)), done=action.calls[0].name == "done")

    async def evaluate(self) -> Outcome:
        detail = "exit code 1; no file\nno file\nno file\nwanted: a\ngot: b"
        return Outcome.of((Check(name="it", passed=False, detail=detail),))

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def pictured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pictured:
    environment = Pictured()

    @asynccontextmanager
    async def opened(name: str, *settings: EnvironmentSettings):
        try:
            yield environment
        finally:
            await environment.close()

    monkeypatch.setattr(play_module, "local", opened)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return environment


async def test_pictures_go_to_a_folder_of_their_own(pictured: Pictured, tmp_path: Path) -> None:
    _, console = await typed("gui", "todo-check-plants", "help\nclik 1\nclick e1\nsubmit\n")
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("clawrl-screens-") and pictured.steps == 2
    paths = sorted(folder.iterdir())
    assert [path.read_bytes() for path in paths] == [b"0", b"1", b"1"]
    assert all(str(path) in console.text for path in paths) and console.text.count("the folder stays") == 1
    assert "double_click e12; type e4" in console.text and "like: click e12" in console.text
    assert "exit code 1; no file\nwanted: a\ngot: b\n" in console.text


async def test_ctrl_c_at_the_prompt_closes_and_says_so(pictured: Pictured) -> None:
    console, before = Typed("click e1", KeyboardInterrupt), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        await play(find_task("gui", "todo-check-plants"), console)
    assert pictured.closed and pictured.steps == 1 and "(interrupted: not evaluated)" in console.text
    assert signal.getsignal(signal.SIGINT) is before


async def test_cancelled_while_it_acts_it_closes_and_says_so(pictured: Pictured) -> None:
    console = Typed("wait 1")
    playing = asyncio.create_task(play(find_task("gui", "todo-check-plants"), console))
    while not pictured.steps:
        await asyncio.sleep(0.01)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert pictured.closed and "(interrupted: not evaluated)" in console.text


async def test_settings_reach_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def opened(name: str, *settings: EnvironmentSettings) -> Any:
        given.append(settings)
        return local(name)

    monkeypatch.setattr(play_module, "local", opened)
    settings = EnvironmentSettings()
    await play(find_task("terminal", "count-lines"), Typed(""), settings=settings)
    await play(find_task("terminal", "count-lines"), Typed(""))
    assert given == [(settings,), ()]


def _until(screen: int, words: str, within_s: float = 60.0) -> str:
    """What the terminal showed, up to these words; all of it where they are empty."""
    shown, end = "", time.monotonic() + within_s
    while time.monotonic() < end and (not words or words not in shown):
        if select.select([screen], [], [], 0.1)[0]:
            try:
                shown += os.read(screen, 4096).decode(errors="replace")
            except OSError:  # the other end was closed
                return shown
    assert words in shown, shown
    return shown


@pytest.mark.parametrize("command", ["", "sleep 15"], ids=["at the prompt", "while a command runs"])
def test_ctrl_c_in_a_terminal_ends_at_once(command: str) -> None:
    screen, own = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "serve.environments", "play", "terminal", "count-lines"],
        stdin=own, stdout=own, stderr=own, cwd=ROOT, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0), env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    os.close(own)
    try:
        _until(screen, "terminal 1/12>")
        if command:
            os.write(screen, f"{command}\n".encode())
            time.sleep(1.0)
        began = time.monotonic()
        os.write(screen, b"\x03")  # the terminal sends SIGINT to everything in its foreground
        shown = _until(screen, "not evaluated")
        assert process.wait(10) == 130
        assert time.monotonic() - began < 3
        assert "(interrupted: not evaluated)" in shown and "Traceback" not in shown + _until(screen, "", 1)
    finally:
        process.kill()
        process.wait()
        os.close(screen)
