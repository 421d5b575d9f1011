"""The dataset in a real S3: sealing and its crashes, late records, new columns, plain Polars."""

import io
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage import dataset, sealing
from storage.arrow import from_row, schema, to_row
from storage.journal import JournalTail, JournalWriter, segments, version_folder
from storage.objects import ObjectStore, StoreDown
from storage.records import Exchange, Sample, Score, new_id
from tests.unit.storage import builders
from tests.unit.storage.builders import MODEL

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC).timestamp()


def talk(root: Path, count: int = 5, version: int = 1) -> list[Exchange]:
    """`count` turns through to samples, as a gateway and a learner write them."""
    made = []
    with JournalWriter(root, MODEL, "gateway") as gateway, JournalWriter(root, MODEL, "learner") as learner:
        for number in range(count):
            one = builders.exchange(version=version, received_at=NOON - number, messages=_asks(f"question {number}"))
            state = builders.next_state(one.exchange_id, arrived_at=NOON)
            gateway.append("exchange", one, version)
            learner.append("turn", builders.turn(one.exchange_id, decided_at=NOON, version=version), version)
            learner.append("next_state", state, version)
            learner.append("verdict", builders.verdict(one.exchange_id, state.next_state_id, judged_at=NOON), version)
            learner.append("sample", builders.sample(one.exchange_id, created_at=NOON), version)
            made.append(one)
        gateway.append("session_done", {"tenant": "owner", "session_id": "s1", "at": NOON}, version)
    return made


