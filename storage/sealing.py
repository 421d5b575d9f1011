"""Sealing: one version's journal becomes Parquet shards, and only then goes away.

What it does: `seal`, safe at any crash and to be called again.
What it leaves out: when to seal (the learner decides). Alarms and `session_done` lines are not sealed; lines that
can't be read are kept aside as `<root>/<model>/unreadable-<ulid>.jsonl`.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import orjson
import polars as pl
import pyarrow as pa

from storage.arrow import dumps, schema, to_row
from storage.objects import ObjectStore
from storage.records import Turn, new_id
from storage.segments import freeze, parse, read_lines, segments, version_folder, version_of
from storage.tables import TABLE_OF, TABLES, put, scan

PLAN = "SEAL.json"  # in a version's folder while it is being sealed
ROWS_AT_ONCE = 64  # journal lines held as Python objects


def seal(
    journal_root: Path,
    model: str,
    version: int,
    objects: ObjectStore,
    on_frozen: Callable[[], object] | None = None,
) -> list[str]:
    """Seal all segments of one version into shards, then remove them: the keys of the shards.

    Safe at any crash and to call again: a plan is on the disk before the first shard, its shards have their names
    from it, and the segments go only when all of them are written. What a writer appends meanwhile lands in a fresh
    segment, for the next time. `on_frozen` is called when the segments take no more and are not removed yet: who
    follows the journal reads their last lines then.
    """
    folder = version_folder(journal_root, model, version)
    if not folder.exists():
        return []
    keys: list[str] = []
    with _sealer(folder.parent):
        frozen = [freeze(path) for path in segments(folder)]
        if on_frozen:
            on_frozen()
        if (folder / PLAN).exists():
            keys += _carry_out(folder, objects)
        files = [path.name for path in frozen if path.exists()]
        if files:
            _write_synced(folder / PLAN, dumps({"shard": new_id(), "files": files}))
            keys += _carry_out(folder, objects)
    with contextlib.suppress(OSError):  # a writer has begun a new segment
        folder.rmdir()
    return keys


def _carry_out(folder: Path, objects: ObjectStore) -> list[str]:
    plan = orjson.loads((folder / PLAN).read_bytes())
    files = [path for name in plan["files"] if (path := folder / name).exists()]
    keys = []
    if len(files) == len(plan["files"]):  # else they were being removed: every shard is written
        tables, turns, unreadable = _read(files)
        if unreadable:
            _write_synced(folder.parent / f"unreadable-{plan['shard']}.jsonl", b"".join(unreadable))
        tracks = _tracks(tables, objects)
        for name, arrow in tables.items():
            if name == "exchanges":
                arrow = _with_turns(arrow, turns)
            keys += put(name, arrow, _row_tracks(name, arrow, tracks), plan["shard"], objects)
    for path in files:
        path.unlink()
    (folder / PLAN).unlink()
    return keys


def _read(files: Sequence[Path]) -> tuple[dict[str, pa.Table], dict[str, Turn], list[bytes]]:
    """The segments' records as one Arrow table each, the turns by exchange, and the lines that can't be read."""
    batches: dict[str, list[pa.Table]] = {}
    rows: dict[str, list[dict]] = {}
    turns: dict[str, Turn] = {}
    unreadable = []

    def flush(name: str) -> None:
        batches.setdefault(name, []).append(pa.Table.from_pylist(rows.pop(name), schema=schema(TABLES[name].cls)))

    for path in files:
        version = version_of(path.parent.name)
        assert version is not None
        for line in read_lines(path):
            event = parse(line, version, path)
            if event.kind == "alarm" and event.record.get("source") == "journal":
                unreadable.append(line)
            if event.kind not in TABLE_OF:
                continue
            if isinstance(event.record, Turn):
                turns[event.record.exchange_id] = event.record
            name = TABLE_OF[event.kind]
            rows.setdefault(name, []).append(to_row(event.record))
            if len(rows[name]) >= ROWS_AT_ONCE:
                flush(name)
    for name in list(rows):
        flush(name)
    return {name: pa.concat_tables(parts) for name, parts in batches.items()}, turns, unreadable


def _with_turns(arrow: pa.Table, turns: dict[str, Turn]) -> pa.Table:
    """Exchanges with what the tracker decided about them."""
    ids = arrow["exchange_id"].to_pylist()
    for column in ("session_id", "parent_id", "kind", "why_kind"):
        own = arrow[column].to_pylist()
        values = [
            getattr(turns[exchange_id], column) if exchange_id in turns else old
            for exchange_id, old in zip(ids, own, strict=True)
        ]
        index = arrow.schema.get_field_index(column)
        arrow = arrow.set_column(index, arrow.schema.field(index), pa.array(values, arrow.schema.field(index).type))
    return arrow


def _tracks(tables: dict[str, pa.Table], objects: ObjectStore) -> dict[str, str]:
    """The track of each exchange (and sample) that these tables speak of; earlier shards are asked where needed."""
    tracks: dict[str, str] = {}
    wanted: set[str] = set()
    for name, arrow in tables.items():
        if "track" in arrow.column_names:
            for column in TABLES[name].ids:
                tracks.update(zip(arrow[column].to_pylist(), arrow["track"].to_pylist(), strict=True))
        elif "exchange_id" in arrow.column_names:
            wanted.update(arrow["exchange_id"].to_pylist())
    missing = wanted - tracks.keys()
    if missing:
        found = scan("exchanges", objects).select("exchange_id", "track")
        tracks.update(found.filter(pl.col("exchange_id").is_in(list(missing))).collect().iter_rows())
    return tracks


def _row_tracks(name: str, arrow: pa.Table, tracks: dict[str, str]) -> list[str]:
    if "track" in arrow.column_names:
        return arrow["track"].to_pylist()
    if name == "updates":
        first = [ids[0] if ids else "" for ids in arrow["sample_ids"].to_pylist()]
        return [tracks.get(sample_id, "personal") for sample_id in first]
    return [tracks.get(exchange_id, "personal") for exchange_id in arrow["exchange_id"].to_pylist()]


def _write_synced(path: Path, data: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _sealer(folder: Path) -> Iterator[None]:
    """One sealer per model and machine at a time."""
    with (folder / ".seal.lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
