"""The journal: everything about a live turn as JSON lines, as it happens.

What it does: `JournalWriter` appends (one writer thread per process, group commits); `JournalTail` gives the new
lines of all writers. The files are those of `storage/segments.py`.
What it leaves out: sealing into Parquet (`storage/dataset.py`), and what the records mean.

Promises. `append` never waits for the disk. Its future is True once write(2) has taken the line (a killed process
loses nothing then); fsync follows within a second, so a lost machine may lose that much. On a full or failing disk
the future is False at once, the record stays in memory (up to `max_pending_bytes`) and is written when the disk is
back. After a failed fsync a line may stand twice: the tail gives it once, other readers go by id.

Run: python -m storage.journal --bench [FOLDER]
"""

import atexit
import contextlib
import os
import re
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from storage.segments import (
    KINDS,
    OPEN,
    SEALING,
    JournalEvent,
    Pending,
    SegmentFile,
    line_of,
    open_versions,
    parse,
    read_segment,
    segments,
    version_folder,
    version_of,
)

__all__ = [
    "KINDS",
    "JournalEvent",
    "JournalTail",
    "JournalWriter",
    "open_versions",
    "read_segment",
    "segments",
    "version_folder",
]

RETRY_S = (0.1, 0.2, 0.5, 1.0)  # between tries while the disk takes nothing
BATCH = 256  # lines in one write(2) at most
OPEN_FILES = 8  # segments that a writer keeps open