def _asks(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_sealed_is_what_was_journaled(tmp_path: Path, objects: ObjectStore) -> None:
    made = talk(tmp_path)
    keys = dataset.seal(tmp_path, MODEL, 1, objects)
    assert not version_folder(tmp_path, MODEL, 1).exists()
    assert {key.split("/")[0] for key in keys} == {"exchanges", "turns", "next_states", "verdicts", "samples"}
    assert all(key.split("/")[1:3] == ["track=personal", "day=2026-11-29"] for key in keys)
    frame = dataset.scan("exchanges", objects).collect()
    assert frame["received_at"].is_sorted()
    back = [from_row(Exchange, row) for row in frame.iter_rows(named=True)]
    assert [one.session_id for one in back] == ["s1"] * 5
    assert [replace(one, session_id=None, kind=None, why_kind=None) for one in reversed(back)] == made
    assert dataset.seal(tmp_path, MODEL, 1, objects) == []
    [shard] = [key for key in keys if key.startswith("exchanges")]
    parquet = pq.ParquetFile(io.BytesIO(objects.get(shard)))
    assert parquet.metadata.row_group(0).column(0).compression == "ZSTD"


def test_plain_polars_reads_it(tmp_path: Path, objects: ObjectStore) -> None:
    talk(tmp_path)
    dataset.seal(tmp_path, MODEL, 1, objects)
    plain = pl.scan_parquet(objects.url("samples/"), storage_options=objects.polars_options())
    assert plain.filter(pl.col("track") == "personal", pl.col("reward") == 1).select(pl.len()).collect().item() == 5
    joined = plain.join(
        pl.scan_parquet(objects.url("exchanges/"), storage_options=objects.polars_options()), on="exchange_id"
    )
    assert joined.collect().height == 5
    assert dataset.scan("samples", objects, track="terminal").collect().is_empty()
    assert dataset.scan("samples", objects, day="2026-11-29").collect().height == 5
    assert dataset.scan("episodes", objects).collect().is_empty()  # no shard yet
    with pytest.raises(ValueError, match="there is no table 'sample'"):
        dataset.scan("sample", objects)
    with pytest.raises(ValueError, match=r"use \.filter"):
        dataset.scan("samples", objects, tenant="owner")


def test_old_shards_without_a_newer_column(objects: ObjectStore) -> None:
    old = pa.Table.from_pylist([to_row(builders.sample("a"))], schema=schema(Sample)).drop_columns(["loss_weight"])
    spans = [[{"version": 1, "start": 0}]]  # a struct that had fewer fields then
    at = old.schema.get_field_index("versions")
    old = old.set_column(
        at, "versions", pa.array(spans, pa.list_(pa.struct({"version": pa.int64(), "start": pa.int64()})))
    )
    buffer = io.BytesIO()
    pq.write_table(old, buffer)
    objects.put("samples/track=personal/day=2026-01-01/old.parquet", buffer.getvalue())
    future = pa.Table.from_pylist([to_row(builders.sample("b"))], schema=schema(Sample))
    buffer = io.BytesIO()
    pq.write_table(future.append_column("of_tomorrow", pa.array(["x"])), buffer)
    objects.put("samples/track=personal/day=2027-01-01/new.parquet", buffer.getvalue())
    dataset.write("samples", [builders.sample("c")], objects)
    frame = dataset.scan("samples", objects).collect()
    assert sorted(frame["exchange_id"]) == ["a", "b", "c"]
    assert frame.filter(exchange_id="a")["loss_weight"].to_list() == [None]
    assert "of_tomorrow" not in frame.columns


def test_duplicates_become_one_row(tmp_path: Path, objects: ObjectStore) -> None:
    one, sample = builders.exchange(), builders.sample("x")
    with JournalWriter(tmp_path, MODEL, "a") as writer:
        for _ in range(3):
            writer.append("exchange", one, 1)
            writer.append("sample", sample, 1)
    with JournalWriter(tmp_path, MODEL, "b") as writer:
        writer.append("exchange", one, 1)
    dataset.seal(tmp_path, MODEL, 1, objects)
    assert dataset.scan("exchanges", objects).collect().height == 1
    assert dataset.scan("samples", objects).collect().height == 1


class _StoreThatStops(ObjectStore):
    """Stands in for a store that goes away: the real one until `left` puts are done."""

    left = 0

    def put(self, key: str, data: bytes, **condition: object) -> str:
        if self.left == 0:
            raise StoreDown("away")
        self.left -= 1
        return super().put(key, data, **condition)


@pytest.mark.parametrize("puts", [0, 1, 3])
def test_store_away_amid_sealing(tmp_path: Path, objects: ObjectStore, puts: int) -> None:
    made = talk(tmp_path)
    objects.__class__ = _StoreThatStops
    objects.left = puts
    with pytest.raises(StoreDown):
        dataset.seal(tmp_path, MODEL, 1, objects)
    objects.__class__ = ObjectStore
    tail = JournalTail(tmp_path, MODEL)
    assert len([event for event in tail.poll() if event.kind == "exchange"]) == 5  # still in the journal
    with JournalWriter(tmp_path, MODEL, "gateway") as writer:
        writer.append("exchange", builders.exchange(), 1)
    dataset.seal(tmp_path, MODEL, 1, objects)
    frame = dataset.scan("exchanges", objects).collect()
    assert frame.height == frame["exchange_id"].n_unique() == len(made) + 1
    assert not version_folder(tmp_path, MODEL, 1).exists()


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_killed_while_segments_are_removed(tmp_path: Path, objects: ObjectStore, removed: int) -> None:
    talk(tmp_path)
    folder = version_folder(tmp_path, MODEL, 1)
    unlinked = []
    real = Path.unlink

    def unlink(path: Path, **how: bool) -> None:
        if path.parent == folder and len(unlinked) == removed:
            raise KeyboardInterrupt  # the kill
        unlinked.append(path)
        real(path, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "unlink", unlink)
        with pytest.raises(KeyboardInterrupt):
            dataset.seal(tmp_path, MODEL, 1, objects)
    assert (folder / sealing.PLAN).exists()
    dataset.seal(tmp_path, MODEL, 1, objects)
    assert dataset.scan("exchanges", objects).collect().height == 5
    assert not folder.exists()


def test_late_records_and_writers_that_go_on(tmp_path: Path, objects: ObjectStore) -> None:
    frozen = []
    with JournalWriter(tmp_path, MODEL, "gateway") as writer:
        one = builders.exchange(track="terminal")
        writer.append("exchange", one, 1).result(5)
        tail = JournalTail(tmp_path, MODEL)
        dataset.seal(tmp_path, MODEL, 1, objects, on_frozen=lambda: frozen.extend(tail.poll()))
        assert [event.record for event in frozen] == [one]
        writer.append("turn", builders.turn(one.exchange_id), 1).result(5)  # later than the seal
        writer.append("exchange", builders.exchange(), 1).result(5)
        assert len(tail.poll()) == 2
        dataset.seal(tmp_path, MODEL, 1, objects)
    assert dataset.scan("exchanges", objects).collect().height == 2
    assert dataset.scan("turns", objects).collect()["track"].to_list() == ["terminal"]  # asked of the sealed exchange


def test_what_can_not_be_read_is_kept_aside(tmp_path: Path, objects: ObjectStore) -> None:
    talk(tmp_path, 1)
    path = segments(version_folder(tmp_path, MODEL, 1))[0]
    path.write_bytes(path.read_bytes() + b"not json\n" + b'{"torn')
    dataset.seal(tmp_path, MODEL, 1, objects)
    [aside] = (tmp_path / MODEL).glob("unreadable-*.jsonl")
    assert aside.read_bytes() == b"not json\n"


def test_write_and_replace(objects: ObjectStore) -> None:
    update_id = new_id()
    scores = [
        Score(
            sample_id=f"s{number}",
            update_id=update_id,
            logp_old=(-1.0,),
            logp_teacher=None,
            logp_ref=None,
            advantage=(1.0,),
            weight=(1.0,),
        )
        for number in range(3)
    ]
    keys = dataset.write("scores", scores, objects, name=update_id)
    assert dataset.write("scores", scores, objects, name=update_id) == keys
    assert dataset.scan("scores", objects).collect().height == 3
    assert dataset.write("scores", [], objects) == []


def test_one_row_per_turn_from_both(tmp_path: Path, objects: ObjectStore) -> None:
    sealed = talk(tmp_path, 2, version=1)
    dataset.seal(tmp_path, MODEL, 1, objects)
    late = talk(tmp_path, 1, version=2)
    lone = builders.exchange(answer={"role": "assistant", "content": None, "tool_calls": [_call("ls", "{}")]})
    with JournalWriter(tmp_path, MODEL, "x") as writer:
        writer.append("exchange", lone, 2)
        writer.append("disposition", builders.disposition(sealed[0].exchange_id, reason="too old"), 1)
        [sample_id] = dataset.scan("samples", objects).filter(exchange_id=sealed[1].exchange_id).collect()["sample_id"]
        writer.append("update", builders.update((sample_id,)), 2)
    rows = {row["exchange_id"]: row for row in dataset.read_turns(tmp_path, MODEL, objects)}
    assert len(rows) == 4
    row = rows[sealed[1].exchange_id]
    assert (row["question"], row["answer"], row["next_state"]) == ("question 1", "hi", "thanks")
    assert (row["kind"], row["reward"], row["votes"], row["judge"]) == ("main", 1, [1], "rules/1")
    assert (row["trained_in"], row["session_id"]) == (2, "s1")
    assert rows[sealed[0].exchange_id]["reason"] == "too old"
    assert rows[lone.exchange_id]["answer"] == "ls({})"
    assert rows[lone.exchange_id]["kind"] is None
    assert {row["exchange_id"] for row in dataset.read_turns(tmp_path, MODEL, None)} == {
        late[0].exchange_id,
        lone.exchange_id,
    }
    assert len(dataset.read_turns(tmp_path, MODEL, objects, session="s1", last=2)) == 2
    assert dataset.read_turns(tmp_path, MODEL, objects, tenant="nobody") == []
    assert orjson.dumps(list(rows.values()))


def _call(name: str, arguments: str) -> dict[str, dict[str, str]]:
    return {"function": {"name": name, "arguments": arguments}}
