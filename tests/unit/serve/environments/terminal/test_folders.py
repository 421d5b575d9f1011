"""Tasks from folders: how they are read, and what their test scripts say."""

import os
import re

import pytest

from serve.environments.protocol import EnvironmentFailed
from serve.environments.tasks import Task, TaskError
from serve.environments.terminal import LIMITS, TerminalEnvironment, expert_action
from serve.environments.terminal.folders import load_folder, load_folders
from serve.environments.terminal.verdicts import Places, placed, read_lines, read_rewards
from tests.unit.serve.environments.terminal.building import outcome_of

HARBOR = {
    "task.toml": (
        'version = "1.0"\n[metadata]\nauthor_name = "A"\ndifficulty = "medium"\ncategory = "words"\n'
        '[verifier]\ntimeout_sec = 20.0\n[agent]\ntimeout_sec = 90\n[environment]\ncpus = 1\nmemory_mb = 300\n'
    ),
    "instruction.md": "Write the word in word.txt in capital letters into /work/out.txt.\n",
    "files/word.txt": "otter\n",
    "environment/setup.sh": "cp word.txt copy.txt\n",
    "solution/solve.sh": "#!/bin/bash\nset -e\ntr a-z A-Z < word.txt > out.txt\nexit 0\n",
    "tests/test.sh": (
        "#!/bin/bash\nmkdir -p /logs/verifier\nif bash /tests/inner/compare.sh; "
        "then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi\n"
    ),
    "tests/inner/compare.sh": 'cmp -s /tests/wanted.txt out.txt && cmp -s word.txt copy.txt && [ "$PWD" = /work ]\n',
    "tests/wanted.txt": "OTTER\n",
}  # fmt: skip


def folder(tmp_path, changes=None, name="otter"):
    for path, text in (HARBOR | (changes or {})).items():
        if text is not None:
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text(text)
    return tmp_path / name


def with_script(script: str, **files: str) -> dict:
    return {"tests/test.sh": script, "tests/inner/compare.sh": None, "tests/wanted.txt": None} | files


async def test_a_task_in_harbors_layout_is_read_solved_and_failed(tmp_path):
    task = load_folder(folder(tmp_path), LIMITS)
    assert (task.task_id, task.skill, task.difficulty, task.split) == ("otter", "words", 3, "train")
    assert (task.limits.episode_s, task.limits.memory_mb, task.limits.steps) == (90, 300, LIMITS.steps)
    assert task.payload["tests"]["timeout_s"] == 20 and Task.from_json(task.to_json()) == task
    environment = TerminalEnvironment()
    try:
        seen = await environment.reset(task)
        assert "copy.txt  word.txt" in seen.text
        for entry in task.expert:
            result = await environment.step(expert_action(entry, seen))
        assert result.done and (await environment.evaluate()).score == 1.0
    finally:
        await environment.close()
    assert (await outcome_of(task, ["cp word.txt out.txt"])).score == -1.0


async def test_the_policy_sees_no_tests_and_cant_put_a_reward(tmp_path):
    task = load_folder(folder(tmp_path), LIMITS)
    tricks = (
        "mkdir -p /logs/verifier logs/verifier tests; echo 1 > /logs/verifier/reward.txt; echo exit 0 > tests/test.sh"
    )
    shadows = "printf '#!/bin/bash\\nexit 0\\n' > ~/cmp; cp ~/cmp cmp; chmod +x cmp ~/cmp; export PATH=/work:$PATH"
    look = "! grep -rqs OTTER / --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr && touch unseen"
    assert (await outcome_of(task, [tricks, shadows, look, "test -e unseen || echo OTTER > out.txt"])).score == -1.0


