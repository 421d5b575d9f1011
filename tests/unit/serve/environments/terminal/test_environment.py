import pytest

from serve.environments.protocol import Action, Call, EnvironmentFailed
from serve.environments.tasks import TaskError
from tests.unit.serve.environments.terminal.building import DONE, bash, said, step, task


async def test_the_first_observation_names_what_lies_there(environment):
    first = await environment.reset(task(files={"a.txt": "x", "sub/b.txt": "y"}))
    assert first.text == "The shell is in /work, where these lie: a.txt  sub/"
    assert first.facts == {"cwd": "/work"}
    assert (await environment.reset(task())).text == "The shell is in /work, which is empty."
    made = task(setup="mkdir d; touch 'two words' .hidden; ln -s d link; touch f{1..30}")
    text = (await environment.reset(made)).text
    assert ".hidden  d/  f1  f10" in text and text.endswith(" and 14 more")


async def test_the_shell_lives_on(environment):
    await environment.reset(task())
    await said(environment, "mkdir a && cd a && x=5 && twice() { echo $(( $1 * 2 )); }")
    assert await said(environment, "twice $x; pwd") == "10\n/work/a\nexit code: 0"


async def test_output_errors_exit_code_and_folder_are_told_apart(environment):
    await environment.reset(task())
    result = await step(environment, "echo out; echo err >&2; cd /tmp; (exit 3)")
    assert result.observation.text == "out\nstderr:\nerr\nexit code: 3\ncwd: /tmp"
    facts = result.observation.facts
    assert (facts["exit_code"], facts["cwd"], facts["timed_out"], facts["ended"]) == (3, "/tmp", False, None)
    assert 0 < facts["duration_s"] < 10 and not result.done
    assert await said(environment, "true") == "(no output)\nexit code: 0"


async def test_long_output_is_cut_in_its_middle(environment):
    await environment.reset(task(limits={"output_chars": 400}))
    text = await said(environment, "seq 100000")
    assert text.startswith("1\n2\n") and text.endswith("100000\nexit code: 0") and len(text) < 500
    assert "characters left out" in text


async def test_binary_output_is_said_not_shown(environment):
    await environment.reset(task())
    text = await said(environment, "head -c 3000 /usr/bin/ls")
    assert text.startswith("(binary output, about ") and "\ufffd" not in text and len(text) < 150
    assert "größe ✓" in await said(environment, "echo 'größe ✓'")
    assert await said(environment, r"printf '\033[31mred\033[0m\n'") == "red\nexit code: 0"


async def test_a_command_that_takes_too_long_is_stopped_and_the_shell_lives_on(environment):
    await environment.reset(task())
    await said(environment, "x=5")
    result = await step(environment, "sleep 30", timeout_s=0.3)
    assert "timed out: stopped after 0.3 s; the shell lives on" in result.observation.text
    assert result.observation.facts["timed_out"] and not result.done
    assert await said(environment, "echo $x") == "5\nexit code: 0"


async def test_the_time_of_a_step_bounds_all_its_commands(environment):
    await environment.reset(task(limits={"step_s": 0.4}))
    calls = tuple(Call(name="bash", arguments={"command": one}) for one in ("sleep 30", "touch late"))
    text = (await environment.step(Action(text="", calls=calls))).observation.text
    assert text.startswith("$ sleep 30\n") and "$ touch late\nnot run: the 0.4 s of this step are used up" in text
    assert "more than the 0.4 s that one step may take" in await said(environment, "true", timeout_s=60)


async def test_what_one_answer_is_shown_is_bounded(environment):
    await environment.reset(task(limits={"output_chars": 1000}))
    long = Call(name="bash", arguments={"command": "seq 100000 #" + "y" * 200_000})
    text = (await environment.step(Action(text="", calls=(long,) * 30))).observation.text
    assert len(text) < 3 * 1000 + 16 * 600 and text.count("exit code: 0") == 16
    assert "(199812 characters left out)" in text and "one answer is shown 2500 at most" in text
    assert text.endswith("[call 17 and later] not run: 16 calls in one answer are the most")
    both = await said(environment, "seq 100000; seq 100000 >&2")
    assert both.startswith("1\n") and both.endswith("100000\nexit code: 0") and "one answer" not in both
    assert len(await said(environment, "git commit " + "z" * 100_000)) < 3000


