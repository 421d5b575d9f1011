"""The tables of the Parquet dataset: their columns, reading them lazily, adding rows.

What it does: `scan` gives a table as a LazyFrame, `write` adds records, one row per id, sorted by time.
What it leaves out: sealing the journal (`storage/sealing.py`).

    exchanges|turns|next_states|verdicts|samples|dispositions|episodes|updates|scores/
        track=personal/day=2026-11-29/<ulid>.parquet      immutable, zstd, sorted by time, one row per id
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from ulid import ULID

from storage.arrow import schema, to_row
from storage.objects import ObjectStore
from storage.records import (
    Disposition,
    Episode,
    Exchange,
    NextState,
    Sample,
    Score,
    Turn,
    Update,
    Verdict,
    new_id,
)

SHARD_BYTES = 128 << 20  # of Arrow memory; a longer table is cut into several shards


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the dataset."""

    cls: type
    ids: tuple[str, ...]  # the columns that name a row
    time: str | None  # the column that it is sorted and partitioned by; None: the time in its first id
    kinds: tuple[str, ...]  # the journal kinds that end up in it


TABLES: dict[str, Table] = {
    "exchanges": Table(Exchange, ("exchange_id",), "received_at", ("exchange",)),
    "turns": Table(Turn, ("exchange_id",), "decided_at", ("turn",)),
    "next_states": Table(NextState, ("next_state_id",), "arrived_at", ("next_state", "feedback")),
    "verdicts": Table(Verdict, ("verdict_id",), "judged_at", ("verdict",)),
    "samples": Table(Sample, ("sample_id",), "created_at", ("sample",)),
    "dispositions": Table(Disposition, ("exchange_id", "sample_id", "reason"), "decided_at", ("disposition",)),
    "episodes": Table(Episode, ("episode_id",), "ended_at", ()),
    "updates": Table(Update, ("update_id",), "ended_at", ("update",)),
    "scores": Table(Score, ("update_id", "sample_id"), None, ()),
}
TABLE_OF = {kind: name for name, table in TABLES.items() for kind in table.kinds}


def table_of(name: str) -> Table:
    """One table by its name. ValueError for a name that there is not."""
    if name not in TABLES:
        raise ValueError(f"dataset: there is no table {name!r}; there are: {', '.join(TABLES)}")
    return TABLES[name]


# reading


@cache
def polars_schema(name: str) -> dict[str, pl.DataType]:
    """The columns of a table as Polars types, the partitions' own among them."""
    frame = pl.from_arrow(schema(table_of(name).cls).empty_table())
    assert isinstance(frame, pl.DataFrame)
    return {**frame.schema, "track": pl.String(), "day": pl.Date()}


def scan(name: str, objects: ObjectStore, **partitions: str) -> pl.LazyFrame:
    """A table as a LazyFrame: `scan("samples", store, track="terminal", day="2026-11-29")`.

    Columns that a shard lacks are null. A table without shards is empty, not an error.
    """
    columns = polars_schema(name)
    if partitions.keys() - {"track", "day"}:
        raise ValueError(f"dataset: the partitions are track and day, not {', '.join(partitions)}: use .filter()")
    if not objects.list(f"{name}/", limit=1):
        return pl.LazyFrame(schema=columns)
    frame = pl.scan_parquet(
        objects.url(f"{name}/**/*.parquet"),
        storage_options=objects.polars_options(),
        schema={key: kind for key, kind in columns.items() if key != "day"},
        hive_partitioning=True,
        hive_schema={"track": pl.String, "day": pl.Date},
        missing_columns="insert",
        extra_columns="ignore",
        cast_options=pl.ScanCastOptions(missing_struct_fields="insert", extra_struct_fields="ignore"),
    )
    if "track" in partitions:
        frame = frame.filter(pl.col("track") == partitions["track"])
    if "day" in partitions:
        frame = frame.filter(pl.col("day") == pl.lit(partitions["day"]).str.to_date())
    return frame.select(*columns)


# writing


def write(
    table: str, records: Iterable[Any], objects: ObjectStore, name: str | None = None, track: str = "personal"
) -> list[str]:
    """Add records to a table: the keys of the new shards. The same shard `name` again replaces what it wrote.

    `track` is for records that carry none of their own.
    """
    cls, rows = table_of(table).cls, [to_row(record) for record in records]
    arrow = pa.Table.from_pylist(rows, schema=schema(cls))
    tracks = [row.get("track", track) for row in rows]
    return list(put(table, arrow, tracks, name or new_id(), objects))


def put(name: str, arrow: pa.Table, tracks: Sequence[str], shard: str, objects: ObjectStore) -> Iterator[str]:
    """Write one table's rows into its partitions: one row per id (the last), sorted by time."""
    table = TABLES[name]
    if not arrow.num_rows:
        return
    last = {
        row: index for index, row in enumerate(zip(*(arrow[column].to_pylist() for column in table.ids), strict=True))
    }
    keep = sorted(last.values())
    arrow = arrow.take(keep)
    times = _times(table, arrow)
    places: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for index, (at, micros) in enumerate(zip(keep, times, strict=True)):
        day = datetime.fromtimestamp(micros / 1e6, UTC).date().isoformat()
        places.setdefault((tracks[at], day), []).append((micros, index))
    for (track, day), rows in sorted(places.items()):
        part = arrow.take([index for _, index in sorted(rows)])
        for number, piece in enumerate(_pieces(part)):
            key = f"{name}/track={track}/day={day}/{shard}{f'-{number}' if number else ''}.parquet"
            data = io.BytesIO()
            pq.write_table(piece, data, compression="zstd")
            objects.put(key, data.getvalue())
            yield key


def _times(table: Table, arrow: pa.Table) -> list[int]:
    """Microseconds since 1970 of each row."""
    if table.time is not None:
        return pc.cast(arrow[table.time], pa.int64()).to_pylist()
    return [ULID.from_str(text).milliseconds * 1000 for text in arrow[table.ids[0]].to_pylist()]


def _pieces(arrow: pa.Table) -> Iterator[pa.Table]:
    rows = max(1, arrow.num_rows * SHARD_BYTES // max(arrow.nbytes, 1))
    for start in range(0, arrow.num_rows, rows):
        yield arrow.slice(start, rows)
