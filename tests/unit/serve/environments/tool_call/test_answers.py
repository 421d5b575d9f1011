"""Final answers: found, and compared."""

import asyncio
import datetime
import threading
import time
import tracemalloc

import pytest

from serve.environments.tasks import TaskError
from serve.environments.tool_call import math_peer
from serve.environments.tool_call.answers import check_answer, final_answer, json_equal, unfit
from serve.environments.tool_call.labels import unreadable
from serve.environments.tool_call.spec import ToolTask
from tests.unit.serve.environments.tool_call.building import task


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 42", "42"), ("so it is.\nanswer: 42", "42"), ("**Answer:** 42", "42"), ("Final answer: a b", "a b"),
        ("thus \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"), ("Answer: 42\nAnswer: 42", "42"),
        ("\\boxed{5} so \\boxed{5}", "5"),
        ('Answer:\n```json\n{"a": 1}\n```', '{"a": 1}'), ("\\boxed{1}\nAnswer: 2", "2"), ("it is 42", None), ("", None),
    ],
)  # fmt: skip
def test_the_final_answer_is_found(text, answer):
    assert final_answer(text) == (answer, None)


@pytest.mark.parametrize("text", ["Answer: 42\nAnswer: 43", "\\boxed{1} or \\boxed{2}", "Answer:", "Answer:  \n\n"])
def test_two_answers_or_an_empty_one_is_a_fault(text):
    answer, fault = final_answer(text)
    assert answer is None and "answer" in fault


def test_many_open_boxes_take_no_long_time():
    started = time.perf_counter()
    final_answer("\\boxed{" * 50_000)
    assert time.perf_counter() - started < 2


def test_nested_boxes_take_no_room_and_the_outermost_counts():
    tracemalloc.start()
    final_answer("\\boxed{" * 8000 + "}" * 8000)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 5_000_000
    assert final_answer("\\boxed{\\boxed{5} + 1}") == ("\\boxed{5} + 1", None)
    assert final_answer("\\boxed{ left open, \\boxed{5}") == ("5", None)
    assert final_answer("\\boxed{1}" + " " * 30_000 + "\\boxed{2}") == ("2", None)


async def passed(answer, **payload):
    return (await check_answer(ToolTask.of(task(**payload)), answer)).passed


async def test_exact_folds_what_the_task_says():
    loose = {"kind": "exact", "label": "New York"}
    for good in ("New York", "new  york", " NEW YORK. ", '"New York"', "\\boxed{New York}", "**New York**"):
        assert await passed(good, **loose), good
    for bad in ("York", "New York or Boston", "New York, Boston", "NewYork", ""):
        assert not await passed(bad, **loose), bad
    assert not await passed("new york", **loose, fold=["space"])
    assert not await passed("New  York", **loose, fold=["case"])


async def test_json_compares_values():
    assert await passed('{"b": [1, 2.0], "a": null}', kind="json", label='{"a": null, "b": [1, 2]}')
    assert await passed({"a": 1}, kind="json", label={"a": 1})
    assert await passed("[1.004]", kind="json", label=[1], tolerance=0.01)
    for bad in ("[1, 2]", "[2, 1, 3]", '["1"]', "[true]", "{}", "[1, 2, 3, 4]"):
        assert not await passed(bad, kind="json", label=[1, 2, 3]), bad


def test_json_equality_is_strict_about_kinds():
    assert json_equal(1, 1.0) and json_equal([], []) and json_equal({"a": [None]}, {"a": [None]})
    assert not json_equal(1, True) and not json_equal(0, False) and not json_equal(0, None) and not json_equal("1", 1)
    assert not json_equal(float("nan"), 1) and not json_equal(10**400, 1.0, 0.5)


def test_an_answer_without_the_form_of_its_kind_may_be_given_again():
    assert "not JSON" in unfit(ToolTask.of(task(kind="json", label=[1])), "{'a': 1}")
    assert "several lines" in unfit(ToolTask.of(task(kind="math", label="42")), "42\n43")
    assert "list" in unfit(ToolTask.of(task(kind="math", label="42")), [42, 43])
    assert unfit(ToolTask.of(task(kind="math", label="42")), 42) is None


