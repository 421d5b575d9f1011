"""The shipped tasks: every expert solves, every wrong solution does not."""

import subprocess
import sys
from collections import Counter

import pytest

from serve.environments import tool_call
from serve.environments.tool_call import load
from serve.environments.tool_call.answers import check_answer, unfit
from serve.environments.tool_call.labels import require_label
from serve.environments.tool_call.spec import ToolTask
from tests.unit.serve.environments.playing import all_of, play


def test_there_are_enough_and_of_every_kind():
    tasks = load()
    skills = {task.skill: task.split for task in tasks}
    assert len(tasks) >= 42 and len(skills) >= 8 and sum(split == "held_out" for split in skills.values()) >= 2
    assert sum(len(task.expert) >= 4 for task in tasks) >= 10
    assert set(Counter(task.difficulty for task in tasks)) == {1, 2, 3, 4, 5}
    assert {task.payload["kind"] for task in tasks} == {"math", "exact", "json", "call"}
    for skill in skills:
        assert sum(task.skill == skill and task.difficulty == 1 for task in tasks) >= 1, skill
    assert all(task.expert and task.wrong and len(task.expert) <= task.limits.steps for task in tasks)


def test_no_instruction_is_there_twice():
    assert len({task.instruction for task in load()}) == len(load())


@pytest.mark.parametrize("plain", [False, True])
async def test_every_expert_solves(plain):
    for task, (outcome, texts) in await all_of(tool_call, lambda task: play(tool_call, task, task.expert, plain)):
        assert outcome.score == 1.0 and outcome.solved, (task.task_id, outcome, texts)


async def test_every_wrong_solution_does_not():
    for task, (outcome, texts) in await all_of(tool_call, lambda task: play(tool_call, task, task.wrong, False)):
        assert outcome.score < 1.0 and not outcome.solved, (task.task_id, outcome, texts)


async def test_doing_nothing_and_answering_at_once_does_not_solve_what_needs_calls():
    for task in load():
        if task.payload["kind"] == "call" or task.payload.get("state_check"):
            outcome, _ = await play(tool_call, task, [task.expert[-1]], False)
            assert outcome.score < 1.0, task.task_id


async def test_every_label_is_readable_and_repeating_the_question_is_no_answer():
    for task in load():
        spec = ToolTask.of(task)
        await require_label(spec)
        if spec.kind != "call" and unfit(spec, task.instruction) is None:
            assert not (await check_answer(spec, task.instruction)).passed, task.task_id


def test_nothing_heavy_is_imported_with_the_track():
    code = (
        "import sys; import serve.environments.tool_call as t; t.load();"
        "print([m for m in ('sympy', 'math_verify', 'torch', 'polars', 'pyarrow', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
