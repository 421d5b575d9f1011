import dataclasses

import pytest

from serve.environments.tasks import TaskError, load_toml
from serve.environments.terminal import LIMITS
from serve.environments.terminal.calls import with_entries
from serve.environments.terminal.payload import read_payload
from tests.unit.serve.environments.terminal.building import task


def fail(name: str, what: str) -> TaskError:
    return TaskError(f"{name}: {what}")


def test_reading_again_gives_the_same():
    own = {
        "files": {"a": "x", "b/c": {"base64": "AA=="}, "d": {"text": "y", "mode": 0o700}}, "setup": "true",
        "checks": [{"name": "one", "run": "true"}],
    }  # fmt: skip
    once = read_payload(own, fail)
    assert read_payload(once, fail) == once
    assert once["files"]["a"] == {"text": "x", "mode": 0o644} and once["checks"][0]["timeout_s"] == 10


CHECKS = [{"name": "one", "run": "true"}]
DEEP: list = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ({}, "checks: either checks"),
        ({"checks": []}, "checks: "),
        ({"checks": [{"name": "a"}]}, "checks: run = None"),
        ({"checks": [{"name": "", "run": "x"}]}, "checks: name = ''"),
        ({"checks": CHECKS * 2}, "checks: name 'one' stands twice"),
        ({"checks": [{"name": "a", "run": "b", "timeout_s": True}]}, "checks: timeout_s = True"),
        ({"checks": [{"name": "a", "run": "b", "time": 1}]}, "is needed"),
        ({"checks": [{"name": "a", "run": "b", "guard": 1}]}, "checks: guard = 1"),
        ({"checks": [{"name": "a", "run": "b", "guard": True}]}, "all are guards"),
        ({"checks": CHECKS, "tests": {}}, "either checks"),
        ({"tests": {"files": {}}}, r"tests: test.sh is missing"),
        ({"tests": {"files": {"test.sh": ""}, "packages": "pytest"}}, "tests: packages"),
        ({"checks": CHECKS, "setup": 3}, "setup: 3"),
        ({"checks": CHECKS, "files": []}, "files: "),
        ({"checks": CHECKS, "files": {"/etc/a": ""}}, "files: '/etc/a'"),
        ({"checks": CHECKS, "files": {"a/../../b": ""}}, "without '..'"),
        ({"checks": CHECKS, "files": {"a": 3}}, "files: 'a': a text"),
        ({"checks": CHECKS, "files": {"a": {"base64": "?"}}}, "files: 'a': base64 can't be read"),
        ({"checks": CHECKS, "files": {"a": {"text": "", "mode": 4096}}}, "files: 'a': mode 4096"),
        ({"checks": CHECKS, "file": {}}, "file: unknown"),
        ({"checks": CHECKS, "files": {"a": "", "a/b": ""}}, "files: 'a/b': 'a' is a file"),
        ({"checks": CHECKS, "files": {"d/c/b": "", "d": ""}}, "files: 'd/c/b': 'd' is a file"),
        ({"checks": CHECKS, "files": {"a": "", "./a": ""}}, "files: './a': it is the same file as 'a'"),
        ({"checks": CHECKS, "files": {"n" * 300: ""}}, "files: .*255 in each name"),
        ({"checks": CHECKS, "files": {"a": "\ud800"}}, "files: 'a': text can't be read"),
        ({"checks": CHECKS, "files": DEEP}, "files: "),
        ({"checks": DEEP}, "checks: "),
        ({"checks": CHECKS, "setup": DEEP}, "setup: "),
        ({"checks": [{"name": ["a"], "run": "x"}]}, "checks: name = "),
        ({"checks": [{"name": "a", "run": "b", "timeout_s": DEEP}]}, "checks: timeout_s = "),
        ({"tests": DEEP}, "tests: "),
        ([1], "payload: "),
        *(
            ({"tests": {"files": {"test.sh": ""}, "packages": [one]}}, "tests: packages: ")
            for one in ("../etc", "/etc", "a/b", ".ssh", "", "a b", 5, "a\n", "\u00e9")
        ),
    ],
)
def test_faults_name_the_field(own, named):
    with pytest.raises(TaskError, match=named):
        read_payload(own, fail)


def test_a_fault_in_a_task_file_names_its_line(tmp_path):
    path = tmp_path / "made.toml"
    path.write_text(
        'skill = "a"\nsplit = "train"\n[[task]]\nid = "x"\ndifficulty = 1\ninstruction = "i"\n'
        'checks = [{ name = "a" }]\n'
    )
    with pytest.raises(TaskError, match=r"made\.toml:7: checks: run = None"):
        load_toml(path, "terminal", LIMITS, lambda own, place: read_payload(own, place.error))


@pytest.mark.parametrize("field", ["expert", "wrong"])
def test_entries_of_solutions_are_texts(field):
    made = dataclasses.replace(task(), **{field: ("ls", 5)})
    with pytest.raises(TaskError, match=rf"made.toml:1: {field}: entry 2: 5: an entry of a terminal task"):
        list(with_entries([made], "done", "terminal"))
    assert list(with_entries([dataclasses.replace(made, **{field: ("ls", "done")})], "done", "terminal"))
