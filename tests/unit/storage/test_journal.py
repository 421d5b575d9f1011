"""The journal: what is acknowledged is there, in order, once; and who follows it sees each line once."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import wait
from pathlib import Path

import pytest

from storage.journal import JournalTail, JournalWriter, open_versions, read_segment, segments, version_folder
from storage.segments import freeze
from tests.unit.storage import builders
from tests.unit.storage.builders import MODEL


def everything(root: Path) -> list:
    """All events of all segments."""
    return [
        event
        for version in open_versions(root, MODEL)
        for path in segments(version_folder(root, MODEL, version))
        for event in read_segment(path)
    ]


def test_all_kinds_there_and_back(tmp_path: Path) -> None:
    one = builders.exchange()
    state = builders.next_state(one.exchange_id)
    records = [
        ("exchange", one),
        ("turn", builders.turn(one.exchange_id)),
        ("next_state", state),
        ("feedback", builders.next_state(one.exchange_id, role="feedback", score=1.0)),
        ("verdict", builders.verdict(one.exchange_id, state.next_state_id)),
        ("sample", builders.sample(one.exchange_id)),
        ("disposition", builders.disposition(one.exchange_id)),
        ("update", builders.update(("s",))),
        ("session_done", {"tenant": "owner", "session_id": "s1", "at": 1.0}),
        ("alarm", {"source": "judge", "text": "down", "at": 1.0}),
    ]
    with JournalWriter(tmp_path, MODEL, "gateway/1") as writer:
        assert all(writer.append(kind, record, 12).result(5) for kind, record in records)
        events = JournalTail(tmp_path, MODEL).poll()
    assert [(event.kind, event.record) for event in events] == records
    assert {event.version for event in events} == {12}
    assert (tmp_path / MODEL / "v000012").is_dir()
    with pytest.raises(ValueError, match="unknown kind 'exchanges'"):
        JournalWriter(tmp_path, MODEL, "x").append("exchanges", one, 1)


def test_many_threads_many_versions(tmp_path: Path) -> None:
    tail, seen = JournalTail(tmp_path, MODEL), []
    futures: list = []
    with JournalWriter(tmp_path, MODEL, "gateway") as writer:

        def caller(number: int) -> None:
            futures.extend(writer.append("alarm", {"text": f"{number}-{i}"}, i % 10) for i in range(100))

        threads = [threading.Thread(target=caller, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            seen += tail.poll()
        for thread in threads:
            thread.join()
        wait(futures, 10)
        assert all(future.result() for future in futures)
        seen += tail.poll()
    texts = [event.record["text"] for event in seen]
    assert len(texts) == len(set(texts)) == 400
    assert sorted(texts) == sorted(event.record["text"] for event in everything(tmp_path))
    for number in range(4):  # of one version, a caller's records stay in order
        for version in range(10):
            mine = [
                e.record["text"] for e in seen if e.version == version and e.record["text"].startswith(f"{number}-")
            ]
            assert mine == sorted(mine, key=lambda text: int(text.split("-")[1]))


async def test_a_cancelled_waiter_harms_nobody(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, MODEL, "gateway") as writer:
        for _ in range(20):
            task = asyncio.ensure_future(asyncio.wrap_future(writer.append("alarm", {}, 1)))
            await asyncio.sleep(0)
            task.cancel()
        assert await asyncio.wrap_future(writer.append("alarm", {}, 1))
    assert len(everything(tmp_path)) == 21


def test_late_segments_and_removed_ones(tmp_path: Path) -> None:
    tail = JournalTail(tmp_path, MODEL)
    assert tail.poll() == []
    with JournalWriter(tmp_path, MODEL, "a") as writer:
        writer.append("alarm", {"text": "1"}, 5).result(5)
        assert len(tail.poll()) == 1
        [path] = segments(version_folder(tmp_path, MODEL, 5))
        frozen = freeze(path)
        assert tail.poll() == []  # renamed, nothing new
        writer.append("alarm", {"text": "2"}, 5).result(5)  # goes to a fresh segment
        assert [event.record["text"] for event in tail.poll()] == ["2"]
        frozen.unlink()
        assert tail.poll() == []
        with JournalWriter(tmp_path, MODEL, "b") as late:  # another process, an old version
            late.append("alarm", {"text": "3"}, 2).result(5)
        assert [(event.version, event.record["text"]) for event in tail.poll()] == [(2, "3")]
    assert [event.record["text"] for event in everything(tmp_path)] == ["3", "2"]


def test_freezing_while_a_writer_writes_loses_nothing(tmp_path: Path) -> None:
    futures = []
    with JournalWriter(tmp_path, MODEL, "a") as writer:
        for number in range(2000):
            futures.append(writer.append("alarm", {"text": str(number)}, 1))
            if number % 100 == 50:
                for path in segments(version_folder(tmp_path, MODEL, 1)):
                    freeze(path)
        assert all(future.result(5) for future in futures)
    assert sorted(int(event.record["text"]) for event in everything(tmp_path)) == list(range(2000))


def test_a_removed_folder_is_made_again(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, MODEL, "a") as writer:
        assert writer.append("alarm", {"text": "1"}, 1).result(5)
        [path] = segments(version_folder(tmp_path, MODEL, 1))
        freeze(path).unlink()
        path.parent.rmdir()
        assert writer.append("alarm", {"text": "2"}, 1).result(5)
    assert [event.record["text"] for event in everything(tmp_path)] == ["2"]


def test_torn_and_broken_lines(tmp_path: Path) -> None:
    folder = version_folder(tmp_path, MODEL, 1)
    with JournalWriter(tmp_path, MODEL, "a") as writer:
        writer.append("alarm", {"text": "1"}, 1).result(5)
    [path] = segments(folder)
    good = path.read_bytes()
    broken = {
        b'{"kind": "exchange", "at": 1, "record": {}}': "field exchange_id is missing",
        b'{"kind": "dance", "at": 1}': "unknown kind 'dance'",
        b'{"kind": "alarm", "at": "x", "record": {}}': "at is 'x': it must be Unix seconds",
        b'{"kind": "alarm", "at": true, "record": {}}': "at is True",
        b'{"kind": "alarm", "at": 1, "record": []}': "the record is list",
        b'{"kind": "session_done", "at": 1, "record": {}}': "the record's tenant is None",
        b'{"kind": "session_done", "at": 1, "record": {"tenant": "t", "session_id": 3}}': "session_id is 3",
        b"[1]": "TypeError",
        b"garbage": "JSONDecodeError",
    }
    path.write_bytes(good + b"".join(line + b"\n" for line in broken) + good[:20])
    events = JournalTail(tmp_path, MODEL).poll()
    texts = [event.record["text"] for event in events]
    assert len(texts) == 1 + len(broken) and "1" in texts
    assert all(any(words in text for text in texts) for words in broken.values()), texts
    tail = JournalTail(tmp_path, MODEL)
    tail.poll()
    with path.open("ab") as file:
        file.write(good[20:])  # the same line, whole at last: bytes that were seen already are not given twice
    assert tail.poll() == []


def test_a_long_segment_is_followed_by_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.segments.SEGMENT_BYTES", 1000)
    with JournalWriter(tmp_path, MODEL, "a") as writer:
        for number in range(30):
            writer.append("alarm", {"text": f"{number:0100}"}, 1).result(5)
    assert len(segments(version_folder(tmp_path, MODEL, 1))) > 3
    assert [int(event.record["text"]) for event in everything(tmp_path)] == list(range(30))


def test_an_alarm_that_cannot_be_said_does_not_end_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with JournalWriter(tmp_path, MODEL, "a", on_alarm=full) as writer:  # as where stderr is a file on the same disk
        with monkeypatch.context() as patched:
            patched.setattr("storage.segments.SegmentFile.write", full)
            assert writer.append("alarm", {"text": "1"}, 1).result(5) is False and not writer.healthy
            assert writer.append("alarm", {"text": "2"}, 1).result(5) is False
        until = time.monotonic() + 5
        while not writer.healthy and time.monotonic() < until:
            time.sleep(0.02)
        assert writer.healthy and writer.append("alarm", {"text": "3"}, 1).result(5)
    assert [event.record["text"] for event in everything(tmp_path)] == ["1", "2", "3"]


def test_closed_writer_says_so(tmp_path: Path) -> None:
    alarms: list[str] = []
    writer = JournalWriter(tmp_path, MODEL, "a", on_alarm=alarms.append)
    writer.close()
    assert writer.append("alarm", {}, 1).result(1) is False
    assert "it is closed" in alarms[0]


def test_failed_fsync_writes_again_and_the_tail_gives_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [OSError(5, "Input/output error")]
    real = os.fdatasync

    def failing(fd: int) -> None:
        if failures:
            raise failures.pop()
        real(fd)

    monkeypatch.setattr("storage.segments.os.fdatasync", failing)
    alarms: list[str] = []
    tail = JournalTail(tmp_path, MODEL)
    with JournalWriter(tmp_path, MODEL, "a", on_alarm=alarms.append, sync_every_s=0.05) as writer:
        assert writer.append("alarm", {"text": "1"}, 1).result(5)
        assert len(tail.poll()) == 1
        until = time.monotonic() + 5
        while len(segments(version_folder(tmp_path, MODEL, 1))) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.1)
    assert "fsync failed" in alarms[0]
    assert len(everything(tmp_path)) == 2
    assert tail.poll() == []


def test_killed_writer_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """kill -9 amid writing: what was acknowledged is there, a torn line is passed over, the next process goes on."""
    acks = tmp_path / "acks"
    code = f"""
