"""Episodes of the tool-call environment, in real sandboxes."""

import dataclasses

import pytest

from serve.environments.catalog import EnvironmentSettings
from serve.environments.protocol import Action, EnvironmentFailed, Observation
from serve.environments.sandbox import Sandbox
from serve.environments.tasks import TaskError
from serve.environments.tool_call import ToolCallEnvironment, make, tools
from tests.unit.serve.environments.tool_call.building import BOOK, BOOKING, call, python, said, step, task

HUNT = """
import os
for top in ("/work", "/tmp", "/home", "/opt", "/run", "/etc", "/var"):
    for folder, _, names in os.walk(top):
        for name in names:
            try:
                data = open(os.path.join(folder, name), "rb").read(99999)
            except OSError:
                continue
            if b"ocelot" + b"-5531" in data or b"two " + b"rooms" in data:
                print(folder, name)
print("over")
"""


@pytest.fixture
async def environment():
    environment = ToolCallEnvironment()
    yield environment
    await environment.close()


async def test_code_runs_and_the_answer_is_checked(environment):
    await environment.reset(task(kind="math", label="391"))
    assert await said(environment, python("x = 17\nprint('hi')\nx * 23")) == "hi\n=> 391"
    assert await said(environment, python("y = x")) == "It ran without any output: print what is to be seen."
    result = await environment.step(Action(text="So.\nAnswer: 391"))
    assert result.done and (await environment.evaluate()).score == 1.0


async def test_names_do_not_live_on_where_the_task_says_so(environment):
    await environment.reset(task(kind="math", label="1", keep_state=False))
    await step(environment, python("x = 17"))
    assert "NameError" in await said(environment, python("x"))


async def test_a_traceback_holds_only_the_policys_own_frames(environment):
    await environment.reset(task(kind="math", label="1"))
    text = await said(environment, python("def f():\n    return 1 / 0\nf()"))
    assert text.startswith("Traceback") and text.endswith("ZeroDivisionError: division by zero")
    assert text.count("File ") == 2 and "/opt" not in text


async def test_code_that_never_ends_is_stopped_and_the_episode_goes_on(environment):
    await environment.reset(task(kind="math", label="1", limits={"step_s": 0.5}))
    text = await said(environment, python("while True: pass"), python("print(2)"))
    assert "Stopped: it ran longer than 0.5 s." in text and "[2 python] not run" in text
    assert "3" in await said(environment, python("print(3)"))


async def test_calls_of_one_answer_are_labelled_and_a_fault_hides_none(environment):
    await environment.reset(task(**BOOKING))
    result = await step(environment, call("book", room="C"), call("bok", room="A"), call("book", room="A", people=2))
    lines = result.observation.text.split("\n")
    assert lines[0].startswith('[1 book] not called, its arguments are wrong: room: is "C", expected one of "A", "B"')
    assert lines[1] == "[2 bok] there is no function 'bok'; known are book, python, answer"
    assert lines[2] == '[3 book] book returned {"booked": 1}'
    assert [one["ok"] for one in result.observation.facts["calls"]] == [False, False, True] and not result.done
    assert result.observation.facts["schema_valid"] is False and result.observation.facts["error_type"] is None


async def test_facts_say_how_a_call_failed(environment):
    await environment.reset(task(**BOOKING | {"limits": {"step_s": 1.0}}))
    facts = [
        (await step(environment, one)).observation.facts
        for one in (python("1/0"), call("book", room="A", people=10), python("2"), python("while True: pass"))
    ]
    assert [one["error_type"] for one in facts] == ["ZeroDivisionError", "FunctionError", None, "KeyboardInterrupt"]
    assert all(one["schema_valid"] for one in facts) and facts[3]["timed_out"] is True


async def test_a_functions_own_fault_is_its_message_without_its_source(environment):
    await environment.reset(task(**BOOKING))
    assert await said(environment, call("book", room="A", people=10)) == (
        "book failed: ValueError: at most 9 people; book two rooms"
    )


async def test_the_policys_code_sees_neither_functions_nor_state_nor_label(environment):
    await environment.reset(task(**BOOKING | {"kind": "exact", "label": "ocelot-5531"}))
    await step(environment, call("book", room="A", people=2))
    for name in ("booked", "book", "_call"):
        assert "NameError" in await said(environment, python(name))
    assert await said(environment, python(HUNT)) == "over"


