"""Plain-text actions, and the other names that a track exports."""

import pytest

from serve.environments import swe
from serve.environments.catalog import EnvironmentSettings, track
from serve.environments.protocol import Observation


@pytest.mark.parametrize(
    "text", ["SUBMIT", "submit.", "It is mended.\n\nSUBMIT", "<think>```bash\nls\n```</think>\nSUBMIT"]
)
def test_submit(text: str) -> None:
    assert [call.name for call in swe.parse_plain(text).calls] == ["submit"]


def test_a_block() -> None:
    action = swe.parse_plain("Let me look.\n```bash\nsed -n 1,5p a.py\n```\n")
    assert [(call.name, call.arguments) for call in action.calls] == [("bash", {"command": "sed -n 1,5p a.py"})]


@pytest.mark.parametrize(
    "text, what",
    [
        ("", "empty"), ("I would edit the file.", "no ```bash block"), ("```bash\nls", "no end"),
        ("```bash\nls\n```\n```bash\nls\n```", "2 blocks"), ("```python\n1\n```", "python"),
        ("```bash\nls\n```\nSUBMIT", "both a block and SUBMIT"),
    ],
)  # fmt: skip
def test_a_fault_shows_the_right_form(text: str, what: str) -> None:
    action = swe.parse_plain(text)
    assert action.calls == () and what in action.fault
    assert "single word SUBMIT" in action.fault and "DONE" not in action.fault


def test_every_solution_has_a_plain_form() -> None:
    for task in swe.load():
        for entry in (*task.expert, *task.wrong):
            action = swe.expert_action(entry, Observation(text=""))
            assert swe.parse_plain(swe.plain_text(action)).calls == action.calls, (task.task_id, entry)


def test_an_entry_must_be_a_text() -> None:
    with pytest.raises(ValueError):
        swe.expert_action({"command": "ls"}, Observation(text=""))


def test_what_the_track_exports() -> None:
    module = track("swe")
    task = module.load()[0]
    assert [tool["function"]["name"] for tool in module.tools(task)] == ["bash", "submit"]
    assert task.limits == module.LIMITS and module.LIMITS.steps == 20
    assert isinstance(module.make(EnvironmentSettings()), swe.SweEnvironment)
    assert "SUBMIT" in module.SYSTEM_PLAIN and "submit" in module.SYSTEM
