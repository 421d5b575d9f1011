"""The rules step judge: each rule by name, for each track, with steps made by hand."""

import time

import pytest

from judge.steps import Screen, StepInput, StepJudgeSettings, action_text, make_step_judge
from judge.steps.actions import Counts, asks_by_exit_code, count_tests
from judge.steps.hints import hint_from

PNG = b"\x89PNG\r\n\x1a\n"


def bash(command, reasoning=""):
    return action_text(reasoning, [("bash", {"command": command})])


def step(track, action, result="", history=(), **facts):
    screens = {name: facts.pop(name) for name in ("before", "after") if name in facts}
    return StepInput(
        track=track, instruction="Do it.", index=len(history), action=action, result=result, history=tuple(history),
        facts=facts, **screens,
    )  # fmt: skip


def shell(command, result="", *history, track="terminal", **facts):
    """A command after others, each (command, result)."""
    return step(track, bash(command), result, [(bash(one), said) for one, said in history], **facts)


def swe(command, result="", *history, **facts):
    return shell(command, result, *history, track="swe", **facts)


def tool(name, result="", /, arguments=None, **facts):
    return step("tool_call", action_text("", [(name, arguments or {"a": "b"})]), result, **facts)


def python(code, result="", *history, **facts):
    calls = [action_text("", [("python", {"code": one})]) for one in (code, *(before for before, _ in history))]
    return step(
        "tool_call", calls[0], result, list(zip(calls[1:], [said for _, said in history], strict=True)), **facts
    )


def gui(name, *history, result="ok", **facts):
    act = action_text("", [(name, {"element": "e1"})])
    return step("gui", act, result, [(act, said) for said in history], **facts)


A, B = Screen(tree='button "Save"'), Screen(tree='button "Saved"')
ONE, TWO = Screen(image=PNG + b"1"), Screen(image=PNG + b"2")
RED = "FAILED tests/test_a.py::test_b\n2 failed, 3 passed in 0.11s\nexit code: 1"
RED_LATER = RED.replace("0.11", "0.19")
FEWER = "FAILED tests/test_a.py::test_b\n1 failed, 4 passed in 0.13s\nexit code: 1"
GREEN = "5 passed in 0.12s\nexit code: 0"
GREEN_LATER = GREEN.replace("0.12", "0.2")
UNITTEST = "Ran 4 tests in 0.001s\n\nFAILED (failures=1, errors=1)"
TESTS, EDIT = "python -m pytest -q", ("sed -i s/a/b/ f", "")
OK = [{"name": "f", "ok": True}]
NO_FILE = "cat: b: No such file or directory"

