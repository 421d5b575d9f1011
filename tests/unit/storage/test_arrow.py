"""Records to Arrow and JSON and back, old data with new classes, and text that is no UTF-8."""

import math
from dataclasses import fields, replace

import orjson
import pyarrow as pa
import pytest

from storage.arrow import dumps, from_json, from_row, schema, to_json, to_row
from storage.records import Episode, Exchange, Sample, Score, Step, Version, VersionSpan, new_id
from tests.unit.storage import builders

RECORDS = [
    builders.exchange(),
    builders.exchange(tools=[{"type": "function"}], session_fields={"user": "x"}, turn_type="side", first_token_s=None),
    builders.turn("a"),
    builders.next_state("a", score=-1.0, role="feedback"),
    builders.verdict("a", "b", reward=None, error="judge timed out"),
    builders.sample("a", hint="say it shorter", enhanced_prompt_ids=(1, 9, 2)),
    builders.disposition("a"),
    builders.update(("s1", "s2")),
    builders.version(3, 2),
    Score(
        sample_id="s",
        update_id=new_id(),
        logp_old=(-0.5,),
        logp_teacher=None,
        logp_ref=(-0.25,),
        advantage=(1.0,),
        weight=(1.0,),
    ),
    Episode(
        episode_id="wave-1/task-2/0",
        task_id="task-2",
        track="terminal",
        group_id="g",
        steps=(Step(index=0, exchange_id=None, action="ls", observation="a b", reward=None),),
        outcome=None,
        process_rewards=(0.5,),
        status="error",
        reason="sandbox did not start",
        started_at=1.5,
        ended_at=2.5,
    ),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_there_and_back(record: object) -> None:
    cls = type(record)
    assert from_json(cls, orjson.loads(to_json(record))) == record
    table = pa.Table.from_pylist([to_row(record)], schema=schema(cls))
    [row] = table.to_pylist()
    assert row["schema_version"] == cls.SCHEMA_VERSION
    back = from_row(cls, row)
    for field in fields(cls):
        ours, theirs = getattr(record, field.name), getattr(back, field.name)
        assert theirs == (pytest.approx(ours, abs=1e-6) if isinstance(ours, float) else ours), field.name


def test_types_are_the_ones_promised() -> None:
    arrow = schema(Exchange)
    assert arrow.field("prompt_ids").type == pa.list_(pa.int32())
    assert arrow.field("response_logprobs").type == pa.list_(pa.float32())
    assert arrow.field("received_at").type == pa.timestamp("us", tz="UTC")
    assert arrow.field("messages").type == pa.string()
    assert arrow.field("version_spans").type == pa.list_(
        pa.struct([("version", pa.int64()), ("start", pa.int64()), ("end", pa.int64())])
    )
    assert arrow.names[-1] == "schema_version"


def test_old_data_reads_with_new_classes() -> None:
    obj = orjson.loads(to_json(builders.exchange()))
    for name in ("track", "error", "session_done", "first_token_s"):  # defaults, and one that may be None
        del obj[name]
    obj["a field of tomorrow"] = 1
    record = from_json(Exchange, obj)
    assert (record.track, record.error, record.session_done, record.first_token_s) == ("personal", None, False, None)
    row = to_row(builders.exchange()) | {"track": None, "received_at": 1.0}
    assert from_row(Exchange, row).track == "personal"
    del obj["tenant"]
    with pytest.raises(ValueError, match="Exchange: field tenant is missing"):
        from_json(Exchange, obj)


def test_checks_run_on_what_is_read() -> None:
    obj = orjson.loads(to_json(builders.sample("a")))
    obj["mask"] = [1]
    with pytest.raises(ValueError, match="must be of one length"):
        from_json(Sample, obj)


def test_what_json_can_not_hold_is_mended() -> None:
    record = builders.exchange(
        messages=[{"role": "user", "content": "half \ud83d, whole \ud83d\ude00", "n": 2**70, 3: float("nan")}]
    )
    [message] = from_json(Exchange, orjson.loads(to_json(record))).messages
    assert message["content"] == "half �, whole 😀"
    assert message["3"] is None
    logprobs = from_json(Exchange, orjson.loads(to_json(replace(record, response_logprobs=(math.nan, -1.0)))))
    assert math.isnan(logprobs.response_logprobs[0])
    assert dumps({"spans": (VersionSpan(version=1, start=0, end=1), "\ud800")})


def test_version_is_one_line_of_json() -> None:
    data = to_json(builders.version(1, 0))
    assert b"\n" not in data
    assert from_json(Version, orjson.loads(data)).number == 1
