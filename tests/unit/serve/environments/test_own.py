"""Tasks of others through the command: loaded, run, kept, and what is wrong with them said."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from serve.environments.__main__ import main
from serve.environments.own import load_own
from serve.environments.tasks import TaskError


def command(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], env={"COLUMNS": "80"})


def questions(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    task = tmp_path / "mine" / "write-hello"
    task.mkdir(parents=True)
    (task / "tests").mkdir()
    (task / "task.toml").write_text("difficulty = 1\n")
    (task / "instruction.md").write_text("Write hello into hello.txt.\n")
    (task / "solution.sh").write_text("echo hello > hello.txt\n")
    (task / "tests" / "test_it.py").write_text(
        "def test_hello():\n    assert open('/work/hello.txt').read() == 'hello\\n'\n"
    )
    return task


def test_rows_that_are_broken_are_left_out_and_said(tmp_path: Path) -> None:
    path = questions(tmp_path / "q.jsonl", {"prompt": "1 + 1?", "label": "2"}, {"prompt": 5, "label": "2"})
    tasks, faults = load_own("tool_call", path)
    assert len(tasks) == 1 and "q.jsonl:2: prompt" in str(faults[0])


def test_what_no_track_can_load_is_refused_with_what_it_takes(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    takes = {"terminal": "a task's folder", "tool_call": ".jsonl", "swe": ".parquet", "gui": ".toml"}
    for track, said in takes.items():
        with pytest.raises(TaskError, match=said):
            load_own(track, tmp_path / "notes.txt")
    with pytest.raises(TaskError, match="no such file"):
        load_own("gui", tmp_path / "nowhere.toml")
    with pytest.raises(ValueError, match="--repositories"):
        load_own("swe", questions(tmp_path / "rows.jsonl", {"instance_id": "a"}))
    with pytest.raises(ValueError, match="no track"):
        load_own("desktop", tmp_path)


def test_names_are_never_cut_however_narrow() -> None:
    result = CliRunner().invoke(main, ["list", "swe"], env={"COLUMNS": "50"})
    assert result.exit_code == 0
    from serve.environments.swe import load

    assert all(task.task_id in result.output for task in load())


def test_episodes_are_kept_with_what_was_said_and_checked(tmp_path: Path) -> None:
    out = tmp_path / "episodes.jsonl"
    for kind in ("expert", "wrong"):
        assert command(kind, "terminal", "--task", "copy-file", "--out", out).exit_code == 0
    good, bad = [json.loads(line) for line in out.read_text().splitlines()]
    assert good["outcome"]["score"] == 1 and bad["outcome"]["score"] < 1
    assert good["prompt"][0]["role"] == "system" and "exit code: 0" in good["steps"][0]["observation"]
    assert any(not check["passed"] for check in bad["outcome"]["checks"])


def test_a_folder_of_ones_own_is_run_by_the_command(folder: Path) -> None:
    for path in (folder, folder.parent):
        result = command("expert", "terminal", "--tasks", path)
        assert result.exit_code == 0, result.output
        assert "1 of 1 solved" in result.output and "write-hello" in result.output
    nothing = command("wrong", "terminal", "--tasks", folder)
    assert nothing.exit_code == 1 and "entry `wrong`" in str(nothing.exception)


def test_entries_of_ones_own_task_file_are_looked_at_when_it_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'skill = "s"\nsplit = "train"\n[[task]]\nid = "a"\ndifficulty = 1\ninstruction = "Do it."\n'
        'checks = [{name = "c", run = "true"}]\nexpert = [{call = "ls"}]\n'
    )
    with pytest.raises(TaskError, match=r"mine\.toml:3: expert: entry 1"):
        load_own("terminal", path)
