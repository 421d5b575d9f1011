"""Gymnasium's own environments and a small one with texts, through our protocol."""

import asyncio
import sys
import threading
from typing import Any

import gymnasium
import jsonschema
import numpy
import pytest
from gymnasium import spaces

from serve.environments.adapters import gymnasium_text
from serve.environments.adapters.action_spaces import ActSpace
from serve.environments.adapters.ansi import readable
from serve.environments.adapters.gymnasium_episode import outcome
from serve.environments.adapters.gymnasium_text import GymnasiumEnvironment, GymnasiumSettings, from_registry
from serve.environments.protocol import Action, Call, EnvironmentFailed, StepResult
from serve.environments.tasks import Limits, Task, TaskError

LAKE = GymnasiumSettings(action_names=("left", "down", "right", "up"))
TAXI = "Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3"
TWO = spaces.MultiDiscrete([2, 3], start=[0, 5])
STILL = {"is_slippery": False, "render_mode": "ansi"}


class GuessWord(gymnasium.Env):
    """A word to guess: shows which letters are right."""

    observation_space = spaces.Text(40)
    action_space = spaces.Text(min_length=4, max_length=4, charset="abcdefghijklmnopqrstuvwxyz")

    def __init__(self) -> None:
        self.closed = 0
        self.threads: set[int] = set()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict]:
        super().reset(seed=seed)
        self.threads.add(threading.get_ident())
        self.word = (options or {}).get("word") or ("lake", "mill", "moss")[self.np_random.integers(3)]
        return "A word of four letters.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        self.threads.add(threading.get_ident())
        if action == "boom":
            raise KeyError("boom")
        if action == "exit":
            sys.exit(3)
        if action == "nann":
            return "?", float("nan"), False, False, {}
        if action == "hang":
            self.free.wait(20)
        seen = "".join(a if a == b else "-" for a, b in zip(action, self.word, strict=True))
        return seen, float(action == self.word) - 0.1, action == self.word, False, {}

    def close(self) -> None:
        self.closed += 1

    free = threading.Event()


def act(*values: Any, name: str = "act") -> Action:
    return Action(text="", calls=tuple(Call(name=name, arguments={"action": value}) for value in values))


def guess_task(word: str = "moss", step_s: float = 10.0) -> Task:
    return gymnasium_text.tasks("guess/word", [3], options={"word": word}, limits=Limits(step_s=step_s))[0]


async def play(environment: GymnasiumEnvironment, *values: Any) -> StepResult:
    result = None
    for value in values:
        result = await environment.step(act(value))
    return result


async def test_frozen_lake_is_shown_with_the_player_marked_and_solved_by_named_actions() -> None:
    environment = GymnasiumEnvironment(from_registry(**STILL), LAKE)
    observation = await environment.reset(gymnasium_text.tasks("FrozenLake-v1", [0])[0])
    assert observation.text.splitlines() == ["<on-red>S</>FFF", "FHFH", "FFFH", "HFFG"]
    result = await play(environment, "down", "down", "right", "right", "down", "right")
    assert result.done and "<on-red>G</>" in result.observation.text
    assert result.observation.facts == {"steps": 6, "return": 1.0, "over": True}
    outcome = await environment.evaluate()
    assert outcome.score == 1.0 and outcome.solved
    assert (await environment.step(act("up"))).done, "an episode that is over stays over"
    await environment.close()
    await environment.close()


async def test_a_hole_in_the_lake_is_minus_one_by_the_threshold_of_its_spec() -> None:
    environment = GymnasiumEnvironment(from_registry(**STILL), LAKE)
    await environment.reset(gymnasium_text.tasks("FrozenLake-v1", [0])[0])
    assert (await play(environment, "right", "down")).done
    outcome = await environment.evaluate()
    assert outcome.score == -1.0 and not outcome.solved and "0.7" in outcome.checks[0].detail
    await environment.close()