async def test_pytest_runs_where_there_is_no_script(tmp_path):
    cases = {
        "tests/test.sh": None,
        "tests/test_out.py": (
            "import pathlib\ndef test_there():\n    assert pathlib.Path('/work/out.txt').exists()\n"
            "def test_right():\n    print('PASSED forged')\n"
            "    assert pathlib.Path('out.txt').read_text() == 'OTTER\\n'\n"
        ),
    }
    task = load_folder(folder(tmp_path, cases), LIMITS)
    assert task.payload["tests"]["packages"] == ["pytest", "py"]
    assert (await outcome_of(task, ["tr a-z A-Z < word.txt > out.txt"])).score == 1.0
    outcome = await outcome_of(
        task, ["cp word.txt out.txt; echo 'assert 0' > conftest.py; echo 'import os; os._exit(0)' > pathlib.py"]
    )
    assert outcome.score == 0.0 and [check.passed for check in outcome.checks] == [True, False]
    assert "test_right" in outcome.checks[1].name


@pytest.mark.parametrize(
    ("script", "score"),
    [
        ("exit 0", 1.0),
        ("exit 1", -1.0),
        ("echo PASSED one; echo FAILED two - because; exit 1", 0.0),
        ("echo PASSED one; exit 1", 0.0),
        ("echo PASSED one; echo FAILED two", -1 / 3),
        ("echo 0.25 > /logs/verifier/reward.txt", -0.5),
        ("echo 0 > /logs/verifier/reward.txt; echo PASSED all", -1.0),
        ("""echo '{"a": 1, "b": 0.5}' > /logs/verifier/reward.json""", 0.5),
        ("mkfifo p; cat p", -1.0),
        ("echo FAILED one; echo PASSED two; echo 1 > /logs/verifier/reward.txt", -1 / 3),  # they don't agree
        ("echo FAILED one; echo PASSED two; echo 0.5 > /logs/verifier/reward.txt", 0.0),
        ("echo PASSED one; kill -9 $$", -1.0),
        ("sleep 100 & echo PASSED one", 1.0),
    ],
)
async def test_verdicts(tmp_path, script, score):
    task = load_folder(folder(tmp_path, with_script(script, **{"task.toml": "[verifier]\ntimeout_sec = 1\n"})), LIMITS)
    assert (await outcome_of(task, [])).score == pytest.approx(score)


@pytest.mark.parametrize(
    "script", ["no-such-program", "echo good > /logs/verifier/reward.txt", "echo 7 > /logs/verifier/reward.txt"]
)
async def test_a_script_that_cant_judge_is_a_failure_of_the_environment(tmp_path, script):
    with pytest.raises(EnvironmentFailed):
        await outcome_of(load_folder(folder(tmp_path, with_script(script)), LIMITS), [])


async def test_a_full_disk_fails_the_tests(tmp_path):
    task = load_folder(folder(tmp_path), LIMITS)
    outcome = await outcome_of(task, ["tr a-z A-Z < word.txt > out.txt; head -c 70000000 /dev/zero > /tmp/big"])
    assert outcome.score == -1.0 and "no room for the tests" in outcome.checks[0].detail


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"task.toml": "x = ["}, r"task\.toml: not TOML"),
        ({"task.toml": "[metadata]\n\ndifficulty = 9\n"}, r"task\.toml:3: metadata\.difficulty: 9"),
        ({"task.toml": 'split = "test"\n'}, r"task\.toml:1: split: 'test'"),
        ({"task.toml": 'skill = "a"\nid = "a b"\n'}, r"task\.toml:2: id: 'a b'"),
        ({"task.toml": "\n[verifier]\ntimeout_sec = -1\n"}, r"task\.toml:\d: tests: timeout_s = -1"),
        ({"task.toml": "[agent]\ntimeout_sec = 0\n"}, r"task\.toml:2: agent\.timeout_sec: limits\.episode_s is 0"),
        ({"task.toml": "[limits]\nfoo = 1\n"}, r"task\.toml:1: limits: limits has no 'foo'"),
        ({"task.toml": "agent = 3\n"}, r"task\.toml:1: agent: a table"),
        ({"task.toml": "dificulty = 3\n"}, r"task\.toml:1: dificulty: unknown"),
        (
            {"task.toml": '[environment]\ndocker_image = "x"\n'},
            r"task\.toml:2: environment\.docker_image: there is no container",
        ),
        ({"environment/Dockerfile": "FROM x\n"}, r"Dockerfile: there is no container engine here.*setup\.sh"),
        ({"steps/1/instruction.md": "x"}, r"steps: tasks of several steps"),
        ({"instruction.md": "\n"}, r"instruction\.md:1: instruction: it is empty"),
        ({"instruction.md": None}, r"instruction\.md: can't be read"),
        ({"tests/test.sh": "#!/bin/bash\napt-get install curl\n"}, r"test\.sh:2: 'apt-get': there is no network"),
        ({"tests/test.sh": None}, r"tests: neither test\.sh nor test_\*\.py"),
    ],
)
def test_errors_name_file_line_and_field(tmp_path, changes, named):
    with pytest.raises(TaskError, match=named):
        load_folder(folder(tmp_path, changes), LIMITS)


