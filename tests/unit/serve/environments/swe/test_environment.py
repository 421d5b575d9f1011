"""One episode: what is shown, what bad actions lead to, how the patch is taken."""

import asyncio
import dataclasses

import pytest

from serve.environments import swe
from serve.environments.protocol import Action, Call, EnvironmentFailed
from serve.environments.sandbox import Sandbox, SandboxUnavailable
from serve.environments.swe import evaluation
from serve.environments.swe.payload import of_task
from serve.environments.swe.repository import shipped
from serve.environments.tasks import TaskError
from tests.unit.serve.environments.swe.playing import play, shipped_task

TASK = "gridtext-centred"
MEND = "sed -i 's,left = missing - missing // 2,left = missing // 2,' gridtext/width.py"


def bash(*commands: str) -> Action:
    return Action(text="", calls=tuple(Call(name="bash", arguments={"command": command}) for command in commands))


@pytest.fixture
async def environment():
    made = swe.make()
    yield made
    await made.close()


async def test_the_first_observation_names_folder_commit_and_files(environment) -> None:
    seen = await environment.reset(shipped_task(TASK))
    assert "/work/repo" in seen.text and "gridtext/width.py" in seen.text
    assert "test_issue" not in seen.text
    assert seen.facts["base_commit"][:12] in seen.text


async def test_a_step_shows_output_errors_exit_code_and_what_it_changed(environment) -> None:
    await environment.reset(shipped_task(TASK))
    first = (await environment.step(bash("pwd; echo oh >&2; false"))).observation
    assert first.text == "/work/repo\nstderr:\noh\nexit code: 1"
    assert first.facts["exit_code"] == 1 and first.facts["diff_changed"] is False
    second = (await environment.step(bash(MEND))).observation
    assert "-        left = missing - missing // 2\n+        left = missing // 2" in second.text
    assert second.facts["diff_changed"] is True and second.facts["files_changed"] == ["gridtext/width.py"]
    third = (await environment.step(bash("echo new > 'a b.txt'"))).observation
    assert third.facts["files_changed"] == ["a b.txt", "gridtext/width.py"] and "+new" in third.text
    fourth = (await environment.step(bash("ls"))).observation
    assert fourth.facts["diff_changed"] is False and "diff --git" not in fourth.text
    last = (await environment.step(bash("git checkout -q . && rm 'a b.txt'"))).observation
    assert last.facts["diff_changed"] is True and last.facts["files_changed"] == []


async def test_git_and_tests_work_inside_and_the_fix_is_not_in_its_history(environment) -> None:
    await environment.reset(shipped_task(TASK))
    seen = (
        await environment.step(bash("python3 -m pytest -q 2>&1 | tail -1; git status --short; git log --oneline"))
    ).observation
    assert "1 failed, 15 passed" in seen.text
    assert len(seen.text.splitlines()) == 3  # the tests' last line, one commit, the exit code
    seen = (await environment.step(bash(MEND, "git commit -qam mine && git log --format=%an"))).observation
    assert seen.text.count("Maintainer") == 2
    assert seen.facts["files_changed"] == ["gridtext/width.py"]
    found = "git log --all -p; git reflog; git fsck --lost-found; git stash list"
    seen = (await environment.step(bash(f"({found}) | grep -c test_one_left_over"))).observation
    assert seen.text.splitlines()[0] == "0"


@pytest.mark.parametrize(
    "action, what",
    [
        (Action(text="I think it is done."), "No command was given"),
        (Action(text="", fault="The answer is empty."), "The answer is empty."),
        (Action(text="", calls=(Call(name="edit", arguments={}),)), "There is no tool 'edit'"),
        (Action(text="", calls=(Call(name="bash", arguments={"cmd": "ls"}),)), "bash needs command"),
        (Action(text="", calls=(Call(name="bash", arguments={"command": "ls", "x": 1}),)), "not 'x'"),
        (bash("a\0b"), "zero byte"),
        (bash("touch made", "  "), "bash needs command"),
    ],
)
async def test_a_bad_action_changes_nothing_and_says_why(environment, action: Action, what: str) -> None:
    await environment.reset(shipped_task(TASK))
    result = await environment.step(action)
    assert what in result.observation.text and not result.done
    after = (await environment.step(bash("git status --short"))).observation
    assert after.text == "(no output)\nexit code: 0"