async def test_the_taxi_starts_where_its_seed_says_and_a_range_maps_its_return() -> None:
    settings = GymnasiumSettings(reward_range=(-20, 20))
    environment = GymnasiumEnvironment(from_registry(render_mode="ansi"), settings)
    first, second = gymnasium_text.tasks(TAXI, [1, 2])
    seen = [(await environment.reset(task)).text for task in (first, second, first)]
    assert seen[0] == seen[2] != seen[1] and "<on-yellow> </>" in seen[0] and "<magenta>R</>" in seen[0]
    await environment.step(act(5))  # a drop-off without a passenger: -10
    assert (await environment.evaluate()).score == pytest.approx(-0.5)
    await environment.close()


async def test_blackjack_needs_a_way_to_be_shown() -> None:
    task = gymnasium_text.tasks("Blackjack-v1", [1])[0]
    blind = GymnasiumEnvironment(from_registry())
    with pytest.raises(TaskError, match="give `show`"):
        await blind.reset(task)
    await blind.close()

    def show(seen: tuple[int, int, int]) -> str:
        return f"You have {seen[0]}, the dealer shows {seen[1]}."

    environment = GymnasiumEnvironment(from_registry(), GymnasiumSettings(show=show, action_names=("stick", "hit")))
    assert (await environment.reset(task)).text == "You have 20, the dealer shows 7."
    assert (await environment.step(act("stick"))).done
    assert (await environment.evaluate()).score in (-1.0, 0.0, 1.0)
    await environment.close()


async def test_numbers_are_shown_by_a_mapping_and_one_without_a_text_is_named() -> None:
    task = gymnasium_text.tasks("FrozenLake-v1", [0])[0]
    still = from_registry(is_slippery=False)
    environment = GymnasiumEnvironment(still, GymnasiumSettings(show={0: "the start", 4: "one down"}))
    assert (await environment.reset(task)).text == "the start"
    assert (await environment.step(act(1))).observation.text == "one down"
    with pytest.raises(EnvironmentFailed, match=r"observation 5 has no text|observation .*8.* has no text"):
        await environment.step(act(1))
    with pytest.raises(EnvironmentFailed):
        await environment.evaluate()
    await environment.close()


async def test_a_text_environment_runs_in_one_thread_of_its_own_and_is_closed() -> None:
    made: list[GuessWord] = []
    environment = GymnasiumEnvironment(lambda _: made.append(GuessWord()) or made[-1])
    observation = await environment.reset(guess_task())
    assert observation.text == "A word of four letters."
    schema = observation.facts["tools"][0]["function"]["parameters"]
    jsonschema.validate({"action": "moss"}, schema)
    result = await environment.step(act("mill", "moss", "lake"))
    assert result.done
    assert result.observation.text == (
        'act("mill"):\nm---\n\nact("moss"):\nmoss\n\nact("lake"):\nnot done: the episode was over.'
        "\n\nThe episode is over."
    )
    assert (await environment.evaluate()).score == 1.0, "0.8 is above 0"
    await environment.close()
    assert made[0].closed == 1 and len(made[0].threads) == 1 and threading.get_ident() not in made[0].threads


@pytest.mark.parametrize(
    ("action", "says"),
    [
        (act("mos"), "a text of 4 to 4 characters is needed"),
        (act("mo s"), "its character ' ' is not allowed"),
        (act(7), "a text of 4 to 4"),
        (act("moss", "MOSS"), "'M' is not allowed"),
        (act("moss", name="bash"), "no tool 'bash'"),
        (Action(text="", calls=(Call(name="act", arguments={"word": "moss"}),)), "not word"),
        (Action(text="", calls=(Call(name="act", arguments={}),)), "not nothing"),
        (Action(text="moss"), "call act"),
        (Action(text="", fault="The arguments are no JSON."), "no JSON"),
    ],
)
async def test_a_faulty_action_is_named_and_nothing_happens(action: Action, says: str) -> None:
    environment = GymnasiumEnvironment(lambda _: GuessWord())
    await environment.reset(guess_task())
    result = await environment.step(action)
    assert not result.done and says in result.observation.text and "Nothing happened." in result.observation.text
    assert result.observation.facts["steps"] == 0
    await environment.close()


