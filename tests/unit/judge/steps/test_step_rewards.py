"""The reward of a step, the verifiable judge, and the settings."""

import subprocess
import sys

import pytest

from judge.steps import (
    Screen,
    StepInput,
    StepJudgeSettings,
    Unjudged,
    make_step_judge,
    process_reward,
    step_reward,
    step_rewards,
)
from judge.votes import make_verdict, vote

STEP = StepInput(track="terminal", instruction="i", index=0, action="a", result="r")


def _votes(*scores):
    return [vote(score, "") for score in scores]


def _verdict(*scores, errors=()):
    return make_verdict(
        STEP.as_turn(), judge="j/1", prompt_version="p/1", started=0.0, evaluative=_votes(*scores), errors=errors
    )


@pytest.mark.parametrize(
    ("outcome", "scores", "reward"),
    [(1.0, [1], 2.0), (1.0, [-1], 0.0), (-1.0, [1, 1, -1], -1 + 1 / 3), (0.5, [0], 0.5), (-1.0, [1, -1], -1.0),
     (0.25, [], 0.25), (None, [1], None), (None, [], None)],
)  # fmt: skip
def test_outcome_and_mean_vote_are_added(outcome, scores, reward):
    assert step_reward(outcome, _votes(*scores)) == pytest.approx(reward)


def test_the_mean_is_taken_and_not_the_majority():
    assert process_reward(_votes(1, 1, -1)) == pytest.approx(1 / 3)
    assert process_reward([]) is None


@pytest.mark.parametrize("outcome", [1.5, -2.0, float("nan")])
def test_an_outcome_out_of_bounds_is_refused(outcome):
    with pytest.raises(ValueError, match="between -1 and 1"):
        step_reward(outcome, [])


def test_an_episode_names_the_steps_that_nobody_judged():
    verdicts = [_verdict(1), _verdict(errors=["HTTP 500"]), None, _verdict(0)]
    made = step_rewards(-1.0, verdicts)
    assert made.rewards == (0.0, -1.0, -1.0, -1.0)
    assert made.process == (1.0, None, None, 0.0), "a vote of 0 and no vote are told apart"
    assert made.unjudged == (Unjudged(1, "no valid vote: HTTP 500"), Unjudged(2, "no verdict was given"))


def test_an_episode_that_failed_has_no_rewards():
    assert step_rewards(None, [_verdict(1), None]).rewards == (None, None)


VERIFIABLE = [
    ({"schema_valid": False, "fault": "missing city"}, -1, "missing city"),
    ({"schema_valid": True}, 1, "fits its schema"),
    ({"schema_valid": True, "correct": False}, -1, "wrong"),
    ({"correct": True}, 1, "right"),
    ({"checks_passed": 3, "checks_passed_before": 1}, 1, "1 checks passed before, 3 after"),
    ({"checks_passed": 1, "checks_passed_before": 3}, -1, "3 checks passed before"),
    ({"checks_passed": 2, "checks_passed_before": 2, "schema_valid": True}, 0, "2 checks passed before, 2 after"),
    ({"checks_passed": 2}, None, "no fact of this step is a verdict"),
    ({"exit_code": 0}, None, "no fact of this step is a verdict"),
    ({}, None, "no fact of this step is a verdict"),
    ({"correct": "yes"}, None, "fact correct is 'yes'"),
]


@pytest.mark.parametrize(("facts", "reward", "said"), VERIFIABLE, ids=range(len(VERIFIABLE)))
async def test_verifiable(facts, reward, said):
    judge = make_step_judge(StepJudgeSettings(judge="verifiable"))
    verdict = await judge.judge(
        StepInput(track="tool_call", instruction="i", index=0, action="a", result="r", facts=facts)
    )
    assert verdict.reward == reward and verdict.judge == "step-verifiable/1"
    assert said in (verdict.error if reward is None else verdict.evaluative[0].text)


def test_factory():
    assert make_step_judge(StepJudgeSettings()).name == "step-rules/1"
    settings = StepJudgeSettings(judge="llm", base_url="http://127.0.0.1:1/v1", model="m")
    assert make_step_judge(settings).name == "step-llm/1:m"


def test_defaults_are_the_papers():
    settings = StepJudgeSettings()
    assert (settings.temperature, settings.max_tokens) == (0.6, 4096)
    assert [settings.votes_for(track) for track in ("terminal", "tool_call", "swe", "gui")] == [1, 1, 1, 3]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"judge": "oracle"}, "'oracle'.*one of rules, llm, verifiable"),
        ({"judge": "llm"}, "needs base_url and model"),
        ({"votes": 0}, "votes is 0.*at least 1"),
        ({"gui_votes": 0}, "gui_votes is 0.*at least 1"),
        ({"history_steps": -1}, "history_steps is -1.*at least 0"),
        ({"history_chars": 5}, "history_chars is 5.*at least 100"),
        ({"timeout_s": 0.0}, "above 0"),
    ],
)
def test_wrong_settings_say_what_is_allowed(values, said):
    with pytest.raises(ValueError, match=said):
        StepJudgeSettings(**values)


def test_from_mapping_knows_the_settings_of_steps():
    settings = StepJudgeSettings.from_mapping({"gui_votes": 5, "images": True})
    assert isinstance(settings, StepJudgeSettings) and settings.gui_votes == 5 and settings.images
    with pytest.raises(ValueError, match=r"unknown judge setting 'image': known ones are .*gui_votes"):
        StepJudgeSettings.from_mapping({"image": True})


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"track": "chess"}, "'chess'.*terminal, tool_call, swe, gui"), ({"index": -1}, "from 0"),
     ({"history": (("a", "b"),)}, "step 0 with 1 earlier steps")],
)  # fmt: skip
def test_a_wrong_step_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        StepInput(**({"track": "swe", "instruction": "i", "index": 0, "action": "a", "result": "r"} | changes))


def test_a_screen_is_a_png():
    with pytest.raises(ValueError, match="PNG"):
        Screen(image=b"GIF89a")


def test_a_verdict_carries_the_ids_that_are_known():
    turn = StepInput(track="swe", instruction="i", index=0, action="a", result="r", exchange_id="x").as_turn()
    assert (turn.exchange_id, turn.next_state.next_state_id) == ("x", "")
    assert (turn.next_state.role, turn.next_state.content) == ("environment", "r")


def test_imports_without_torch_and_ray():
    code = (
        "import sys, judge.steps, judge.steps.llm, judge.steps.rules, judge.steps.verifiable; "
        "heavy = {'torch', 'ray', 'transformers', 'megatron', 'serve', 'train'}; "
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