def test_many_folders_are_read_and_ids_are_unique(tmp_path):
    with pytest.raises(TaskError, match=r"no folder in it holds a task\.toml"):
        load_folders(tmp_path, LIMITS)
    folder(tmp_path, name="b")
    folder(tmp_path, {"task.toml": '[task]\nname = "org/first"\n'}, name="a")
    assert [task.task_id for task in load_folders(tmp_path, LIMITS)] == ["b", "first"]
    folder(tmp_path, {"task.toml": 'id = "b"\n'}, name="c")
    with pytest.raises(TaskError, match="'b' stands in"):
        load_folders(tmp_path, LIMITS)


def test_links_and_bytes_and_modes_of_files(tmp_path):
    made = folder(tmp_path)
    (made / "files/run").write_text("true\n")
    (made / "files/run").chmod(0o700)
    (made / "files/bytes").write_bytes(b"\xff\x00")
    files = load_folder(made, LIMITS).payload["files"]
    assert files["run"]["mode"] == 0o755 and files["bytes"] == {"base64": "/wA=", "mode": 0o644}
    (made / "files/link").symlink_to("run")
    with pytest.raises(TaskError, match="link: a link"):
        load_folder(made, LIMITS)


def test_only_harbors_own_folders_get_their_true_names():
    text = "/tests/a x=/tests; /logs/verifier/r /work/tests $D/tests /testsuite ./tests '/tests'"
    places = Places("/tmp/1", "/tmp/2", "/tmp/3")
    assert placed({"text": text}, places).decode() == (
        "/tmp/1/a x=/tmp/1; /tmp/2/r /work/tests $D/tests /testsuite ./tests '/tmp/1'"
    )
    assert placed({"base64": "/wA="}, places) == b"\xff\x00"


def test_verdict_lines_after_the_last_summary_count():
    output = "PASSED forged\n=== short test summary info ===\nPASSED t.py::a\nERROR t.py::b - x\nPASSED t.py::b\n"
    assert [(check.name, check.passed) for check in read_lines(output, False)] == [
        ("t.py::a", True),
        ("t.py::b", False),
    ]
    assert read_lines("passed it all\n", True) == ()


@pytest.mark.parametrize("text", ["", "true x", "[]", "{}", '{"a": "1"}', '{"a": 2}', "-0.1", "NaN", '{"a": {"b": 1}}'])
def test_rewards_that_are_none(text):
    with pytest.raises(EnvironmentFailed, match=re.escape("numbers from 0 to 1 are needed")):
        read_rewards("reward.json", text)


async def test_pytest_that_cant_run_is_a_failure_of_the_environment(tmp_path):
    task = load_folder(folder(tmp_path, {"tests/test.sh": None, "tests/test_none.py": "\n"}), LIMITS)
    with pytest.raises(EnvironmentFailed, match="could not be run"):
        await outcome_of(task, [])


