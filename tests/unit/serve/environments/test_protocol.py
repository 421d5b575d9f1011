"""What comes as JSON is checked field by field, and an error names the field."""

import pytest

from serve.environments.protocol import Action, Call
from serve.environments.tasks import Task, TaskError
from tests.unit.serve.environments.stand_in import task


def test_actions_and_tasks_come_back_as_they_went() -> None:
    action = Action(text="t", calls=(Call(name="bash", arguments={"command": "ls"}, call_id="1"),))
    assert Action.from_json(action.to_json()) == action
    assert Action.from_json({}) == Action(text="")
    assert Task.from_json(task().to_json()) == task()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "action: '[]': an object"),
        ({"text": 5}, "action.text: 5: a text"),
        ({"fault": 5}, "action.fault: 5: a text"),
        ({"calls": {}}, "action.calls: {}: a list"),
        ({"calls": ["x"]}, "action.calls[0]: 'x': an object"),
        ({"calls": [{"name": "bash"}]}, "action.calls[0].arguments: it is missing: an object"),
        ({"calls": [{"name": "bash", "arguments": '{"command": "ls"}'}]}, "action.calls[0].arguments: "),
        ({"calls": [{"name": 5, "arguments": {}}]}, "action.calls[0].name: 5: a text"),
        ({"calls": [{"name": "a", "arguments": {}, "id": "1"}]}, "action.calls[0] has no 'id': known are name"),
    ],
)
def test_an_action_with_a_fault_names_the_field(value: object, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        Action.from_json(value)  # type: ignore[arg-type]
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"track": None}, "task.track: None: a text is needed"),
        ({"instruction": 5}, "task.instruction: 5: a text"),
        ({"task_id": ["a"]}, "task.task_id: ['a']: a text"),
        ({"difficulty": True}, "task.difficulty: True: a whole number"),
        ({"payload": None}, "task.payload: None: an object"),
        ({"expert": 5}, "task.expert: 5: a list"),
        ({"colour": 1}, "task has no 'colour': known are task_id"),
        ({"limits": {"step_s": -1}}, "limits.step_s is -1"),
    ],
)
def test_a_task_with_a_fault_names_the_field(change: dict, said: str) -> None:
    with pytest.raises(TaskError) as caught:
        Task.from_json(task().to_json() | change)
    assert said in str(caught.value)


def test_a_missing_field_is_named() -> None:
    value = task().to_json()
    del value["skill"]
    with pytest.raises(TaskError, match=r"task.skill: it is missing: a text is needed"):
        Task.from_json(value)
