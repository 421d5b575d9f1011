"""The audit: what became of every accepted turn and every sample, from journal, Parquet and manifests alone.

What it does: counts, and finds what must not be: accepted turns that are nowhere, samples trained twice or lost.
What it leaves out: MLflow, the running services and their memory: nothing of them is asked.

Wrong (exit code 1) is
  missing        an exchange id of the client's own list that is neither in the journal nor sealed
  altered        one that is there, without the words (a nonce) that the client's list says it was sent with
  trained twice  a sample, or a turn by two samples, consumed more than once along the head's line
  lost           a sealed sample neither consumed nor disposed of, so that nothing will ever train or name it
  undecided      an exchange older than `settle_s` that no tracker has placed; a sealed main turn that has neither a
                 sample nor a reason

Run: python -m storage.audit --home DIR --model NAME --store s3://bucket/prefix [--endpoint URL] [--expect FILE]
     (keys from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; `clawrl audit` fills all of this in)
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from storage.objects import ObjectStore, StoreDown
from storage.records import Disposition, Exchange, Sample, Turn
from storage.segments import open_versions, read_segment, segments, version_folder
from storage.tables import scan
from storage.versions import VersionStore

SHOWN = 5  # ids of each finding in the table


@dataclass(slots=True)
class _Seen:
    """What journal and Parquet hold, by id. A second copy of a record changes nothing."""

    exchanges: dict[str, float] = field(default_factory=dict)  # id -> received at, Unix seconds
    served: set[str] = field(default_factory=set)  # exchanges with an answer that could be learned from
    turns: dict[str, str] = field(default_factory=dict)  # exchange id -> main or side
    samples: dict[str, str] = field(default_factory=dict)  # sample id -> exchange id
    disposed_samples: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)  # exchange id -> the last reason
    open_samples: set[str] = field(default_factory=set)  # in the journal: replayed at a start
    open_exchanges: set[str] = field(default_factory=set)
    unreadable: list[str] = field(default_factory=list)
    wanted: dict[str, str] = field(default_factory=dict)  # exchange id -> what its messages must hold
    altered: set[str] = field(default_factory=set)

    def compare(self, exchange_id: str, messages: str) -> None:
        """Hold the messages, as JSON, of an exchange on the client's list against it."""
        if self.wanted[exchange_id] not in messages:
            self.altered.add(exchange_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What was found. Ids are exchange ids for turns, sample ids for samples."""

    accepted: int  # exchanges in journal and Parquet
    turns: int  # of them, placed by the tracker
    main: int
    samples: int
    trained: int  # consumed along the head's line
    pending: int  # in the journal, to be trained or disposed of yet
    head: int | None
    versions: int
    withdrawn: int
    reasons: dict[str, int]  # why turns and samples did not train
    missing: tuple[str, ...]
    altered: tuple[str, ...]
    trained_twice: tuple[str, ...]
    lost: tuple[str, ...]
    undecided: tuple[str, ...]
    # worth a look, not wrong
    withdrawn_only: tuple[str, ...]  # consumed only by versions that are no longer in the line
    unknown: tuple[str, ...]  # consumed, and found in neither journal nor Parquet
    dangling: tuple[str, ...]  # turns, samples, reasons whose exchange is not there
    unreadable: tuple[str, ...]  # lines of the journal

    @property
    def wrong(self) -> dict[str, tuple[str, ...]]:
        """The findings that must not be, by name."""
        return {
            "missing": self.missing,
            "altered": self.altered,
            "trained twice": self.trained_twice,
            "lost": self.lost,
            "undecided": self.undecided,
        }

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not any(self.wrong.values())

    def table(self) -> str:
        """The report for people."""
        rows = [
            ("accepted", f"{self.accepted} exchanges, {self.turns} placed, {self.main} main"),
            ("samples", f"{self.samples} made, {self.trained} trained, {self.pending} pending"),
            ("versions", f"{self.versions} committed, {self.withdrawn} withdrawn, head {self.head}"),
            ("left out", ", ".join(f"{count} {name}" for name, count in sorted(self.reasons.items())) or "none"),
            *((name, _shown(ids, "none")) for name, ids in self.wrong.items()),
        ]
        notes = {
            "withdrawn only": self.withdrawn_only,
            "unknown samples": self.unknown,
            "dangling": self.dangling,
            "unreadable": self.unreadable,
        }
        rows += [(name, _shown(ids, "none") + "  (a note)") for name, ids in notes.items() if ids]
        rows.append(("verdict", "nothing is wrong" if self.ok else "WRONG: see above"))
        return "\n".join(f"{name:<16}{text}" for name, text in rows)


def audit(
    journal_root: Path,
    model: str,
    objects: ObjectStore,
    *,
    expected: Iterable[str] | None = None,
    settle_s: float = 60.0,
) -> AuditReport:
    """Audit one model.

    `expected` are the exchange ids that clients know of (`chatcmpl-` in front is taken off), each alone or followed by
    a space and words that its messages must hold. Raises StoreDown where the object store does not answer.
    """
    pairs = [text.removeprefix("chatcmpl-").partition(" ") for text in expected or ()]
    wanted = {exchange_id: words for exchange_id, _, words in pairs}
    seen = _Seen(wanted=wanted)
    _read_journal(seen, journal_root, model)
    _read_sealed(seen, objects)
    versions = VersionStore(objects, model)
    head, committed = versions.head(), versions.versions()
    line = [] if head is None else versions.lineage(head.number)
    consumed = Counter(sample_id for number in line for sample_id in versions.get(number).sample_ids)
    elsewhere = {sample for version in committed for sample in version.sample_ids} - consumed.keys()
    settled = {i for i in seen.samples if i in consumed or i in seen.disposed_samples or i in elsewhere}
    return AuditReport(
        accepted=len(seen.exchanges),
        turns=len(seen.turns),
        main=sum(kind == "main" for kind in seen.turns.values()),
        samples=len(seen.samples),
        trained=len(consumed),
        pending=len(seen.open_samples - settled),
        head=None if head is None else head.number,
        versions=len(committed),
        withdrawn=len(versions.withdrawn()),
        reasons=dict(Counter(seen.reasons.values())),
        missing=tuple(sorted(wanted.keys() - seen.exchanges.keys())),
        altered=tuple(sorted(seen.altered)),
        trained_twice=_twice(seen, consumed),
        lost=tuple(sorted(seen.samples.keys() - settled - seen.open_samples)),
        undecided=_undecided(seen, time.time() - settle_s),
        withdrawn_only=tuple(sorted(elsewhere & seen.samples.keys())),
        unknown=tuple(sorted(consumed.keys() - seen.samples.keys())),
        dangling=tuple(sorted({*seen.turns, *seen.samples.values(), *seen.reasons} - seen.exchanges.keys())),
        unreadable=tuple(seen.unreadable),
    )


def _twice(seen: _Seen, consumed: Counter[str]) -> tuple[str, ...]:
    samples = {sample_id for sample_id, times in consumed.items() if times > 1}
    turns = Counter(seen.samples[sample_id] for sample_id in consumed if sample_id in seen.samples)
    return tuple(sorted(samples | {exchange_id for exchange_id, times in turns.items() if times > 1}))


def _undecided(seen: _Seen, before: float) -> tuple[str, ...]:
    unplaced = {
        exchange_id
        for exchange_id in seen.served - seen.turns.keys() - seen.reasons.keys()
        if seen.exchanges[exchange_id] < before
    }
    sampled = set(seen.samples.values())
    sealed = {
        exchange_id
        for exchange_id, kind in seen.turns.items()
        if kind == "main" and exchange_id in seen.served and exchange_id not in seen.open_exchanges
    }
    return tuple(sorted(unplaced | (sealed - sampled - seen.reasons.keys())))


def _read_journal(seen: _Seen, root: Path, model: str) -> None:
    for version in open_versions(root, model):
        for path in segments(version_folder(root, model, version)):
            try:
                for event in read_segment(path):
                    _note(seen, event.record)
            except FileNotFoundError:  # sealed and removed meanwhile: it is read from the shards
                continue
    seen.unreadable += [path.name for path in (Path(root) / model).glob("unreadable-*.jsonl")]


def _note(seen: _Seen, record: object) -> None:
    match record:
        case Exchange():
            seen.exchanges[record.exchange_id] = record.received_at
            seen.open_exchanges.add(record.exchange_id)
            if record.exchange_id in seen.wanted:
                seen.compare(record.exchange_id, json.dumps(record.messages, ensure_ascii=False))
            if record.finish_reason not in ("error", "refused"):
                seen.served.add(record.exchange_id)
        case Turn():
            seen.turns[record.exchange_id] = record.kind
        case Sample():
            seen.samples[record.sample_id] = record.exchange_id
            seen.open_samples.add(record.sample_id)
        case Disposition():
            _dispose(seen, record.exchange_id, record.sample_id, record.reason)
        case {"source": "journal", "text": str(text)}:
            seen.unreadable.append(text)


def _dispose(seen: _Seen, exchange_id: str, sample_id: str | None, reason: str) -> None:
    seen.reasons[exchange_id] = reason
    if sample_id is not None:
        seen.disposed_samples.add(sample_id)


def _read_sealed(seen: _Seen, objects: ObjectStore) -> None:
    def rows(name: str, *columns: str) -> Iterable[tuple]:
        return scan(name, objects).select(*columns).collect().iter_rows()

    received = pl.col("received_at").dt.epoch("us") / 1e6
    for exchange_id, at, finish in (
        scan("exchanges", objects).select("exchange_id", received, "finish_reason").collect().iter_rows()
    ):
        seen.exchanges[exchange_id] = at
        if finish not in ("error", "refused"):
            seen.served.add(exchange_id)
    if seen.wanted:
        wanted = scan("exchanges", objects).filter(pl.col("exchange_id").is_in(list(seen.wanted)))
        for exchange_id, messages in wanted.select("exchange_id", "messages").collect().iter_rows():
            seen.compare(exchange_id, messages)
    seen.turns |= dict(rows("turns", "exchange_id", "kind"))
    seen.samples |= dict(rows("samples", "sample_id", "exchange_id"))
    for exchange_id, sample_id, reason in rows("dispositions", "exchange_id", "sample_id", "reason"):
        _dispose(seen, exchange_id, sample_id, reason)


def _shown(ids: tuple[str, ...], nothing: str) -> str:
    if not ids:
        return nothing
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return f"{len(ids)}: {', '.join(ids[:SHOWN])}{more}"


def main() -> int:
    """0 where nothing is wrong, 1 where something is, 2 where it could not be looked at."""
    parser = argparse.ArgumentParser(prog="python -m storage.audit", description=__doc__.partition("\n")[0])
    home = os.environ.get("CLAWRL_HOME", ".clawrl")
    parser.add_argument("--home", type=Path, default=Path(home), help="the folder that holds journal/")
    parser.add_argument("--model", required=True, help="the model's name")
    parser.add_argument("--store", required=True, help="s3://bucket/prefix")
    parser.add_argument("--endpoint", help="the object store's address; none for Amazon's own")
    parser.add_argument("--expect", type=Path, help="what clients know of: a line each, exchange id [words of it]")
    args = parser.parse_args()
    store = ObjectStore(
        args.store,
        endpoint=args.endpoint,
        access_key=os.environ.get("AWS_ACCESS_KEY_ID"),
        secret_key=os.environ.get("AWS_SECRET_ACCESS_KEY"),
    )
    expected = args.expect.read_text().splitlines() if args.expect else None
    try:
        report = audit(args.home / "journal", args.model, store, expected=expected)
    except StoreDown as fault:
        print(fault, file=sys.stderr)
        return 2
    print(report.table())
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