async def test_a_call_that_hangs_changes_nothing_and_what_was_done_stays(environment):
    await environment.reset(task(**BOOKING, limits={"step_s": 0.6}))
    await step(environment, call("book", room="A", people=2))
    assert "took longer than" in await said(environment, call("book", room="B", people=77))
    assert await said(environment, call("answer", value="done")) == "The final answer was taken."
    assert (await environment.evaluate()).score == 1.0


async def test_state_and_calls_are_checks_of_their_own(environment):
    await environment.reset(
        task(**BOOKING | {"calls": [{"name": "book", "arguments": {"room": "A", "people": 2}}], "only_calls": ["book"]})
    )
    await step(environment, call("book", room="A", people=2), call("book", room="B"))
    await environment.step(Action(text="Answer: done"))
    outcome = await environment.evaluate()
    assert [check.passed for check in outcome.checks] == [True, False, False]
    assert outcome.score == pytest.approx(-1 / 3)


async def test_without_a_final_answer_the_outcome_is_the_lowest_and_says_so(environment):
    await environment.reset(task(**BOOKING))
    await step(environment, call("book", room="A", people=2))
    outcome = await environment.evaluate()
    assert outcome.score == -1 and "without a final answer" in outcome.checks[0].detail


@pytest.mark.parametrize(
    ("action", "what"),
    [
        (Action(text="let me think"), "neither a call nor a final answer"),
        (Action(text="", fault="the arguments are not JSON: line 1"), "not JSON: line 1"),
        (Action(text="Answer: 1\nAnswer: 2"), "differ"),
        (Action(text="", calls=(call("answer"),)), "one argument, value"),
        (Action(text="", calls=(call("answer", value=" "),)), "empty"),
        (Action(text="", calls=(call("answer", value=[1, 2]),)), "one value"),
        (Action(text="", calls=(call("python", code=" "),)), "python takes one argument"),
        (Action(text="", calls=(call("python", source="1"),)), "python takes one argument"),
        (Action(text="", calls=(call("book"),)), "there is no function 'book'"),
        (Action(text="", calls=(call("python", code="1"), call("answer", value="1"))), "give the final answer alone"),
    ],
)
async def test_a_faulty_action_is_an_observation_that_names_the_fault(environment, action, what):
    await environment.reset(task(kind="math", label="1"))
    result = await environment.step(action)
    assert what in result.observation.text and not result.done
    assert (await environment.evaluate()).score == -1


async def test_deep_and_broken_arguments_are_no_exception(environment):
    await environment.reset(task(**BOOKING))
    deep = []
    for _ in range(5000):
        deep = [deep]
    assert "nested too deeply" in await said(environment, call("book", room=deep))
    assert "expected one of" in await said(environment, call("book", room="\ud800"))
    text = await said(environment, python("print('\\ud83d')"), python("'\\ud83d'"))
    text.encode()


async def test_output_is_cut_in_the_middle(environment):
    await environment.reset(task(**BOOKING, limits={"output_chars": 200}))
    text = await said(environment, python("print('a' * 5000)"))
    assert len(text) < 400 and "characters left out" in text
    assert len(await said(environment, call("book", room="A" * 5000))) < 400


async def test_functions_whose_source_fails_are_a_fault_of_the_task(environment):
    with pytest.raises(TaskError, match=r"t\.toml:1: functions: .*ZeroDivisionError"):
        await environment.reset(task(**BOOKING | {"state": "booked = 1 / 0"}))


async def test_a_label_that_is_no_mathematics_is_a_fault_of_the_task(environment):
    with pytest.raises(TaskError, match="label: 'the weather' can't be read as mathematics"):
        await environment.reset(task(kind="math", label="the weather"))


async def test_a_state_check_that_can_not_be_evaluated_is_no_low_score(environment):
    await environment.reset(task(**BOOKING | {"state_check": "nowhere == 1"}))
    await environment.step(Action(text="Answer: done"))
    with pytest.raises(EnvironmentFailed, match="nowhere"):
        await environment.evaluate()


async def test_state_that_is_not_there_is_a_failed_check(environment):
    await environment.reset(task(**BOOKING | {"state_check": "booked[0][1] == 2"}))
    await environment.step(Action(text="Answer: done"))
    outcome = await environment.evaluate()
    assert outcome.score == -1 and "IndexError" in outcome.checks[0].detail


async def test_a_dead_sandbox_is_a_failed_environment(environment):
    await environment.reset(task(kind="math", label="1"))
    await environment._python.close()
    with pytest.raises(EnvironmentFailed):
        await step(environment, python("print(1)"))