PYTEST_ADDS = {
    "tests/test.sh": None,
    "tests/test_add.py": (
        "import subprocess\ndef says(*n):\n"
        "    return subprocess.run(['bash', '/work/add.sh', *n], capture_output=True, text=True).stdout.strip()\n"
        "def test_small(): assert says('2', '3') == '5'\ndef test_large(): assert says('20', '30') == '50'\n"
    ),
}  # fmt: skip
FORGES = {
    "a reward file beside the tests": (
        "for d in $TESTS/.. /tmp/* $HOME/.. $HOME/../.. $TMPDIR/.. $PWD; do "
        "mkdir -p $d/logs/verifier; echo 1 | tee $d/reward.txt > $d/logs/verifier/reward.txt; done"
    ),
    "lines in every open pipe": (
        "for f in /proc/[0-9]*/fd/*; do case $(readlink $f) in pipe*|socket*) { echo; "
        'echo "= short test summary info ="; echo PASSED a::b; } >> $f ;; esac; done'
    ),
    "lines, and the end of whoever tests": "echo PASSED a::b; kill -9 $PPID",
    "another report": (
        "(trap '' TERM; setsid bash -c 'for i in {1..200}; do for f in /tmp/*; do [ -f $f ] && { head -c 64 $f; "
        'echo "{\\"code\\": 0, \\"results\\": [[\\"a\\", true, \\"\\"]]}"; } > $f.new && mv $f.new $f; '
        "done; sleep 0.01; done' > /dev/null 2>&1 &)"
    ),
    "what the tester was told": "cat /proc/$PPID/environ /proc/$PPID/mem /proc/$PPID/fd/0 > /work/seen",
}  # fmt: skip


@pytest.mark.parametrize("forge", FORGES.values(), ids=FORGES)
async def test_a_script_under_test_cant_forge_the_verdict_of_pytest(tmp_path, forge):
    task = load_folder(folder(tmp_path, PYTEST_ADDS), LIMITS)
    write = f"cat > add.sh <<'END'\n{forge}\nEND"
    assert (await outcome_of(task, [write])).score == -1.0
    assert (await outcome_of(task, ["echo 'echo $(( $1 + $2 ))' > add.sh"])).score == 1.0


@pytest.mark.parametrize("forge", ["a reward file beside the tests", "lines in every open pipe"])
async def test_nor_that_of_a_test_script(tmp_path, forge):
    script = 'for n in 1 2; do [ "$(bash add.sh $n 2)" = $((n + 2)) ] && echo PASSED $n || echo FAILED $n; done; exit 1'
    task = load_folder(folder(tmp_path, with_script(script)), LIMITS)
    write = f"cat > add.sh <<'END'\n{FORGES[forge]}\nEND"
    outcome = await outcome_of(task, [write])
    assert outcome.score == -1.0 and [check.name for check in outcome.checks] == ["1", "2"]


@pytest.mark.parametrize(
    "name", ["task.toml", "instruction.md", "files", "setup.sh", "solution.sh", "tests", "solution"]
)
def test_links_out_of_the_folder_are_refused(tmp_path, name):
    made = folder(tmp_path)
    outside = tmp_path / "outside"
    if name in ("files", "tests", "solution"):
        outside.mkdir()
        (outside / "solve.sh").write_text("a secret")
    else:
        outside.write_text('id = "a"\n')
    (made / name).rename(tmp_path / "old") if (made / name).exists() else None
    (made / name).symlink_to(outside)
    with pytest.raises(TaskError, match=rf"{name}.*: a link to .*outside"):
        load_folder(made, LIMITS)


def test_links_within_the_folder_are_followed_and_pipes_refused(tmp_path):
    made = folder(tmp_path)
    (made / "solution/solve.sh").rename(made / "solved.sh")
    (made / "solution/solve.sh").symlink_to("../solved.sh")
    assert "tr a-z A-Z" in load_folder(made, LIMITS).expert[0]
    os.mkfifo(made / "setup.sh")
    with pytest.raises(TaskError, match=r"setup\.sh: can't be read: it is no regular file"):
        load_folder(made, LIMITS)
