"""Segments: the journal's files, one folder per weight version, and how one line is read.

What it does: names and lists segments, reads their lines into events, and `SegmentFile` appends whole lines to one.
What it leaves out: threads, retries and following (`storage/journal.py`); Parquet (`storage/dataset.py`).

    <root>/<model>/v000012/<process>-<ulid>.jsonl      one line: {"kind": ..., "at": unix seconds, "record": {...}}
    <root>/<model>/v000012/<process>-<ulid>.sealing    the same, frozen: it is being sealed

A process never appends to a file of an earlier one, so a torn line is always the last of its file, and readers pass
over it.
"""

import contextlib
import fcntl
import os
import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from storage.arrow import dumps, from_json
from storage.records import Disposition, Exchange, NextState, Sample, Turn, Update, Verdict, new_id

OPEN, SEALING = ".jsonl", ".sealing"
SEGMENT_BYTES = 64 << 20  # a longer segment is followed by a new one
KINDS: dict[str, type | None] = {
    "exchange": Exchange,
    "turn": Turn,
    "next_state": NextState,
    "feedback": NextState,
    "verdict": Verdict,
    "sample": Sample,
    "disposition": Disposition,
    "update": Update,
    "session_done": None,  # {"tenant", "session_id", "at"}
    "alarm": None,  # {"source", "text", "at"}
}
_STRINGS = {"session_done": ("tenant", "session_id")}  # of the records without a class: what readers rely on


@dataclass(frozen=True, slots=True)
class JournalEvent:
    """One line of the journal."""

    kind: str
    record: Any  # the record class of the kind, or a dict for session_done and alarm
    version: int  # the segment's
    path: Path
    at: float  # Unix seconds, when it was appended


def version_folder(root: Path, model: str, version: int) -> Path:
    """Where the segments of one version lie."""
    return Path(root) / model / f"v{version:06d}"


def version_of(name: str) -> int | None:
    """The version of a folder name like v000012, None for another name."""
    return int(name[1:]) if re.fullmatch(r"v\d{6,}", name) else None


def segments(folder: Path) -> list[Path]:
    """The segments of one version's folder, open and frozen, oldest first."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(path for path in folder.iterdir() if path.suffix in (OPEN, SEALING))
    return []


def open_versions(root: Path, model: str) -> list[int]:
    """The versions that have a folder in the journal, ascending."""
    with contextlib.suppress(FileNotFoundError):
        found = (version_of(entry.name) for entry in os.scandir(Path(root) / model) if entry.is_dir())
        return sorted(version for version in found if version is not None)
    return []


def line_of(kind: str, record: Any) -> bytes:
    """The line of one record, its line end with it. ValueError for an unknown kind."""
    if kind not in KINDS:
        raise ValueError(f"journal: unknown kind {kind!r}; it is one of {', '.join(KINDS)}")
    return b'{"kind":"%s","at":%.6f,"record":%b}\n' % (kind.encode(), time.time(), dumps(record))


def parse(line: bytes, version: int, path: Path) -> JournalEvent:
    """One line as an event. A line that can't be read becomes an alarm that says which, so that the rest goes on."""
    try:
        obj = orjson.loads(line)
        kind, at = obj["kind"], obj["at"]
        if kind not in KINDS:
            raise ValueError(f"unknown kind {kind!r} (known: {', '.join(KINDS)})")
        if isinstance(at, bool) or not isinstance(at, int | float):
            raise ValueError(f"at is {at!r}: it must be Unix seconds")
        cls, record = KINDS[kind], obj["record"]
        if cls is not None:
            return JournalEvent(kind, from_json(cls, record), version, path, at)
        if not isinstance(record, dict):
            raise ValueError(f"the record is {type(record).__name__}: it must be an object")
        for name in _STRINGS.get(kind, ()):
            if not isinstance(record.get(name), str):
                raise ValueError(f"the record's {name} is {record.get(name)!r}: it must be a string")
        return JournalEvent(kind, record, version, path, at)
    except (ValueError, TypeError, KeyError, AttributeError) as fault:  # the boundary: what lies on the disk
        text = f"{path.name}: a line of {len(line)} bytes can't be read: {type(fault).__name__}: {fault}"
        now = time.time()
        return JournalEvent("alarm", {"source": "journal", "text": text, "at": now}, version, path, now)


def read_lines(path: Path) -> Iterator[bytes]:
    """The complete lines of one segment; a torn last line is left out."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n") and line != b"\n":
                yield line


def read_segment(path: Path) -> Iterator[JournalEvent]:
    """The events of one segment."""
    version = version_of(path.parent.name)
    assert version is not None, f"{path} does not lie in a version's folder"
    for line in read_lines(path):
        yield parse(line, version, path)


def freeze(path: Path) -> Path:
    """Rename an open segment so that its writer goes on in a fresh one. Nothing is added to it after this."""
    frozen = path.with_suffix(SEALING)
    if path != frozen:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            path.rename(frozen)
    return frozen


@dataclass(slots=True)
class Pending:
    """A line on its way to the disk."""

    line: bytes
    version: int
    future: Any  # concurrent.futures.Future[bool], or None once it was answered


class SegmentFile:
    """One open segment of this process. One thread writes; another may sync and close it once it is retired."""

    def __init__(self, folder: Path, process: str) -> None:
        self.path = folder / f"{process}-{new_id()}{OPEN}"
        self._fd = _create(self.path)
        self._size = 0  # bytes up to the last complete line
        self._entry_synced = False
        self.broken = False  # a sync failed, or a part of a line could not be taken back: write elsewhere
        self.unsynced: deque[Pending] = deque()  # written, not synced: appended on the right, taken from the left

    def write(self, batch: Sequence[Pending]) -> tuple[int, OSError | None]:
        """Write lines under the file's lock: how many are whole, and why the disk took no more of them.

        No line and no fault: the segment is `stale`, a new one is needed.
        """
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            if self.stale:
                return 0, None
            whole, fault = self._write(batch)
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        self.unsynced.extend(batch[:whole])
        return whole, fault

    @property
    def stale(self) -> bool:
        """Whether nothing more may be written: full, broken, or frozen or removed by a sealer."""
        if self.broken or self._size >= SEGMENT_BYTES:
            return True
        with contextlib.suppress(FileNotFoundError):
            return self.path.stat().st_ino != os.fstat(self._fd).st_ino
        return True

    def _write(self, batch: Sequence[Pending]) -> tuple[int, OSError | None]:
        data = memoryview(b"".join(item.line for item in batch))
        written, fault = 0, None
        while written < len(data) and fault is None:
            try:
                written += os.write(self._fd, data[written:])  # a filling disk takes a part, then nothing
            except OSError as refusal:
                fault = refusal
        whole = end = 0
        for item in batch:
            if end + len(item.line) > written:
                break
            end += len(item.line)
            whole += 1
        self._size += end
        if end < written:
            try:
                os.ftruncate(self._fd, self._size)  # take back the part of a line
            except OSError:
                self.broken = True
        return whole, fault

    def sync(self) -> None:
        """fdatasync; raises OSError, with the lines still in `unsynced`."""
        count = len(self.unsynced)
        if not count:
            return
        os.fdatasync(self._fd)
        if not self._entry_synced:
            for folder in (self.path.parent, self.path.parent.parent):
                _sync_folder(folder)
            self._entry_synced = True
        for _ in range(count):
            self.unsynced.popleft()

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)


def _create(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    for _ in range(9):
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # a sealer removed the empty folder just now
            return os.open(path, flags, 0o600)
    return os.open(path, flags, 0o600)


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # sealed and removed already
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
