"""Task files: what is broken is named by file, line and field; the shipped tasks keep their promises."""

from collections import Counter
from pathlib import Path

import pytest

from serve.environments.catalog import find_task, track
from serve.environments.protocol import TRACKS
from serve.environments.tasks import Limits, Task, TaskError, check_all, load_toml

GOOD = """skill = "s"
split = "train"

[[task]]
id = "one"
difficulty = 1
instruction = "Do it."

[[task]]
id = "two"
difficulty = 2
instruction = "Do that."
limits = {steps = 3}
"""


def load(path: Path, text: str) -> list[Task]:
    path.write_text(text)
    return load_toml(path, "terminal", Limits(), lambda own, place: own)


def test_a_good_file_is_read(tmp_path: Path) -> None:
    one, two = load(tmp_path / "s.toml", GOOD)
    assert (one.task_id, one.skill, one.split, one.source) == ("one", "s", "train", "s.toml:4")
    assert two.limits.steps == 3
    assert Task.from_json(two.to_json()) == two


@pytest.mark.parametrize(
    ("old", "new", "place", "said"),
    [
        ('skill = "s"', "", ":0: skill", "is needed"),
        ('split = "train"', 'split = "test"', ":2: split", "train or held_out"),
        ("difficulty = 2", "difficulty = 9", ":11: difficulty", "9"),
        ("difficulty = 2", "difficulty = true", ":11: difficulty", "True"),
        ('id = "two"', 'id = "t w o"', ":10: id", "'t w o'"),
        ('instruction = "Do that."', 'instruction = " "', ":12: instruction", "a text is needed"),
        ("{steps = 3}", "{step = 3}", ":13: limits", "no 'step'"),
        ("{steps = 3}", "{steps = -3}", ":13: limits", "-3"),
        ("{steps = 3}", "{steps = 1.5}", ":13: limits", "whole"),
        ("{steps = 3}", "3", ":13: limits", ""),
        ("limits = {steps = 3}", 'expert = "ls"', ":13: expert", "a list"),
        ("limits = {steps = 3}", "expert = [5]", ":13: expert", "5: an entry is a text"),
        ("limits = {steps = 3}", "limits = {steps = " + "9" * 5000 + "}", "", "not TOML"),
        ("limits = {steps = 3}", "deep = " + "[" * 5000, "", "not TOML"),
        ("[[task]]\nid", "[[task]\nid", "", "not TOML"),
        ('split = "train"', 'split = "train"\nextra = 1', ":3: extra", "unknown"),
    ],
)  # fmt: skip
def test_a_broken_one_names_file_line_and_field(tmp_path: Path, old: str, new: str, place: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(TaskError) as told:
        load(tmp_path / "s.toml", GOOD.replace(old, new))
    assert f"s.toml{place}" in str(told.value)
    assert said in str(told.value)


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b'skill = "\xe9"')
    for path, said in ((tmp_path, "can't be read"), (tmp_path / "no.toml", "can't be read"),
                       (tmp_path / "latin.toml", "not TOML")):  # fmt: skip
        with pytest.raises(TaskError, match=said) as caught:
            load_toml(path, "terminal", Limits(), lambda own, place: own)
        assert path.name in str(caught.value)


def test_repeated_ids_and_split_skills_are_refused(tmp_path: Path) -> None:
    tasks = load(tmp_path / "s.toml", GOOD)
    with pytest.raises(TaskError, match=r"s.toml:9: id: 'two' stands in s.toml:9"):
        check_all([*tasks, Task.from_json(tasks[1].to_json())])
    other = load(tmp_path / "t.toml", GOOD.replace("train", "held_out").replace('"one"', '"a"').replace('"two"', '"b"'))
    with pytest.raises(TaskError, match=r"skill 's' is held_out here and train in s\.toml:4"):
        check_all([*tasks, *other])


@pytest.mark.parametrize("name", TRACKS)
def test_a_track_ships_what_it_promises(name: str) -> None:
    tasks = track(name).load()
    skills = {task.skill: task.split for task in tasks}
    assert len(tasks) >= 40
    assert len(skills) >= 8
    assert Counter(skills.values())["held_out"] >= 2
    assert sum(len(task.expert) >= 4 for task in tasks) >= 10
    assert {task.difficulty for task in tasks} == {1, 2, 3, 4, 5}
    assert all(task.expert and task.wrong for task in tasks)
    assert all(len(task.expert) <= task.limits.steps for task in tasks)


def test_an_unknown_task_or_track_names_what_there_is() -> None:
    with pytest.raises(ValueError, match="there are terminal"):
        track("desktop")
    with pytest.raises(ValueError, match="near are"):
        find_task("terminal", "count-linez")
