"""Whatever a command does to the shell, or says where only the shell should: the next step gets its answer."""

import asyncio
import time

import pytest

from serve.environments.sandbox import Sandbox
from serve.environments.tasks import Limits

pytestmark = pytest.mark.asyncio(loop_scope="module")

TRICKS = {
    "another output": "exec 9>&1",
    "status closed": "exec 9>&-",
    "no input": "exec 0<&-",
    "input from elsewhere": "exec 0</dev/zero",
    "no output": "exec 1>&-",
    "no errors": "exec 2>&-",
    "output to a full disk": "exec >/dev/full",
    "nothing open": "exec 0<&- 1>&- 2>&- 8<&- 9>&-",
    "saved descriptors closed": 'for n in {3..255}; do eval "exec $n>&-"; done',
    "no execution": "set -n",
    "errors end it": "set -e; false",
    "unset names end it": "set -u; echo $nothing",
    "traces": "set -x",
    "verbose": "set -v",
    "restricted": "set -r",
    "no globs": "set -f",
    "keywords": "set -k",
    "no clobber": "set -C",
    "posix": "set -o posix",
    "signals ignored": "trap '' INT TERM HUP QUIT CHLD",
    "trap on everything": "trap 'sleep 0.01' DEBUG; trap 'echo bye' EXIT; trap 'echo no' ERR",
    "a trap that ends it": "trap 'exit 9' DEBUG",
    "readonly prompt": "readonly PS1 PS2 PROMPT_COMMAND IFS PWD",
    "separators": "IFS='0123456789 '",
    "no path": "PATH=; unset PATH; hash -r",
    "a prompt that runs": "PS1='$(sleep 0.1)'; PROMPT_COMMAND='exit 3'",
    "home gone": "cd /work; mkdir x; cd x; rmdir ../x",
    "printf taken": "printf() { echo no; }",
    "eval taken": "eval() { :; }",
    "builtin taken": "builtin() { :; }",
    "all taken": 'printf() { :; }; eval() { :; }; builtin() { :; }; echo() { command echo "$@"; }',
    "aliases": "shopt -s expand_aliases; alias eval=false printf=false builtin=false '{=false'",
    "exit": "exit 7",
    "replaced": "exec true",
    "killed": "kill -9 $$",
    "aborted": "kill -ABRT $$",
    "a pipe broken": "kill -PIPE $$",
    "limits lowered": "ulimit -n 16; ulimit -f 0",
    "logged out": "TMOUT=1; logout",
    "a fork in the background that exits": "(kill -9 $$) &",
    "syntax": "if then fi ( ' \" `",
    "an open quote": "echo 'no end",
    "an open here-document": "cat <<EOF\nno end",
    "nul and controls": "echo $'\\0\\1\\4\\33'",
    "end of input": "\x04\x03\x1a",
    "many lines": "\n" * 5000 + "true",
    "a long word": "x=" + "y" * 1_900_000,
    "no line end": "#",
    "deep": "(" * 3000 + "true" + ")" * 3000,
    "recursion": "f() { f; }; ulimit -s 1024; f",
    "a cwd of any bytes": "mkdir -p $'/work/\\377\\n'; cd $'/work/\\377\\n'",
    "a cwd that lies": "PWD=$(head -c 200000 /dev/zero | tr '\\0' x)",
    "unset taken": "unset() { :; }",
}


@pytest.mark.parametrize("name", TRICKS)
async def test_next_step_is_answered(own_box: Sandbox, name: str) -> None:
    await own_box.shell(TRICKS[name], timeout_s=0.4)
    begun = time.monotonic()
    result = await own_box.shell("command echo here >&2; cd /work", timeout_s=0.7)
    if name == "no errors":
        assert result.exit_code == 0 or result.shell_restarted
    elif "here" not in result.stderr:
        result = await own_box.shell("command echo here >&2; cd /work", timeout_s=0.7)
        assert "here" in result.stderr or name in ("no errors", "nothing open", "saved descriptors closed")
    assert time.monotonic() - begun < 5
    result.cwd.encode()
    assert (await own_box.run(["echo", "here"], timeout_s=2)).stdout == "here\n"


SLOW = {
    "all builtins gone": "enable -n builtin eval printf",
    "everything taken": "builtin() { :; }; unset() { :; }",
    "stopped": "(sleep 0.1; kill -STOP $$) & sleep 5",
    "input eaten": "for n in {10..20}; do cat <&$n; done",
    "a wait that can't be interrupted": "trap '' INT TERM; while :; do :; done",
    "replaced by what waits": "exec sleep 60",
    "replaced by what can't be interrupted": "exec bash -c 'trap \"\" INT TERM; sleep 60; sleep 60'",
    "reading for ever": "read x </dev/zero",
    "endless status": "while :; do echo 0123456789 0 x >&11; done",
}


