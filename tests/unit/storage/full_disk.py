"""Run by test_full_disk.py in a process of its own: a writer whose disk fills up, and gets space again.

usage: full_disk.py FOLDER tmpfs|limit      tmpfs: FOLDER is a small file system; limit: RLIMIT_FSIZE stands in for it
"""

import os
import resource
import signal
import sys
import time
from pathlib import Path

from storage.journal import JournalTail, JournalWriter, open_versions, read_segment, segments, version_folder

LIMIT = 100_000  # bytes


def main(folder: Path, how: str) -> None:
    """Fill, look, free, look."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    hog = folder / "hog"
    if how == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, resource.RLIM_INFINITY))
    else:
        space = os.statvfs(folder)
        hog.write_bytes(b"x" * (space.f_bavail * space.f_frsize - LIMIT))
    alarms: list[str] = []
    tail, followed = JournalTail(folder, "tiny"), []
    writer = JournalWriter(folder, "tiny", "a", on_alarm=alarms.append, max_pending_bytes=1 << 20)
    answers = []
    for number in range(200):
        began = time.monotonic()
        answers.append(writer.append("alarm", {"text": str(number), "pad": "x" * 2000}, 1).result(5))
        assert time.monotonic() - began < 1.0, "a full disk must be told at once"
        followed += tail.poll()
    assert answers[0] and not answers[-1], "the disk did not fill"
    assert answers == sorted(answers, reverse=True), "it came back while it was full"
    assert not writer.healthy
    assert len(alarms) == 1 and "does not take records" in alarms[0], alarms
    for number in range(200, 1000):  # more than the memory for waiting records
        assert not writer.append("alarm", {"text": str(number), "pad": "x" * 2000}, 1).result(5)
    assert writer.lost > 0 and "memory for waiting records is full" in alarms[1], alarms
    assert writer.pending_bytes <= 1 << 20

    if how == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    else:
        hog.unlink()
    until = time.monotonic() + 10
    while not writer.healthy and time.monotonic() < until:
        time.sleep(0.02)
    assert writer.healthy, alarms
    assert "takes records again" in alarms[-1], alarms
    assert writer.append("alarm", {"text": "last", "pad": ""}, 1).result(5)
    writer.close()
    followed += tail.poll()
    lines = [
        event.record["text"]
        for version in open_versions(folder, "tiny")
        for path in segments(version_folder(folder, "tiny", version))
        for event in read_segment(path)
    ]
    assert lines == [str(number) for number in range(1000 - writer.lost)] + ["last"], "something is missing or broken"
    assert [event.record["text"] for event in followed] == lines
    print("told", answers.index(False), "lost", writer.lost)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