@pytest.mark.parametrize(("word", "says"), [("boom", "KeyError: 'boom'"), ("exit", "SystemExit: 3"), ("nann", "nan")])
async def test_an_environment_that_raises_has_failed_and_has_no_outcome(word: str, says: str) -> None:
    made: list[GuessWord] = []
    environment = GymnasiumEnvironment(lambda _: made.append(GuessWord()) or made[-1])
    await environment.reset(guess_task())
    with pytest.raises(EnvironmentFailed, match=says):
        await environment.step(act(word))
    with pytest.raises(EnvironmentFailed, match=says):
        await environment.evaluate()
    await environment.close()
    assert made[0].closed == 1


async def test_one_that_never_returns_has_failed_while_the_loop_goes_on_and_is_closed_when_it_is_free() -> None:
    made: list[GuessWord] = []
    environment = GymnasiumEnvironment(lambda _: made.append(GuessWord()) or made[-1])
    GuessWord.free.clear()
    await environment.reset(guess_task(step_s=0.3))
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    with pytest.raises(EnvironmentFailed, match=r"did not return within 0\.3 s"):
        await environment.step(act("hang"))
    ticking.cancel()
    assert ticks > 5
    await asyncio.wait_for(environment.close(), 1)
    assert (await environment.reset(guess_task())).text == "A word of four letters.", "another episode can begin"
    assert made[0].closed == 0
    GuessWord.free.set()
    for _ in range(200):
        await asyncio.sleep(0.01)
        if made[0].closed:
            break
    assert made[0].closed == 1 and (await environment.step(act("moss"))).done
    await environment.close()


async def test_a_step_whose_caller_gave_up_ends_the_episode() -> None:
    environment = GymnasiumEnvironment(lambda _: GuessWord())
    GuessWord.free.clear()
    await environment.reset(guess_task())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(environment.step(act("hang")), 0.1)
    with pytest.raises(EnvironmentFailed, match="broken off"):
        await environment.step(act("moss"))
    await asyncio.wait_for(environment.close(), 1)
    GuessWord.free.set()


async def test_threads_end_with_their_episodes() -> None:
    task = gymnasium_text.tasks("FrozenLake-v1", [987])[0]

    def running() -> int:
        return sum(thread.name == "gymnasium-FrozenLake-v1-987" for thread in threading.enumerate())

    environments = [GymnasiumEnvironment(from_registry(**STILL), LAKE) for _ in range(8)]
    await asyncio.gather(*(one.reset(task) for one in environments))
    assert running() == 8
    await asyncio.gather(*(one.close() for one in environments))
    for _ in range(500):
        if not running():
            break
        await asyncio.sleep(0.01)
    assert running() == 0


async def test_an_id_that_gymnasium_does_not_know_has_failed_with_its_reason() -> None:
    environment = GymnasiumEnvironment(from_registry())
    with pytest.raises(EnvironmentFailed, match="NoSuchLake"):
        await environment.reset(gymnasium_text.tasks("NoSuchLake-v1", [0])[0])
    with pytest.raises(EnvironmentFailed, match="reset comes first"):
        await environment.step(act(1))
    await environment.close()


def test_without_gymnasium_one_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ValueError, match="install 'gymnasium"):
        from_registry()