async def test_a_shell_that_ends_is_started_anew(environment):
    await environment.reset(task())
    text = await said(environment, "x=5; touch kept; exit 4")
    assert "exit code: 4" in text and "The shell was started anew in /work" in text
    assert await said(environment, "echo [$x] $(ls); pwd") == "[] kept\n/work\nexit code: 0"


async def test_several_commands_run_in_order_and_done_ends_it(environment):
    await environment.reset(task())
    calls = (*bash("x=1").calls, *bash("echo $x").calls, *DONE.calls, *bash("touch after").calls)
    result = await environment.step(Action(text="", calls=calls))
    assert result.done and "$ echo $x\n1\nexit code: 0" in result.observation.text
    assert result.observation.facts["done"] is True
    assert (await said(environment, "ls")).startswith("(no output)")


@pytest.mark.parametrize(
    ("action", "named"),
    [
        (Action(text="hm"), "No command was given"),
        (Action(text="", fault="no block"), "no block"),
        (Action(text="", calls=(Call(name="python", arguments={}),)), "no tool 'python'"),
        (Action(text="", calls=(Call(name="bash", arguments={}),)), "bash needs command"),
        (bash(" \n"), "bash needs command"),
        (bash("touch a\0"), "zero byte"),
        (bash("touch a", timeout_s="soon"), "timeout_s is 'soon'"),
        (bash("touch a", timeout_s=0), "timeout_s is '0'"),
        (bash("touch a", timeout_s=float("nan")), "timeout_s is 'nan'"),
        (bash("touch a", folder="/"), "not 'folder'"),
        (Action(text="", calls=(*bash("touch a").calls, Call(name="rm", arguments={}))), "no tool 'rm'"),
    ],
)
async def test_a_bad_action_changes_nothing_and_is_told_why(environment, action, named):
    await environment.reset(task())
    result = await environment.step(action)
    assert named in result.observation.text and not result.done and result.observation.facts["fault"]
    assert (await said(environment, "ls")).startswith("(no output)")


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("python3", "python3: There is no terminal here"),
        ("read name", "read: There is no terminal here"),
        ("nano notes.txt", "nano: There is no terminal here"),
        ("ssh host ls", "no network"),
        ("passwd", "no password can be typed"),
        ("git init -q . && git add . && touch a && git add a && git commit", "use git commit -m"),
        ("cat > new.txt", "cat: There is no terminal here"),
    ],
)
async def test_programs_that_want_a_person_are_told_of(environment, command, named):
    await environment.reset(task())
    assert named in await said(environment, command, timeout_s=2)


async def test_a_setup_that_fails_is_a_failure_of_the_environment(environment):
    with pytest.raises(EnvironmentFailed, match=r"set-up of made failed: exit code 7\n(.*\n)*beside"):
        await environment.reset(task(setup="echo first\necho beside >&2\n(exit 7)\ntouch never"))


async def test_what_the_setup_left_running_is_gone(environment):
    await environment.reset(task(setup="sleep 100 & touch a"))
    assert (await said(environment, "grep -l sleep /proc/[0-9]*/comm")).startswith("(no output)")


async def test_files_have_their_modes_and_bytes(environment):
    await environment.reset(task(files={"a.sh": {"text": "echo hi\n", "mode": 0o755}, "b": {"base64": "AAH/"}}))
    assert (
        await said(environment, "./a.sh; od -An -tx1 b; stat -c %a a.sh b") == "hi\n 00 01 ff\n755\n644\nexit code: 0"
    )


async def test_tasks_that_it_cant_run_are_refused(environment):
    made = task()
    object.__setattr__(made, "payload", {"checks": "none"})
    with pytest.raises(TaskError, match=r"made.toml:1: checks: 'none'"):
        await environment.reset(made)
    object.__setattr__(made, "track", "gui")
    with pytest.raises(TaskError, match="of the track 'gui'"):
        await environment.reset(made)


async def test_it_can_be_closed_at_any_time_and_used_again(environment):
    await environment.close()
    with pytest.raises(EnvironmentFailed, match="reset comes first"):
        await said(environment, "true")
    await environment.reset(task())
    await environment.close()
    await environment.close()
    await environment.reset(task())
    assert "exit code: 0" in await said(environment, "true")


async def test_a_sandbox_that_died_is_a_failure_of_the_environment(environment):
    await environment.reset(task())
    await environment._sandbox.close()
    with pytest.raises(EnvironmentFailed):
        await said(environment, "true")
    with pytest.raises(EnvironmentFailed):
        await environment.evaluate()
