"""What checks say, and that a policy can't cheat them."""

import pytest

from serve.environments.protocol import EnvironmentFailed
from serve.environments.terminal import evaluation
from tests.unit.serve.environments.terminal.building import outcome_of, task

SAYS = [{"name": "n holds 3", "run": "says n 3"}]
RUNS = [{"name": "it counts", "run": "gives 42 bash count.sh 40 2"}]


async def score(checks, *commands, **more) -> float:
    return (await outcome_of(task(checks=checks, **more), commands)).score


async def test_the_score_is_the_share_of_checks():
    checks = [*SAYS, {"name": "m holds 4", "run": "says m 4"}, {"name": "o is there", "run": "[[ -e o ]]"}]
    outcome = await outcome_of(task(checks=checks), ["echo 3 > n; echo 5 > m; touch o"])
    assert outcome.score == pytest.approx(1 / 3) and [check.passed for check in outcome.checks] == [True, False, True]
    assert outcome.checks[1].detail == "exit code 1; wanted: 4\ngot: 5"


async def test_a_guard_counts_only_beside_another_check():
    checks = [*SAYS, {"name": "m is kept", "run": "says m 4", "guard": True}]
    for command, wanted in (("true", -1), ("echo 3 > n", 1), ("echo 3 | tee n > m", 0)):
        assert await score(checks, command, files={"m": "4"}) == wanted


@pytest.mark.parametrize("text", ["3", "3\\n", " \\n3  \\n\\n", "3\\r\\n"])
async def test_spaces_at_the_ends_of_lines_and_empty_lines_at_the_ends_do_not_matter(text):
    assert await score(SAYS, f"printf '{text}' > n") == 1


@pytest.mark.parametrize("text", ["33", "3\\n3", " 3", "three", "", "3\\n\\n3"])
async def test_other_texts_do(text):
    assert await score(SAYS, f"printf '{text}' > n") == -1


@pytest.mark.parametrize(
    "trick",
    [
        "echo 3; echo 'n holds 3: PASSED'",
        "mkdir n; echo 3 > n/n",
        "echo 3 > m; ln -s m n",
        "ln -s /dev/zero n",
        "ln -s n n",
        "mkfifo n; (echo 3 > n &)",
        "truncate -s 60M n",
        "touch n; chmod 000 n",
        "says() { true; }; export -f says; echo 'says() { true; }' | tee ~/.bashrc ~/.profile .bashrc",
        "printf '#!/bin/bash\\nexit 0\\n' | tee says test true cat stat > /dev/null; chmod +x *; PATH=/work:$PATH",
        "chmod 000 /work",
        "rm -rf /work/* ; cd /; chmod 000 /tmp",
        "echo '[[ 1 ]]; exit 0' > /tmp/env; export BASH_ENV=/tmp/env ENV=/tmp/env",
        "alias says=true; shopt -s expand_aliases; trap 'exit 0' EXIT",
    ],
)
async def test_tricks_do_not_pass(trick):
    assert await score(SAYS, trick) == -1


async def test_an_honest_result_passes_beside_strange_things():
    left = "mkfifo pipe; ln -s /dev/zero zero; truncate -s 60M huge; chmod 000 /tmp; (while :; do :; done &)"
    assert await score(SAYS, f"echo 3 > n; {left}") == 1


async def test_what_still_runs_is_ended_before_the_checks():
    alone = [{"name": "alone", "run": "all=(/proc/[0-9]*); (( ${#all[@]} <= 2 ))"}]  # PID 1 and the check itself
    assert (
        await score(alone, "(while :; do echo 4 > n; done) &", "setsid -f sleep 60; nohup sleep 60 > /dev/null 2>&1 &")
        == 1
    )


async def test_a_check_that_blocks_on_what_was_left_there_failed():
    checks = [{"name": "reads", "run": "grep -q 3 n", "timeout_s": 0.3}, {"name": "other", "run": "true"}]
    outcome = await outcome_of(task(checks=checks), ["mkfifo n"])
    assert outcome.score == 0 and "stopped after 0.3 s" in outcome.checks[0].detail


async def test_a_check_that_blocks_in_a_sick_sandbox_is_no_low_score(monkeypatch):
    checks = [{"name": "reads", "run": "cat n", "timeout_s": 0.2}]
    monkeypatch.setattr(evaluation, "CONTROL_S", 0.0001)
    with pytest.raises(EnvironmentFailed, match="a check took over"):
        await outcome_of(task(checks=checks), ["mkfifo n"])


async def test_a_script_that_a_check_runs_gets_no_look_at_the_check():
    spying = r"""cat > count.sh <<'END'
tr '\0' ' ' < /proc/$PPID/cmdline; ps ax -o args
timeout 0.3 cat /proc/*/cmdline /proc/*/environ /tmp/* /proc/*/fd/* 2>/dev/null
END"""
    assert await score(RUNS, spying) == -1
    made = task(checks=[{"name": "seen", "run": "wanted=OCELOT; [[ $(bash count.sh) == *$wanted* ]]"}])
    assert (await outcome_of(made, [spying])).score == -1


@pytest.mark.parametrize(
    "script",
    [
        "while true; do :; done",
        "kill -9 $PPID; echo 42",
        "kill -9 -1",
        "yes",
        "read x; echo 43",
        "exec 1>&-; exit 0",
        "echo 42; exit 1",
    ],
)
async def test_scripts_that_misbehave_fail_their_check(script):
    assert await score(RUNS, f"cat > count.sh <<'END'\n{script}\nEND") == -1


async def test_an_honest_script_passes():
    assert await score(RUNS, "echo 'echo $(( $1 + $2 ))' > count.sh") == 1


async def test_python_in_checks_takes_no_modules_of_the_policy():
    checks = [{"name": "sum", "run": "python -c 'import json; assert json.loads(\"3\") == 4'"}]
    made = "echo 'def loads(text): return 4' | tee json.py /tmp/json.py > ~/json.py"
    assert await score(checks, f"{made}; export PYTHONPATH=/work; mkdir -p ~/.local/lib/python3.11/site-packages") == -1


async def test_git_in_checks_takes_no_settings_of_the_policys_home():
    checks = [{"name": "no commit", "run": "git -C repo rev-parse -q --verify HEAD"}]
    made = "git init -q repo; git config --global alias.rev-parse '!true'; git config --global core.worktree /tmp"
    assert await score(checks, made) == -1


async def test_a_full_disk_is_the_policys_own_matter():
    fill = "head -c 70000000 /dev/zero > /work/big; head -c 70000000 /dev/zero > /tmp/big"
    assert await score(SAYS, f"echo 3 > n; {fill}") == 1
    assert await score(SAYS, fill) == -1