import os, threading
from pathlib import Path
from storage.journal import JournalWriter
writer = JournalWriter(Path({str(tmp_path)!r}), {MODEL!r}, "victim")
acks = os.open({str(acks)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def caller(me):
    for number in range(10**9):
        assert writer.append("alarm", {{"text": f"{{me}}-{{number}}", "pad": "x" * 3000}}, number % 3).result()
        os.write(acks, f"{{me}}-{{number}}\\n".encode())
for me in range(4):
    threading.Thread(target=caller, args=(me,)).start()
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    tail, followed = JournalTail(tmp_path, MODEL), []
    until = time.monotonic() + 20
    while len(followed) < 300 and time.monotonic() < until:
        followed += tail.poll()
    process.send_signal(signal.SIGKILL)
    process.wait()
    followed += tail.poll()
    acknowledged = acks.read_text().splitlines()
    assert len(acknowledged) > 100
    there = [event.record["text"] for event in everything(tmp_path)]
    assert set(acknowledged) <= set(there)
    assert len(there) == len(set(there))
    assert sorted(event.record["text"] for event in followed) == sorted(there)
    path = segments(version_folder(tmp_path, MODEL, 0))[0]
    with path.open("ab") as file:
        file.write(b'{"kind":"alarm","at":1.0,"rec')  # torn for certain
    with JournalWriter(tmp_path, MODEL, "victim") as writer:
        writer.append("alarm", {"text": "after"}, 0).result(5)
    assert [event.record["text"] for event in tail.poll()] == ["after"]
    assert len(everything(tmp_path)) == len(there) + 1