class JournalWriter:
    """Appends to the journal for one process. Thread-safe; make one per process."""

    def __init__(
        self,
        root: Path,
        model: str,
        process: str,
        *,
        on_alarm: Callable[[str], None] | None = None,
        max_pending_bytes: int = 64 << 20,
        sync_every_s: float = 0.5,
    ) -> None:
        self.root, self.model = Path(root), model
        self.process = re.sub(r"[^A-Za-z0-9._-]", "_", process)
        self.lost = 0  # records that found no place in memory while the disk took nothing
        self._on_alarm = on_alarm or (lambda text: print(text, file=sys.stderr, flush=True))
        self._max, self._sync_every_s = max_pending_bytes, sync_every_s
        self._lock = threading.Lock()  # guards queue, state and the table of segments; never held during I/O
        self._wake = threading.Condition(self._lock)
        self._queue: deque[Pending] = deque()
        self._pending_bytes = 0
        self._backlog: deque[Pending] = deque()  # the writer thread's own: taken from the queue, not written yet
        self._segments: OrderedDict[int, SegmentFile] = OrderedDict()
        self._retired: deque[SegmentFile] = deque()  # the sync thread syncs and closes these
        self._failed_at: float | None = None
        self._closing = False
        self._stop = threading.Event()
        self._full_alarm_at = -60.0
        self._writer = threading.Thread(target=self._write_loop, name="journal-writer", daemon=True)
        self._syncer = threading.Thread(target=self._sync_loop, name="journal-sync", daemon=True)
        self._writer.start()
        self._syncer.start()
        atexit.register(self.close)

    @property
    def healthy(self) -> bool:
        """Whether the disk takes what is written."""
        return self._failed_at is None

    @property
    def pending_bytes(self) -> int:
        """Bytes in memory that are not written yet."""
        return self._pending_bytes

    def append(self, kind: str, record: Any, version: int) -> Future[bool]:
        """Queue one record. The future is True once it is written, False as soon as the disk refuses it."""
        line = line_of(kind, record)
        future: Future[bool] = Future()
        future.set_running_or_notify_cancel()  # nobody can cancel what is on its way
        with self._lock:
            kept = not self._closing and self._pending_bytes + len(line) <= self._max
            healthy = self._failed_at is None
            if kept:
                self._queue.append(Pending(line, version, future if healthy else None))
                self._pending_bytes += len(line)
                self._wake.notify()
            else:
                self.lost += 1
        if not kept or not healthy:
            future.set_result(False)
        if not kept:
            self._alarm_lost(kind)
        return future

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what is queued, sync, stop. What the disk still refuses is lost then, with an alarm."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._wake.notify()
        self._writer.join(timeout_s)
        self._stop.set()
        self._syncer.join(timeout_s)
        left = len(self._backlog) + len(self._queue)
        if left:
            self._say(f"journal: closed with {left} records that {self.root} would not take; they are lost")
        atexit.unregister(self.close)

    def __enter__(self) -> "JournalWriter":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # the writer thread

    def _write_loop(self) -> None:
        tries, give_up_at = 0, float("inf")
        while True:
            with self._lock:
                while not (self._queue or self._backlog or self._closing):
                    self._wake.wait()
                self._backlog.extend(self._queue)
                self._queue.clear()
                if self._closing:
                    give_up_at = min(give_up_at, time.monotonic() + 2)
            if not self._backlog:
                return  # closing, and all is written
            try:
                self._drain()
                tries = 0
            except Exception as fault:  # the boundary: the disk. This thread must outlive whatever it does
                self._refused(fault)
                if time.monotonic() > give_up_at:
                    return
                self._stop.wait(RETRY_S[min(tries, len(RETRY_S) - 1)])
                tries += 1

    def _drain(self) -> None:
        """Write the backlog in order, a run of one version at a time. Raises OSError where the disk takes nothing."""
        while self._backlog:
            version, batch = self._backlog[0].version, []
            for item in self._backlog:
                if item.version != version or len(batch) >= BATCH:
                    break
                batch.append(item)
            segment = self._segment(version)
            whole, fault = segment.write(batch)
            for item in batch[:whole]:
                self._backlog.popleft()
                if item.future is not None:
                    item.future.set_result(True)
            with self._lock:
                self._pending_bytes -= sum(len(item.line) for item in batch[:whole])
            if segment.stale:
                self._retire(version)
            if fault is not None:
                raise fault
        self._recovered()

    def _segment(self, version: int) -> SegmentFile:
        if version not in self._segments:
            if len(self._segments) >= OPEN_FILES:
                self._retire(next(iter(self._segments)))
            made = SegmentFile(version_folder(self.root, self.model, version), self.process)
            with self._lock:
                self._segments[version] = made
        with self._lock:
            self._segments.move_to_end(version)
        return self._segments[version]

    def _retire(self, version: int) -> None:
        with self._lock:
            self._retired.append(self._segments.pop(version))

    def _refused(self, fault: Exception) -> None:
        with self._lock:
            first = self._failed_at is None
            if first:
                self._failed_at = time.time()
            waiting = [*self._backlog, *self._queue]
        for item in waiting:
            future, item.future = item.future, None
            if future is not None:
                future.set_result(False)
        if first:
            self._say(
                f"journal: {self.root} does not take records: {fault}. They wait in memory, up to "
                f"{self._max >> 20} MiB, and answers go on with x-recorded: false. Free some space there."
            )

    def _recovered(self) -> None:
        with self._lock:
            since, self._failed_at = self._failed_at, None
        if since is not None:
            late_s = time.time() - since
            self._say(f"journal: {self.root} takes records again after {late_s:.1f} s; {self.lost} were lost")

    def _say(self, text: str) -> None:
        # a log on the same full disk must not end the thread that writes
        with contextlib.suppress(OSError, ValueError):
            self._on_alarm(text)

    def _alarm_lost(self, kind: str) -> None:
        if time.monotonic() - self._full_alarm_at < 10:
            return
        self._full_alarm_at = time.monotonic()
        why = "it is closed" if self._closing else f"its memory for waiting records is full ({self._max >> 20} MiB)"
        self._say(f"journal: {why}: a record of kind {kind} is lost, {self.lost} so far. Look at {self.root}.")

    # the sync thread

    def _sync_loop(self) -> None:
        while not self._stop.wait(self._sync_every_s):
            self._sync()
        with self._lock:
            self._retired.extend(self._segments.values())
            self._segments.clear()
        self._sync()

    def _sync(self) -> None:
        with self._lock:
            current = [segment for segment in self._segments.values() if not segment.broken]
            retired, self._retired = list(self._retired), deque()
        for segment in (*current, *retired):
            try:
                segment.sync()
            except OSError as fault:
                # the kernel may have dropped the pages: write these lines again, in another file
                segment.broken = True
                self._again(segment, fault)
        for segment in retired:
            segment.close()

    def _again(self, segment: SegmentFile, fault: OSError) -> None:
        lines = [Pending(item.line, item.version, None) for item in segment.unsynced]
        segment.unsynced.clear()
        with self._lock:
            self._queue.extendleft(reversed(lines))
            self._pending_bytes += sum(len(item.line) for item in lines)
            self._wake.notify()
        self._say(f"journal: fsync failed in {self.root}: {fault}; {len(lines)} records are written again")