async def test_it_can_be_closed_twice_and_used_again(environment):
    await environment.close()
    await environment.reset(task(kind="math", label="1"))
    first = environment._python.pid
    await environment.reset(task(kind="exact", label="b"))
    assert environment._python.pid != first
    await environment.close()
    await environment.close()
    with pytest.raises(EnvironmentFailed, match="reset"):
        await environment.evaluate()


async def test_what_can_be_called_is_told(environment):
    made = task(**BOOKING)
    first = await environment.reset(made)
    assert isinstance(first, Observation) and "book(room: one of" in first.text and "Books a room." in first.text
    assert [one["function"]["name"] for one in tools(made)] == ["python", "book", "answer"]
    assert tools(made)[1]["function"]["parameters"]["additionalProperties"] is False
    assert [one["function"]["name"] for one in tools(task(kind="exact", label="a", python=False))] == ["answer"]
    assert BOOK["parameters"].get("additionalProperties") is None  # the task's own is not changed


async def test_a_package_is_there_only_when_the_task_names_it(environment):
    code = "import packaging\nprint(packaging.__name__)"
    await environment.reset(task(kind="math", label="1"))
    assert "ModuleNotFoundError" in await said(environment, python(code))
    await environment.reset(task(kind="math", label="1", packages=["packaging"]))
    assert await said(environment, python(code)) == "packaging"
    with pytest.raises(TaskError, match="no-such-package"):
        await environment.reset(task(kind="math", label="1", packages=["no-such-package"]))


async def test_the_sandboxes_come_from_where_the_settings_say():
    asked = []

    async def start(limits, packages, warm):
        asked.append((limits, packages, warm))
        return await Sandbox.start(limits, packages, warm)

    environment = make(EnvironmentSettings(start=start))
    try:
        await environment.reset(task(**BOOKING))
        await step(environment, python("1"))
        assert len(asked) == 2 and asked[1][0] == task(**BOOKING).limits
    finally:
        await environment.close()


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"payload": None}, "t.toml:1: payload: None"), ({"payload": [1]}, "payload: "),
        ({"payload": "x"}, "payload: "),
        ({"instruction": 5}, "t.toml:1: instruction: 5"),
        ({"payload": {"kind": "exact", "label": "x", "packages": ["/tmp"]}}, "packages: '/tmp'"),
    ],
)  # fmt: skip
async def test_a_task_of_wrong_kinds_is_a_task_error(environment, changes, what):
    with pytest.raises(TaskError, match=what):
        await environment.reset(dataclasses.replace(task(kind="exact", label="x"), **changes))


async def test_no_observation_is_longer_than_twice_the_limit(environment):
    await environment.reset(task(limits={"output_chars": 1000}, python=False, **BOOKING))
    long = "x" * 10**6
    for calls in ([call(long)], [call(long)] * 30, [call("answer", **{f"a{n}" * 9: 1 for n in range(10**5)})],
                  [call("book", **{long: 1})], [call("book", room=long)] * 30):  # fmt: skip
        result = await step(environment, *calls)
        assert len(result.observation.text) < 2200 and len(str(result.observation.facts)) < 5000
    assert "and 99995 more" in await said(environment, call("answer", **{f"a{n}": 1 for n in range(10**5)}))
    text = (await environment.step(Action(text="", fault=long))).observation.text
    assert len(text) < 2200 and "characters of this result left out" in text


@pytest.mark.parametrize("check", ["min([]) > 0", "1 / len([]) > 0", "int('x') == 1", "{}['a']", "[].a", "1 < 'a'"])
async def test_a_state_that_a_check_can_not_be_applied_to_fails_it(environment, check):
    await environment.reset(task(**BOOKING | {"state_check": [check, "booked == []"]}))
    await step(environment, call("answer", value="x"))
    outcome = await environment.evaluate()
    assert [one.passed for one in outcome.checks] == [False, True] and "Error" in outcome.checks[0].detail


@pytest.mark.parametrize("check", ["nowhere", "__import__('nowhere')", "(f := lambda: f())()"])
async def test_a_state_check_that_is_broken_is_a_failure_of_the_environment(environment, check):
    await environment.reset(task(**BOOKING | {"state_check": check}))
    await step(environment, call("answer", value="x"))
    with pytest.raises(EnvironmentFailed, match="the state check"):
        await environment.evaluate()
