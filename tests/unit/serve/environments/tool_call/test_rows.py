"""Tasks from JSONL and Parquet."""

import json

import polars
import pytest

from serve.environments.tasks import Limits, TaskError
from serve.environments.tool_call.rows import load_rows
from tests.unit.serve.environments.tool_call.building import BOOK


def jsonl(folder, *rows):
    path = folder / "questions.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


def test_prompt_and_label_are_enough(tmp_path):
    path = jsonl(tmp_path, {"prompt": "1 + 1?", "label": "2"}, "", {"prompt": "2 + 2?", "label": 4})
    one, two = load_rows(path, limits=Limits(steps=3)).tasks
    assert (one.task_id, two.task_id) == ("questions-1", "questions-3") and one.source == "questions.jsonl:1"
    assert one.payload["kind"] == "math" and one.split == "train" and one.skill == "questions" and one.limits.steps == 3


def test_every_optional_column_counts(tmp_path):
    row = {
        "prompt": "Book A.", "id": 7, "kind": "call", "skill": "rooms", "split": "held_out",
        "difficulty": 5, "limits": {"steps": 4},
        "functions": json.dumps([BOOK]), "state": "booked = []", "state_check": "[x for x in booked] == [('A', 1)]",
    }  # fmt: skip
    (task,) = load_rows(jsonl(tmp_path, row)).tasks
    assert (task.task_id, task.skill, task.split, task.difficulty, task.limits.steps) == (
        "7",
        "rooms",
        "held_out",
        5,
        4,
    )
    assert task.payload["functions"][0]["name"] == "book"


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"prompt": " ", "label": "2"}, "prompt: ' '"), ({"label": "2"}, "prompt: None"),
        ({"prompt": "a"}, "label: missing"),
        ({"prompt": "a", "label": None}, "label: missing"), ({"prompt": [{"role": "user"}], "label": "2"}, "prompt: "),
        ({"prompt": "a", "label": "hello there"}, "label: 'hello there' can't be read as mathematics"),
        ({"prompt": "a", "label": "2", "kind": "sum"}, "kind: 'sum'"),
        ({"prompt": "a", "label": "2", "split": "test"}, "split: 'test'"),
        ({"prompt": "a", "label": "2", "difficulty": 9}, "difficulty: 9"),
        ({"prompt": "a", "label": "2", "id": "a b"}, "id: 'a b'"),
        ({"prompt": "a", "label": "2", "limits": {"step": 1}}, "limits: "),
        ({"prompt": "a", "label": "2", "limits": "{"}, "limits: not JSON"),
        ({"prompt": "a", "label": "2", "functions": [{"name": "x"}]}, "functions.0: "),
        ({"prompt": "a", "label": "2", "url": "x"}, "url: unknown"),
        ('{"prompt": "a", ', "not JSON"), ("[1]", "a JSON object is needed"),
        ({"prompt": "b", "label": "1", "id": "first"}, "id: 'first' stands in questions.jsonl:1"),
    ],
)  # fmt: skip
def test_a_fault_names_file_line_and_field_and_may_be_left_out(tmp_path, row, what):
    path = jsonl(tmp_path, {"prompt": "1 + 1?", "label": "2", "id": "first"}, row, {"prompt": "2 + 2?", "label": "4"})
    with pytest.raises(TaskError) as raised:
        load_rows(path)
    assert str(raised.value).startswith("questions.jsonl:2: ") and what in str(raised.value)
    rows = load_rows(path, on_error="skip")
    assert len(rows.tasks) == 2 and [str(error) for error in rows.errors] == [str(raised.value)]


def test_parquet_holds_the_same(tmp_path):
    path = tmp_path / "questions.parquet"
    polars.DataFrame(
        {
            "question": ["1 + 1?", "2 + 2?", "name?"], "answer": ["2", "4", "Ada"], "kind": [None, "math", "exact"],
            "url": ["u", "u", "u"], "functions": [None, json.dumps([BOOK]), None],
        }
    ).write_parquet(path)  # fmt: skip
    rows = load_rows(path, rename={"question": "prompt", "answer": "label"}, ignore=["url"])
    assert [task.payload["label"] for task in rows.tasks] == ["2", "4", "Ada"]
    assert rows.tasks[2].payload["kind"] == "exact" and rows.tasks[1].source == "questions.parquet: row 2"
    with pytest.raises(TaskError, match=r"questions\.parquet: row 1: .*unknown column"):
        load_rows(path)


def test_a_file_that_is_none_is_said(tmp_path):
    (tmp_path / "bad.parquet").write_bytes(b"nothing")
    (tmp_path / "empty.jsonl").write_text("\n")
    for name, what in (
        ("bad.parquet", "Parquet"),
        ("empty.jsonl", "no row"),
        ("none.jsonl", "can't be read"),
        ("a.csv", "ends in"),
    ):
        with pytest.raises(TaskError, match=what):
            load_rows(tmp_path / name)


def test_nulls_within_a_json_label_are_values(tmp_path):
    (task,) = load_rows(jsonl(tmp_path, {"prompt": "a", "label": {"a": None}, "kind": "json"})).tasks
    assert task.payload["label"] == {"a": None}


def test_labels_of_many_rows_are_read_quickly(tmp_path):
    path = jsonl(tmp_path, *({"prompt": f"{n}?", "label": n} for n in range(5000)))
    assert len(load_rows(path).tasks) == 5000


def test_what_is_nested_without_end_is_left_out_and_the_rest_goes_on(tmp_path):
    good, deep = {"prompt": "p", "label": "5"}, "[" * 100_000
    calling = {"prompt": "p", "kind": "call", "state_check": "True"}
    code = "def book(room, people=1): return " + "-" * 100_000 + "1"
    nested: list = []
    for _ in range(100):
        nested = [nested]
    rows = [
        good | {"functions": deep}, good | {"kind": "json", "label": deep}, good | {"label": nested},
        calling | {"functions": [BOOK], "state": "x = " + "-" * 100_000 + "1"},
        calling | {"functions": [BOOK | {"code": code}]},
        calling | {"functions": [BOOK | {"parameters": {"type": "object", "default": nested}}]}, good,
    ]  # fmt: skip
    found = load_rows(jsonl(tmp_path, *rows), on_error="skip")
    assert [one.source for one in found.tasks] == ["questions.jsonl:7"]
    fields = ["functions", "label", "label", "state", "functions.book.code", "functions"]
    assert [str(error).split(": ")[:2] for error in found.errors] == [
        [f"questions.jsonl:{number}", field] for number, field in enumerate(fields, 1)
    ]