async def test_a_number_is_decided_without_the_comparing_process(monkeypatch):
    monkeypatch.setattr(math_peer, "compare", lambda *_: pytest.fail("not needed"))
    assert await passed("0.5", kind="math", label="1/2") and await passed(42, kind="math", label=42)
    for bad in ("42 or 43", "{42, 43}", "[42, 42]", "41 + 1", "42, 42", "x", True):
        assert not await passed(bad, kind="math", label="42"), bad


@pytest.mark.parametrize(
    ("label", "answer"),
    [
        ("\\{5, -\\frac{3}{2}\\}", "-3/2, 5"), ("\\{5, -\\frac{3}{2}\\}", "x = 5 or x = -1.5"),
        ("[-1, 7]", "-1 <= x <= 7"),
        ("(0, \\infty)", "(0, oo)"), ("(1, -2, -2)", "1, -2, -2"), ("3\\sqrt{2}", "sqrt(18)"),
        ("3\\sqrt{2}", "\\boxed{3√2}"),
        ("3\\sqrt{2}", "4.242641"), ("2\\pi", "2*pi"), ("x^2+1", "1 + x**2"), ("x \\le 3", "x <= 3"),
        ("\\frac{\\pi}{4}", "pi/4"),
        ("[-1, 7]", "x >= -1 and x <= 7"), ("[-1, 7]", "x \\ge -1 \\land x \\le 7"), ("[-1, 7]", "x \\in [-1, 7]"),
        ("[-1, 7]", "7 >= x >= -1"), ("(-\\infty, 1) \\cup (2, \\infty)", "x < 1 or x > 2"),
        ("(-\\infty, 3]", "3 >= x"),
        ("|x - 3| \\le 4", "|x - 3| <= 4"), ("y = 2x + 1", "y - 2x - 1 = 0"), ("2^{100}", "2^100"),
        ("3 \\cdot 2^{100}", "3*2^100"), ("\\frac{3\\pi}{2}", "3*pi/2"), ("\\frac{3\\pi}{2}", "1.5pi"),
        ("1 + \\sqrt{2}", "sqrt(2) + 1"), ("-1 - \\sqrt{2}", "-sqrt(2) - 1"), ("2^{10} + \\pi", "1024 + pi"),
        ("2 \\cdot 3 \\cdot 5", "3*2*5"), ("\\frac{-1 + \\sqrt{5}}{2}", "(sqrt(5) - 1)/2"), ("x^2 - 1", "-1 + x**2"),
    ],
)  # fmt: skip
async def test_the_same_mathematics_passes(label, answer):
    assert await passed(answer, kind="math", label=label)


@pytest.mark.parametrize(
    ("label", "answer"),
    [
        ("\\{5, -\\frac{3}{2}\\}", "5"), ("\\{5, -\\frac{3}{2}\\}", "5, -3/2, 7"), ("[-1, 7]", "(-1, 7)"),
        ("(1, -2, -2)", "(-2, 1, -2)"), ("3\\sqrt{2}", "3\\sqrt{2} or 5"), ("3\\sqrt{2}", "3\\sqrt{2} \\text{ or } 5"),
        ("3\\sqrt{2}", "5 = 3\\sqrt{2}"), ("3\\sqrt{2}", "5} \\boxed{3\\sqrt{2}"),
        ("3\\sqrt{2}", "$5$ or $3\\sqrt{2}$"),
        ("3\\sqrt{2}", "\\pm 3\\sqrt{2}"), ("\\frac{\\pi}{4}", "\\int_0^1 \\frac{1}{1+x^2} dx"), ("3\\sqrt{2}", "4.24"),
        ("3\\sqrt{2}", "\\boxed{"), ("3\\sqrt{2}", "no idea"), ("\\sqrt{85}", "\\sqrt{42 43}"),
        ("3\\sqrt{2}", "3!\\sqrt{2}"),
        ("[-1, 7]", "|x - 3| <= 4"), ("[-1, 7]", "-4 <= x - 3 <= 4"), ("[-1, 7]", "[3 - 4, 3 + 4]"),
        ("[-1, 7]", "3 - 4 <= x <= 3 + 4"), ("[-1, 7]", "x >= -1 or x <= 7"), ("[-1, 7]", "x >= -1 and y <= 7"),
        ("[-1, 7]", "x - 3 >= -4 and x - 3 <= 4"), ("(-\\infty, 1) \\cup (2, \\infty)", "x^2 - 3x + 2 > 0"),
        ("(-\\infty, 1) \\cup (2, \\infty)", "x < 1 and x > 2"), ("(1, -2, -2)", "(2 - 1, -2, -2)"),
        ("\\{5, -\\frac{3}{2}\\}", "(x - 5)(2x + 3) = 0"), ("\\{101, 103\\}", "{100 + 1, 103}"),
        ("3\\sqrt{2}", "\\sqrt{9 + 9}"), ("6\\pi", "2*3*pi"), ("3\\sqrt{2}", "|3\\sqrt{2}|"), ("x \\le 3", "2x <= 6"),
    ],
)  # fmt: skip
async def test_other_hedged_or_unfinished_mathematics_fails(label, answer):
    assert not await passed(answer, kind="math", label=label)


