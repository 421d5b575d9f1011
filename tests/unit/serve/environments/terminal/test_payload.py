import pytest

from serve.environments.tasks import TaskError, load_toml
from serve.environments.terminal import LIMITS
from serve.environments.terminal.payload import read_payload


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