async def test_a_shell_that_ends_is_started_anew_in_the_repository(environment) -> None:
    await environment.reset(shipped_task(TASK))
    await environment.step(bash("exit 3"))
    seen = (await environment.step(bash("pwd"))).observation
    assert seen.text.startswith("/work/repo")


async def test_a_command_that_takes_too_long_is_stopped(environment) -> None:
    task = shipped_task(TASK)
    await environment.reset(dataclasses.replace(task, limits=task.limits.replace({"step_s": 0.3})))
    seen = (await environment.step(bash("sleep 20"))).observation
    assert "timed out" in seen.text and seen.facts["timed_out"]


async def test_the_time_of_a_step_bounds_all_its_commands(environment) -> None:
    task = shipped_task(TASK)
    await environment.reset(dataclasses.replace(task, limits=task.limits.replace({"step_s": 0.4})))
    seen = (await environment.step(bash("sleep 20", "touch late", "sleep 20"))).observation
    assert seen.text.startswith("$ sleep 20\n") and seen.text.count("not run: the 0.4 s of this step are used up") == 2
    assert "late" not in (await environment.step(bash("ls"))).observation.text


async def test_what_one_answer_is_shown_is_bounded(environment) -> None:
    task = shipped_task(TASK)
    await environment.reset(dataclasses.replace(task, limits=task.limits.replace({"output_chars": 1000})))
    seen = (await environment.step(bash(*["seq 100000 #" + "y" * 200_000] * 30))).observation
    assert len(seen.text) < 3 * 1000 + 16 * 600 and seen.text.count("exit code: 0") == 16
    assert "one answer is shown 2500 at most" in seen.text
    assert seen.text.endswith("[call 17 and later] not run: 16 calls in one answer are the most")


async def test_whatever_becomes_of_git_the_work_counts() -> None:
    ways = {
        "committed": "git checkout -qb other && git commit -qam x",
        "without .git": "rm -rf .git",
        "with settings": "git config diff.external /bin/true; git config core.worktree /tmp",
        "rewritten": "git checkout -q --orphan new && git commit -qm x && git gc -q --prune=now",
        "another repository inside": "git init -q inner && touch inner/x",
        "hidden from reading": "mkdir secret && echo x > secret/y && chmod 0 secret/y secret",
        "with a file that is no text": "head -c 3000 /dev/urandom > noise.bin",
        "disk full": "for place in /tmp ~; do dd if=/dev/zero of=$place/fill bs=1M; done; true",
        "a process left behind": "(while true; do date > noise.txt; sleep 0.01; done) & sleep 0.1",
    }  # fmt: skip
    room = asyncio.Semaphore(3)

    async def one(way: str):
        async with room:
            return (await play(shipped_task(TASK), [MEND, way, "submit"]))[0]

    outcomes = await asyncio.gather(*map(one, ways.values()))
    assert {name: outcome.score for name, outcome in zip(ways, outcomes, strict=True)} == dict.fromkeys(ways, 1.0)


async def test_no_change_and_no_patch_are_the_policys_fault() -> None:
    task = shipped_task(TASK)
    nothing, _ = await play(task, ["ls", "submit"])
    assert (nothing.score, nothing.checks[0].name) == (-1.0, "a patch was made")
    gone, _ = await play(task, ["cd / && rm -rf /work/repo", "submit"])
    assert gone.score == -1.0
    large, _ = await play(task, [f"{MEND}; head -c 3000000 /dev/urandom > x.bin", "submit"])
    assert (large.score, large.checks[0].name) == (-1.0, "a patch can be taken")
    assert "1000000" in large.checks[0].detail


async def test_a_patch_that_does_not_apply_is_the_policys_fault() -> None:
    task = shipped_task(TASK)
    payload = of_task(task.payload, task.source)
    bad = b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"
    outcome = await evaluation.judge(Sandbox.start, task.limits, shipped(payload.repository, payload.bug), payload, bad)
    assert (outcome.score, outcome.checks[0].name) == (-1.0, "the patch applies")


