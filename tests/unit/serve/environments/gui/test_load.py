"""Task files: what is wrong with one is said with file, line and field."""

from pathlib import Path

import pytest

from serve.environments.gui import load_file
from serve.environments.tasks import TaskError

HEAD = 'skill = "s"\nsplit = "train"\n[[task]]\nid = "a"\ndifficulty = 1\ninstruction = "i"\n'
CHECKS = 'checks = [{name = "n", js = "true"}]\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "pages" / "mine").mkdir(parents=True)
    (tmp_path / "pages" / "mine" / "index.html").write_text("x")
    return tmp_path / "tasks" / "s.toml"


def test_a_file_with_pages_of_its_own(path: Path) -> None:
    path.write_text(HEAD + 'page = "mine"\nstart = "#/x"\nstorage = {k = "v"}\nlimits = {steps = 3}\n' + CHECKS)
    (task,) = load_file(path)
    assert task.payload["pages"] == str(path.parent.parent / "pages") and task.payload["start"] == "#/x"
    assert task.payload["storage"] == {"k": "v"} and task.limits.steps == 3


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ('page = "mine"\n', "s.toml:3: checks: at least one is needed"),
        ('page = "mine"\nchecks = [{name = "n"}]\n', "s.toml:8: checks: .* name and js are needed"),
        ('page = "mine"\nchecks = [{name = "n", js = "true", error = "passes"}]\n', "only 'fails' is known"),
        ('page = "mine"\nchecks = [{name = "n", js = "1"}, {name = "n", js = "2"}]\n', "the name 'n' stands twice"),
        ('page = "other"\n' + CHECKS, "s.toml:7: page: there is no"),
        ('page = "../mine"\n' + CHECKS, "s.toml:7: page: '../mine': the name of a folder"),
        ('page = "mine"\nstart = "http://other.example"\n' + CHECKS, "s.toml:8: start: "),
        ('page = "mine"\nstorage = {k = 1}\n' + CHECKS, "s.toml:8: storage: {'k': 1}: a table of texts"),
        ('page = "mine"\nurl = "x"\n' + CHECKS, "s.toml:8: url: unknown; a gui task has checks, page, start, storage"),
    ],
)
def test_a_fault_is_named_with_its_line(path: Path, body: str, error: str) -> None:
    path.write_text(HEAD + body)
    with pytest.raises(TaskError, match=error):
        load_file(path)
