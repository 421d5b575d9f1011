"""The shipped tasks: every expert solves, no wrong solution does."""

from collections import Counter

from serve.environments import terminal
from serve.environments.terminal import expert_action, load, parse_plain, plain_text
from tests.unit.serve.environments.playing import all_of, play


def test_there_are_enough_and_of_every_kind():
    tasks = load()
    skills = {task.skill: task.split for task in tasks}
    assert len(tasks) >= 42 and len(skills) >= 8 and sum(split == "held_out" for split in skills.values()) >= 2
    assert sum(len([entry for entry in task.expert if entry != "done"]) >= 4 for task in tasks) >= 10
    assert set(Counter(task.difficulty for task in tasks)) == {1, 2, 3, 4, 5}
    assert sum(task.difficulty == 1 for task in tasks) >= 10
    assert all(task.expert and task.wrong and len(task.expert) <= task.limits.steps for task in tasks)
    assert len({task.instruction for task in tasks}) == len(tasks)


async def test_every_expert_solves():
    for task, (outcome, texts) in await all_of(terminal, lambda task: play(terminal, task, task.expert, plain=False)):
        assert outcome.score == 1.0, (task.task_id, texts, outcome)


async def test_no_wrong_solution_does():
    for task, (outcome, texts) in await all_of(terminal, lambda task: play(terminal, task, task.wrong, plain=True)):
        assert outcome.score < 1, (task.task_id, texts)
        assert not outcome.solved and any(check.detail for check in outcome.checks if not check.passed)


async def test_doing_nothing_solves_nothing():
    for task, (outcome, _) in await all_of(terminal, lambda task: play(terminal, task, ["done"], plain=True)):
        assert outcome.score == -1, (task.task_id, outcome)


def test_every_entry_has_a_plain_form():
    for task in load():
        for entry in (*task.expert, *task.wrong):
            action = expert_action(entry, None)
            assert parse_plain(plain_text(action)).calls == action.calls
