"""The dataset: what every reader and writer of trajectories needs, in one place.

What it does: `scan` a table with Polars, `write` records into one, `seal` a version's journal, `read_turns` for one
row per turn out of journal and shards together, `journal_versions` for what is not sealed yet.
What it leaves out: nothing of its own: see `storage/tables.py`, `storage/sealing.py`, `storage/turns.py`.

    from storage import dataset
    dataset.scan("samples", store, track="personal").filter(pl.col("reward") == 1).collect()

A plain `pl.scan_parquet(store.url("samples/"), storage_options=store.polars_options())` reads it as well; `scan` also
fills columns that older shards lack.
"""

from storage.sealing import seal
from storage.segments import open_versions as journal_versions
from storage.tables import TABLES, polars_schema, scan, write
from storage.turns import read_turns

__all__ = ["TABLES", "journal_versions", "polars_schema", "read_turns", "scan", "seal", "write"]