CASES = {
    # what the environment knows for certain
    "fault": (step("terminal", "hello", fault="There is no block."), -1, "malformed call: There is no block"),
    "schema": (tool("weather", schema_valid=False), -1, "malformed call: it does not fit"),
    "timed-out": (shell("cat", "timed out", timed_out=True, exit_code=None), -1, "stopped: it took too long"),
    "ended": (python("x", ended="memory: 512 MB"), -1, "stopped: memory"),
    # going in circles
    "same-again": (shell("ls", "a", ("ls", "a"), exit_code=0), -1, "in circles: the same action"),
    "same-again-later": (shell("ls", "a", ("ls", "a "), ("pwd", "/"), exit_code=0), -1, "result as in step 1"),
    "failed-again": (shell("make", "line 7", ("make", "exit code: 2"), exit_code=2), -1, "in circles: step 1 failed"),
    "again-after-a-change": (shell("make", "built", ("make", "exit code: 2"), EDIT, exit_code=0), 1, "new information"),
    "tests-again-at-once": (swe(TESTS, RED_LATER, (TESTS, RED), exit_code=1), -1, "in circles"),
    "green-again-at-once": (swe(TESTS, GREEN_LATER, (TESTS, GREEN), exit_code=0), -1, "in circles"),
    "python-again": (python("f", "NameError", ("f", "NameError"), error_type="NameError"), -1, "in circles"),
    "edit-again": (swe("sed -i s/a/aa/ f", "", ("sed -i s/a/aa/ f", ""), exit_code=0, diff_changed=True), 1, "applied"),
    # tests
    "tests-fail-first": (swe(TESTS, RED, exit_code=1), 0, "tests ran, and 2 failed"),
    "tests-pass-first": (swe(TESTS, GREEN, exit_code=0), 1, "tests passed: 5"),
    "tests-green": (swe(TESTS, GREEN, (TESTS, RED), EDIT, exit_code=0), 1, "tests turned green"),
    "tests-green-in-a-terminal": (shell(TESTS, GREEN, (TESTS, RED), EDIT, exit_code=0), 1, "tests turned green"),
    "tests-fewer": (swe(TESTS, FEWER, (TESTS, RED), EDIT, exit_code=1), 1, "fewer tests failed: 2 before, 1 now"),
    "tests-more": (swe(TESTS, RED, (TESTS, FEWER), EDIT, exit_code=1), -1, "more tests failed: 1 before, 2 now"),
    "tests-as-before": (swe(TESTS, RED_LATER, (TESTS, RED), ("cat f", "x"), exit_code=1), 0, "as before: 2 failed"),
    "tests-still-green": (swe(TESTS, GREEN, (TESTS, GREEN), ("cat f", "x"), exit_code=0), 0, "as before: 0 failed"),
    "other-tests": (swe("pytest tests/test_a.py", RED, (TESTS, GREEN), exit_code=1), 0, "nothing to compare with"),
    "fewer-ran": (swe(TESTS, "1 failed in 0.1s", (TESTS, RED), ("rm t.py", ""), exit_code=1), 0, "as before: 1 failed"),
    "unittest": (swe("python -m unittest", UNITTEST, exit_code=1), 0, "tests ran, and 2 failed"),
    "tests-by-fact": (swe("./check", "red", tests_passed=3, tests_failed=0, exit_code=0), 1, "tests passed: 3"),
    "no-tests": (swe("echo 3 passed", "3 passed", exit_code=0), 0, "nothing new"),
    # how a command ended
    "not-found": (shell("lss", "bash: lss: command not found", exit_code=127), -1, "exit code 127"),
    "not-executable": (shell("./a", "Permission denied", exit_code=126), -1, "exit code 126"),
    "no-file": (shell("cat b", NO_FILE, exit_code=1), -1, "exit code 1: No such file"),
    "grep-no-file": (shell("grep a b", "grep: b: No such file or directory", exit_code=2), -1, "exit code 2: No such"),
    "grep-nothing": (shell("cd /w && grep -c a b", "0", exit_code=1), 0, "exit code 1 of grep is an answer"),
    "diff": (swe("diff a b", "< x\n> y", exit_code=1), 0, "exit code 1 of diff is an answer"),
    "other-code": (shell("./run", "no luck", exit_code=3), 0, "exit code 3 without a known error"),
    "program": (shell("cat a.sh; bash a.sh", "a.sh: line 4: syntax error", exit_code=2), 0, "of a program"),
    "own-code": (shell("python3 -c 'x ='", "SyntaxError: invalid syntax", exit_code=1), -1, "exit code 1: SyntaxError"),
    "no-program": (shell("python3 b.py", "python3: can't open file 'b.py'", exit_code=2), -1, "can't open file"),
    "usage": (shell("cut a", "usage: cut -f list [file]", exit_code=1), -1, "exit code 1: usage:"),
    "exception": (python("1/0", "...", error_type="ZeroDivisionError"), -1, "exception: ZeroDivisionError"),
    "assertion": (python("assert 0", "...", error_type="AssertionError"), 0, "an assertion did not hold"),
    "tool-error": (tool("book", '{"error": "no such day"}', schema_valid=True), -1, "error field: no such day"),
    "call-failed": (tool("book", "book failed: full", calls=[{"name": "book", "ok": False}]), -1, "failed: 1 of 1"),
    "call-returned-error": (tool("book", 'book returned {"error": "full"}', calls=OK), -1, "returned: error field"),
    "call-returned-words": (tool("read", 'read returned "error: none at all"', calls=OK), 1, "new information"),
    "assertion-of-a-call": (python("assert 0", "AssertionError", calls=[{"ok": False}]), 0, "an assertion"),
    "fault-in-the-result": (tool("x", "Nothing was run.", fault=True), -1, "malformed call: Nothing was run"),
    # by what was printed, where the environment does not say
    "printed-error": (shell("x", "bash: x: command not found"), -1, "printed: error"),
    "printed-success": (shell("x", "exit code: 0"), 1, "printed: exit code 0"),
    "printed-words": (shell("x", "some words"), 0, "nothing that a rule can read"),
    # news
    "news": (shell("cat a.txt", "red\nexit code: 0", exit_code=0), 1, "new information"),
    "no-output": (shell("cd /w", "(no output)\nexit code: 0\ncwd: /w", exit_code=0), 0, "nothing new"),
    "echo": (shell("echo all is well", "all is well\nexit code: 0", exit_code=0), 0, "nothing new"),
    "known": (shell("head -1 a", "red\nexit code: 0", ("cat a", "blue\nred\n"), exit_code=0), 0, "nothing new"),
    "number": (shell("wc -l <a", "3\nexit code: 0", ("cat a", "13 of 30 rows"), exit_code=0), 1, "new information"),
    "python-news": (python("f(2)", "4", error_type=None), 1, "new information"),
    "call-news": (tool("weather", '{"degrees": 3}', schema_valid=True), 1, "new information"),
    "plain-news": (step("terminal", "So:\n```bash\ncat a\n```", "red", exit_code=0), 1, "new information"),
    "silent-code": (python("x = 1", "It ran without any output: print it.", calls=OK), 0, "nothing new"),
    # the end
    "answer": (tool("answer", "The episode is over."), 0, "finished"),
    "done": (step("terminal", "DONE", "over", exit_code=None, timed_out=False), 0, "finished"),
    "done-by-fact": (shell("exit", "over", done=True), 0, "finished"),
    # edits
    "edit-not-applied": (swe("git apply p", "", edit_applied=False, exit_code=1), -1, "could not be applied"),
    "edit-in-vain": (swe("sed -i s/x/y/ a.py", "", exit_code=0, diff_changed=False), -1, "the edit changed nothing"),
    "edit": (step("swe", "<edit>", "ok", edit_applied=True, diff_changed=True), 1, "the edit was applied"),
    "looking": (swe("cat a.py", "x = 1", exit_code=0, diff_changed=False), 1, "new information"),
    "edit-and-fail": (swe("sed -i s/a/b/ f; false", "", exit_code=1, diff_changed=True), 0, "exit code 1 without"),
    # screens
    "no-change": (gui("click", before=A, after=A), -1, "the screen did not change"),
    "no-pixels": (gui("click", pixels_changed=0.0), -1, "the screen did not change"),
    "tree-changed": (gui("click", before=A, after=B), 0, "the screen changed"),
    "pixels-changed": (gui("click", before=A, after=A, pixels_changed=0.1), 0, "the screen changed"),
    "tree-alone-changed": (gui("click", before=A, after=B, pixels_changed=False), 0, "the screen changed"),
    "pictures-changed": (gui("click", before=ONE, after=TWO), 0, "the screen changed"),
    "pictures-same": (gui("click", before=ONE, after=ONE), -1, "the screen did not change"),
    "changed-address": (gui("click", before=A, after=A, changed=True), 0, "the screen changed"),
    "wait": (gui("wait", before=A, after=A), 0, "did not change, and need not"),
    "plain-wait": (step("gui", "It loads.\nwait 2", "waited", before=A, after=A), 0, "need not"),
    "gui-done": (gui("done", before=A, after=A), 0, "finished"),
    "gui-fault": (gui("tap", fault="there is no action 'tap'"), -1, "malformed call: there is no action"),
    "gui-unknown": (gui("click"), 0, "nothing that a rule can read"),
    "error-on-the-screen": (gui("click", result="Error: failed", before=A, after=B), 0, "the screen changed"),
    "gui-circle": (gui("click", "ok", before=A, after=A), -1, "in circles"),
    "gui-again-with-effect": (gui("key", "ok", before=A, after=B), 0, "the screen changed"),
}