async def test_scores_by_shares() -> None:
    task = shipped_task("tally-round-halves")
    fix = "    result = math.copysign(math.floor(abs(value) * {0} + 0.5) / {0}, value)"
    halves = f"sed -i 's#    result = round(value.*#{fix.format('1')}#' tally/functions.py"
    partly, _ = await play(task, [halves, "submit"])
    assert partly.score == pytest.approx(-1 / 3) and not partly.solved  # 2 of 3 mended, an old test broke
    outcome = evaluation.outcome_of(
        {"timed_out": False, "ended": True, "honest": True, "details": {},
         "passed": [True, True, False] + [True] * (len(task.payload["PASS_TO_PASS"]))},
        of_task(task.payload, task.source),
    )  # fmt: skip
    assert outcome.score == pytest.approx(1 / 3)


async def test_tests_that_never_end_are_stopped_and_count_for_nothing() -> None:
    task = shipped_task(TASK)
    short = dataclasses.replace(task, payload=task.payload | {"test_s": 1.5})
    outcome, _ = await play(short, ["echo 'while True: pass' >> gridtext/__init__.py", "submit"])
    assert outcome.score == -1.0
    assert "did not end within 1.5 s" in outcome.checks[0].detail


async def test_what_the_environment_can_not_do_is_no_score() -> None:
    task = shipped_task(TASK)
    with pytest.raises(EnvironmentFailed, match="reset comes first"):
        await swe.make().evaluate()
    with pytest.raises(TaskError, match="not swe"):
        await swe.make().reset(dataclasses.replace(task, track="terminal"))
    bug = [["gridtext/width.py", "no such text", ""]]
    with pytest.raises(TaskError, match="bug: the text to replace must stand once"):
        await swe.make().reset(dataclasses.replace(task, payload=task.payload | {"bug": bug}))

    async def nowhere(*_, **__):
        raise SandboxUnavailable("no sandbox here")

    with pytest.raises(SandboxUnavailable):
        await swe.SweEnvironment(start=nowhere).reset(task)

    async def without_pytest(limits, packages=()):
        return await Sandbox.start(limits)

    with pytest.raises(
        EnvironmentFailed, match=r"(?s)pytest does not start in the sandbox: .*No module named 'pytest'"
    ):
        await play(task, [MEND, "submit"], swe.SweEnvironment(start=without_pytest))
    broken = dataclasses.replace(
        task, payload=task.payload | {"test_patch": "--- a/no\n+++ b/no\n@@ -1 +1 @@\n-a\n+b\n"}
    )
    with pytest.raises(EnvironmentFailed, match="the tests can't be put in place"):
        await play(broken, [MEND, "submit"])


async def test_a_sandbox_that_dies_is_a_failure_of_the_environment(environment) -> None:
    await environment.reset(shipped_task(TASK))
    await environment._sandbox.close()
    with pytest.raises(EnvironmentFailed):
        await environment.step(bash("ls"))
    with pytest.raises(EnvironmentFailed):
        await environment.evaluate()


DEEP: list = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "field, value",
    [
        ("bug", [5]), ("bug", 5), ("bug", ["abc"]), ("bug", [["a", "b", 5]]), ("bug", DEEP), ("test_arguments", 5),
        ("test_arguments", "-x"), ("test_arguments", [5]), ("test_arguments", DEEP), ("FAIL_TO_PASS", 5),
        ("FAIL_TO_PASS", [5]), ("FAIL_TO_PASS", DEEP), ("PASS_TO_PASS", {"a": 1}), ("repository", DEEP),
        ("repository", 5), ("test_patch", ["x"]), ("test_patch", "\ud800"), ("test_s", DEEP), ("test_s", True),
    ],
)  # fmt: skip
def test_a_payload_of_wrong_kinds_names_its_field(field: str, value: object) -> None:
    task = shipped_task(TASK)
    with pytest.raises(TaskError, match=f"^{task.source}: {field}: "):
        of_task(task.payload | {field: value}, task.source)


def test_a_payload_that_is_no_table_is_refused() -> None:
    for value in (5, "text", [1], DEEP):
        with pytest.raises(TaskError, match="x:1: payload: "):
            of_task(value, "x:1")