@pytest.mark.parametrize(
    ("space", "names", "right", "wrong"),
    [
        (spaces.Discrete(3), (), [0, 2, 1.0], [3, -1, "1", True, 1.5, None, [1], float("inf")]),
        (spaces.Discrete(3, start=-1), (), [-1, 1], [2, -2]),
        (spaces.Discrete(2), ("stay", "go"), ["stay", "go"], ["run", 0, ["go"]]),
        (TWO, (), [[0, 5], [1, 7]], [[0], [0, 8], [2, 5], "05", [0, 5, 5], [0, "5"]]),
        (spaces.Text(3, min_length=1, charset="ab"), (), ["a", "bab"], ["", "abab", "c", 1]),
    ],
)  # fmt: skip
def test_the_tool_and_the_space_agree_on_what_is_an_action(space: Any, names: Any, right: list, wrong: list) -> None:
    read = ActSpace(space, names)
    schema = read.tool()["function"]["parameters"]
    jsonschema.Draft202012Validator.check_schema(schema)
    for value in right:
        assert read.fault(Call(name="act", arguments={"action": value})) is None
        assert space.contains(read.native(value))
        jsonschema.validate({"action": value}, schema)
    for value in wrong:
        assert "needed" in (fault := read.fault(Call(name="act", arguments={"action": value}))) or "allowed" in fault


@pytest.mark.parametrize(
    ("space", "names"),
    [
        (spaces.Box(0, 1), ()),
        (spaces.MultiDiscrete(numpy.ones((2, 2), dtype=int)), ()),
        (spaces.MultiBinary(3), ()),
        (spaces.Discrete(2), ("only",)),
        (spaces.Discrete(2), ("twice", "twice")),
        (spaces.Text(3), ("a", "b")),
    ],
)
def test_a_space_that_has_no_such_tool_is_refused(space: Any, names: Any) -> None:
    with pytest.raises(TaskError):
        ActSpace(space, names)


@pytest.mark.parametrize(
    ("total", "reward_range", "threshold", "score", "solved"),
    [
        (0.5, (0, 1), None, 0.0, False),
        (1.0, (0, 1), None, 1.0, True),
        (0.8, (0, 1), 0.7, 0.6, True),
        (-300, (-200, 20), None, -1.0, False),
        (7.0, None, 8.0, -1.0, False),
        (8.0, None, 8.0, 1.0, True),
        (3.0, None, None, 1.0, True),
        (0.0, None, None, 0.0, False),
        (-3.0, None, None, -1.0, False),
        (sum([0.1] * 10), None, 1.0, 1.0, True),
    ],
)
def test_returns_become_outcomes(total: float, reward_range: Any, threshold: Any, score: float, solved: bool) -> None:
    result = outcome(total, reward_range, threshold)
    assert result.score == pytest.approx(score) and result.solved == solved


@pytest.mark.parametrize(
    "wrong", [{"reward_range": (1, 0)}, {"reward_range": (0, float("inf"))}, {"threshold": float("nan")}]
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="reward_range"):
        GymnasiumSettings(**wrong)


@pytest.mark.parametrize(
    "payload", [{}, {"env_id": "x", "seed": -1}, {"env_id": "x", "seed": True}, {"env_id": "x", "options": []}]
)
async def test_a_task_that_is_none_is_refused(payload: dict[str, Any]) -> None:
    task = Task.from_json(guess_task().to_json() | {"limits": {}, "payload": payload})
    with pytest.raises(TaskError):
        await GymnasiumEnvironment(lambda _: GuessWord()).reset(task)


def test_tasks_survive_json_and_have_ids_that_files_and_urls_take() -> None:
    task = gymnasium_text.tasks("ALE/Pong v5", [4])[0]
    assert task.task_id == "ALE-Pong-v5-4" and Task.from_json(task.to_json()) == task


def test_colours_become_marks() -> None:
    assert readable("\n\x1b[34;1mB\x1b[0m|\x1b[43m \x1b[0m\x1b[2J \n") == "<blue-bold>B</>|<on-yellow> </>"
    with pytest.raises(EnvironmentFailed, match="ndarray"):
        readable(numpy.zeros(2))