class JournalTail:
    """New complete lines over all segments of a model since the last poll; at first everything there."""

    REMEMBERED = 16384  # lines whose hash is kept, so that one written twice is given once

    def __init__(self, root: Path, model: str) -> None:
        self._folder = Path(root) / model
        self._read: dict[str, int] = {}  # version/segment name without suffix -> bytes read
        self._recent: OrderedDict[int, None] = OrderedDict()

    def poll(self) -> list[JournalEvent]:
        """What was appended since the last poll, in order of time. Cheap where nothing was."""
        events: list[JournalEvent] = []
        seen: set[str] = set()
        for entry in _scan(self._folder):
            version = version_of(entry.name)
            if version is None:
                continue
            for file in _scan(entry.path):
                stem, _, suffix = file.name.rpartition(".")
                if "." + suffix not in (OPEN, SEALING):
                    continue
                key = f"{entry.name}/{stem}"
                seen.add(key)
                with contextlib.suppress(FileNotFoundError):  # sealed and removed a moment ago
                    if file.stat().st_size > self._read.get(key, 0):
                        events += self._new_lines(key, version, Path(file.path))
        for key in self._read.keys() - seen:
            del self._read[key]
        events.sort(key=lambda event: event.at)
        return events

    def _new_lines(self, key: str, version: int, path: Path) -> Iterator[JournalEvent]:
        with path.open("rb") as file:
            file.seek(self._read.get(key, 0))
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._read[key] = self._read.get(key, 0) + end
        for line in data[:end].split(b"\n"):
            mark = hash(line)
            if not line or mark in self._recent:
                continue
            self._recent[mark] = None
            if len(self._recent) > self.REMEMBERED:
                self._recent.popitem(last=False)
            yield parse(line, version, path)


def _scan(folder: Path | str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def bench(folder: Path, seconds: float = 3.0) -> dict[str, float]:
    """Append throughput, and the latency from append to ack for 8 callers that each wait for theirs."""
    record = {"source": "bench", "text": "x" * 20_000, "at": 0.0}
    waits: list[float] = []
    with JournalWriter(folder, "bench", "bench") as writer:

        def caller() -> None:
            while time.perf_counter() < until:
                began = time.perf_counter()
                writer.append("alarm", record, 0).result()
                waits.append(time.perf_counter() - began)

        until = time.perf_counter() + seconds
        callers = [threading.Thread(target=caller) for _ in range(8)]
        for thread in callers:
            thread.start()
        for thread in callers:
            thread.join()
    waits.sort()
    tail = JournalTail(folder, "bench")
    tail.poll()
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(200):
        tail.poll()
    idle_s = (time.process_time() - cpu) / 200
    return {
        "records_per_s": len(waits) / seconds,
        "mb_per_s": len(waits) * 20_060 / seconds / 1e6,
        "p50_ms": waits[len(waits) // 2] * 1e3,
        "p99_ms": waits[int(len(waits) * 0.99)] * 1e3,
        "idle_poll_ms": idle_s * 1e3,
        "idle_core_share_at_5_hz": idle_s * 5,
        "idle_poll_wall_ms": (time.perf_counter() - began) / 200 * 1e3,
    }


if __name__ == "__main__":
    import shutil
    import tempfile

    if "--bench" not in sys.argv:
        sys.exit("usage: python -m storage.journal --bench [FOLDER]")
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp())
    for name, value in bench(target).items():
        print(f"{name:26} {value:.4g}")
    shutil.rmtree(target / "bench")