async def cost(name: str) -> str:
    """What went wrong with one of these, in a sandbox of its own; nothing, if all is well."""
    box = await Sandbox.start(Limits(memory_mb=256, processes=32))
    try:
        begun = time.monotonic()
        await box.shell(SLOW[name], timeout_s=0.5)
        said = [(await box.shell("command echo here", timeout_s=0.5)).stdout for _ in range(2)]
        took_s = time.monotonic() - begun
        left = (await box.run(["pgrep", "-x", "sleep|cat"], timeout_s=2)).stdout
    finally:
        await box.close()
    return "" if "here\n" in said and took_s < 8 and not left else f"{name}: {said}, {took_s:.1f} s, left: {left}"


async def test_what_keeps_the_shell_busy_costs_its_own_time_alone() -> None:
    names = list(SLOW)
    for some in (names[:5], names[5:]):  # they mostly wait
        assert [found for found in await asyncio.gather(*map(cost, some)) if found] == []


QUOTES = (
    "echo 'no end",
    'echo "no end',
    "echo $(no end",
    "echo `no end",
    "echo ${no",
    "if true; then",
    "for",
    "}",
    ")",
    "f() {",
    "x=(1 2",
    "[[ a",
)


@pytest.mark.parametrize("command", QUOTES)
async def test_an_open_quote_is_an_error_at_once_and_spares_the_shell(box: Sandbox, command: str) -> None:
    await box.shell("kept=1", timeout_s=2)
    result = await box.shell(command, timeout_s=2)
    assert result.exit_code in (1, 2) and result.stderr and not result.timed_out and not result.shell_restarted
    assert (await box.shell("echo $kept", timeout_s=2)).stdout == "1\n"


async def test_forged_status_is_a_lie_about_itself_and_no_more(own_box: Sandbox) -> None:
    say = "printf '%s x y\\0%s 7 /tmp\\0' {0..9} {0..9}"
    forge = f"read -r -t 1 line <&10; set -- $line; for n in 11 12 13; do {say} >&$n; done"
    await own_box.shell(forge, timeout_s=1)
    for _ in range(2):
        result = await own_box.shell("command echo here; (exit 3)", timeout_s=1)
        if result.exit_code == 3:
            break
    assert (result.stdout, result.exit_code) == ("here\n", 3)


async def test_frames_on_stdout_are_only_text(box: Sandbox) -> None:
    frame = r"\0\0\0\002{}\0\0\0\017{\"fault\":\"OSError\"}"
    assert "fault" in (await box.shell(f"printf '{frame}'", timeout_s=2)).stdout
    assert "fault" in (await box.run(["printf", frame], timeout_s=2)).stdout
    assert (await box.shell("echo here", timeout_s=2)).stdout == "here\n"


async def test_shell_that_ended_between_two_steps_is_started_again(own_box: Sandbox) -> None:
    await own_box.shell("cd /tmp", timeout_s=2)
    await own_box.run(["pkill", "-9", "-x", "bash"], timeout_s=2)
    await asyncio.sleep(0.1)  # until it has died of it
    result = await own_box.shell("echo here; pwd", timeout_s=2)
    assert (result.stdout, result.exit_code, result.cwd) == ("here\n/tmp\n", 0, "/tmp")


async def test_names_live_on_and_a_timeout_spares_them(own_box: Sandbox) -> None:
    await own_box.shell("x=1; f() { echo f; }; printf() { echo mine; }; cd /tmp", timeout_s=2)
    result = await own_box.shell("sleep 60", timeout_s=0.3)
    assert result.timed_out and result.exit_code == 130 and not result.shell_restarted
    assert (await own_box.shell("echo $x; f; pwd; printf", timeout_s=2)).stdout == "1\nf\n/tmp\nmine\n"


async def test_command_longer_than_allowed_is_refused(box: Sandbox) -> None:
    with pytest.raises(ValueError, match="longer than"):
        await box.shell("#" * (2 << 20) + "!", timeout_s=2)
    assert (await box.shell("echo here", timeout_s=2)).stdout == "here\n"


@pytest.mark.parametrize("argv", [["/no/such"], ["/work"], ["/etc/passwd"], [""], ["a\0b"], []])
async def test_program_that_can_not_begin(box: Sandbox, argv: list[str]) -> None:
    try:
        result = await box.run(argv, timeout_s=2)
    except ValueError:
        assert argv in (["a\0b"], [])
    else:
        assert result.exit_code in (126, 127)
    assert (await box.run(["echo", "here"], timeout_s=2)).stdout == "here\n"
    assert (await box.run(["pwd"], cwd="/no/such", timeout_s=2)).exit_code in (126, 127)