@pytest.mark.parametrize(("made", "score", "rule"), CASES.values(), ids=CASES)
async def test_rule(made, score, rule):
    verdict = await make_step_judge(StepJudgeSettings()).judge(made)
    [vote] = verdict.evaluative
    assert (vote.score, verdict.reward, verdict.error) == (score, score, None), vote.text
    assert vote.text.startswith("rule: ") and rule in vote.text
    assert verdict.judge == verdict.prompt_version == "step-rules/1"


def test_each_track_has_good_and_bad_and_neutral_steps():
    seen = {(made.track, score) for made, score, _ in CASES.values()}
    expected = {(track, score) for track in ("terminal", "tool_call", "swe", "gui") for score in (1, 0, -1)}
    assert expected - seen == {("gui", 1)}, "no rule calls a changed screen good"


@pytest.mark.parametrize(
    ("fact", "said"),
    [({"exit_code": "0"}, "exit_code is '0': a whole number"), ({"exit_code": True}, "exit_code is True"),
     ({"timed_out": 1}, "timed_out is 1: true or false"), ({"fault": 3}, "fault is 3: a text, or true or false"),
     ({"pixels_changed": "x"}, "pixels_changed is 'x': a number"), ({"calls": ["ok"]}, "calls is")],
)  # fmt: skip
async def test_a_fact_of_a_wrong_kind_is_no_vote_and_no_zero(fact, said):
    verdict = await make_step_judge(StepJudgeSettings()).judge(shell("ls", "a", **fact))
    assert verdict.reward is None and verdict.evaluative == () and said in verdict.error