async def test_the_question_repeated_is_told_apart():
    check = await check_answer(ToolTask.of(task(kind="math", label="[-1, 7]")), "|x - 3| <= 4")
    assert not check.passed and "leaves work undone" in check.detail


async def test_an_expression_without_end_holds_nobody(monkeypatch):
    monkeypatch.setattr(math_peer, "LIMIT_S", 0.5)
    spec = ToolTask.of(task(kind="math", label="3\\sqrt{2}"))
    started = time.perf_counter()
    check = await check_answer(spec, "9^{9^{9^{9}}}")
    assert not check.passed and "too long" in check.detail and time.perf_counter() - started < 20
    monkeypatch.setattr(math_peer, "LIMIT_S", 5.0)
    assert (await check_answer(spec, "\\sqrt{18}")).passed  # the next one is not troubled


def test_it_works_from_any_thread_and_any_loop():
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(asyncio.run(passed("\\sqrt{8}", kind="math", label="2\\sqrt{2}"))))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True, True, True]


def test_a_label_that_is_no_mathematics_is_known():
    assert all(unreadable(label) for label in ("\\frac{", "hello world", "the answer is 5", "x=", "1,2,", "a" * 2000))
    assert not any(unreadable(label) for label in ("42", "\\frac{1}{2}", "\\sqrt{2}", "[0, 1)", "\\{1, 2\\}", "x^2"))


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        ({"kind": "maths", "label": "1"}, "kind"), ({"kind": "math"}, "label"),
        ({"kind": "exact", "label": ""}, "label"),
        ({"kind": "math", "label": True}, "label"), ({"kind": "math", "label": float("nan")}, "label"),
        ({"kind": "json", "label": "{"}, "label"), ({"kind": "call", "label": "x"}, "label"),
        ({"kind": "call"}, "kind"),
        ({"kind": "exact", "label": "a", "tolerance": 1}, "tolerance"),
        ({"kind": "math", "label": "1", "tolerance": -1}, "tolerance"),
        ({"kind": "exact", "label": "a", "fold": ["x"]}, "fold"),
        ({"kind": "json", "label": "[" * 100_000}, "label"), ({"kind": "json", "label": "[" * 41 + "]" * 41}, "label"),
        ({"kind": "json", "label": datetime.date(2020, 1, 1)}, "label"),
        ({"kind": "exact", "label": "a", "packages": ["/etc/ssh"]}, "packages"),
        ({"kind": "exact", "label": "a", "packages": ["../etc"]}, "packages"),
        ({"kind": "exact", "label": "a", "packages": [".hidden"]}, "packages"),
        ({"kind": "exact", "label": "a", "packages": ["a", 5]}, "packages"),
        ({"kind": "call", "service": ["bank"]}, "service"), ({"kind": "call", "service": "bank", "state": 5}, "state"),
        ({"kind": "call", "service": "bank", "functions": 5}, "functions"),
        ({"kind": "call", "service": "bank", "state": "x=" + "-" * 100_000 + "1"}, "state"),
        ({"kind": "math", "label": "1", "python": 1}, "python"),
        ({"kind": "math", "label": "1", "lable": "1"}, "lable"),
        ({"kind": "math", "label": "1", "state": "x = 1"}, "state"),
        ({"kind": "math", "label": "1", "service": "calender"}, "service"),
        ({"kind": "math", "label": "1", "calls": [{"name": "f", "arguments": {}}]}, "calls"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(payload, what):
    with pytest.raises(TaskError, match=rf"t.toml:1: {what}: "):
        task(**payload)