HINTS = [
    ("git: 'stauts' is not a git command.\n\nThe most similar command is\n\tstatus", "Use `status` instead."),
    ("NameError: name 'prnt' is not defined. Did you mean: 'print'?", "Use `print` instead."),
    ("error: unknown option --recurse, did you mean --recursive?", "Use `--recursive` instead."),
    ("usage: tool [-h] --out FILE name\ntool: error", "Call it in this form: tool [-h] --out FILE name"),
    ("argument mode: invalid choice: 'x' (choose from 'a', 'b')", "Choose one of 'a', 'b'."),
    ("error: the following arguments are required: --out, name", "Give the arguments that are required: --out, name."),
    ("f() missing 2 required positional arguments: 'a' and 'b'", "Give the arguments that are required: 'a' and 'b'."),
    ("'city' is a required property", "Give the argument `city`: it is required."),
    ("arguments: missing city (string), day (one of \"mon\", \"tue\")",
     'Give the arguments that are missing: city (string), day (one of "mon", "tue").'),
    ("arguments: weather takes no 'town'; known are city, day", "Leave out 'town': known are city, day."),
    ('day: is 5, expected type string', "Give string, where 5 was given."),
    ("'warm' is not one of ['hot', 'cold']", "Give one of ['hot', 'cold'], not 'warm'."),
    ("'5' is not of type 'integer'", "Give a value of type integer, where '5' was given."),
    ("no properties are allowed ('town' was unexpected)", "Leave out the argument 'town': it is not known."),
    ("vim: There is no terminal here and stdin is empty (end of file): change it with sed -i.",
     "Do it without vim: change it with sed -i."),
    ("cat: b: No such file or directory", None),
    ("Traceback (most recent call last):\nZeroDivisionError: division by zero", None),
    ("", None),
]  # fmt: skip


@pytest.mark.parametrize(("said", "hint"), HINTS, ids=range(len(HINTS)))
def test_hints_from_results(said, hint):
    assert hint_from(said) == hint


def test_a_fault_that_shows_the_right_form_is_the_hint():
    fault = "The answer has no ```bash block. Answer with one block:\n```bash\nls\n```\nor with the word DONE."
    assert "Answer with one block: ```bash ls ```" in hint_from(fault, fault)
    assert hint_from("", "That could not be read.") is None


async def test_hints_come_with_failed_steps_only():
    judge = make_step_judge(StepJudgeSettings())
    said = "error: unknown option --recurse, did you mean --recursive?"
    verdict = await judge.judge(shell("cp --recurse a b", said, exit_code=1))
    assert verdict.reward == -1 and verdict.hint == "Use `--recursive` instead." and verdict.chosen_by == "longest"
    verdict = await judge.judge(shell("cat log", said, exit_code=0))
    assert verdict.reward == 1 and verdict.hint is None and verdict.directive == ()


N = 100_000
LONG = {
    "spaces in a call": ("<tool_call>x" + " " * N + "y", "ok"), "lines in a result": ("ls", "\n" * N),
    "commands": ("git grep " * (N // 9) + "|", "ok"), "unittest": (bash("pytest"), "Ran 1 test in \n" * (N // 15)),
    "usage": ("ls", "usage:" * (N // 6)), "fences": ("```\n" * (N // 4), "ok"),
    "thoughts": ("<think>" * (N // 7), "ok"),
    "pipes": ("| " * (N // 2), "ok"), "sed": ("sed " + "-a " * (N // 3), "ok"), "dashes": ("ls", "-" * N + "x"),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
async def test_no_text_takes_long(name):
    action, result = LONG[name]
    judge = make_step_judge(StepJudgeSettings(judge="rules"))
    for facts in ({"exit_code": 1}, {}):
        started = time.perf_counter()
        await judge.judge(step("swe", action, result, [(action, result)], **facts))
        assert time.perf_counter() - started < 3


def test_a_unittest_run_is_counted_by_its_own_end():
    said = "Ran 3 tests in 0.1s\n\nFAILED (failures=1, errors=1)\n"
    assert count_tests(bash("python -m unittest"), said) == Counts(1, 2)
    assert count_tests(bash("python -m unittest"), "Ran 3 tests in 0.1s\n\nOK\n") == Counts(3, 0)


@pytest.mark.parametrize(
    ("command", "asked"),
    [("cat a | grep x", "grep"), ("git diff", "diff"), ("grep x a | wc -l", None), ("cd a && test -f b", "test"),
     ("a; command  -v b", "command -v"), ("ls -la", None)],
)  # fmt: skip
def test_the_last_command_asks_by_its_exit_code(command, asked):
    assert asks_by_exit_code(bash(command)) == asked
