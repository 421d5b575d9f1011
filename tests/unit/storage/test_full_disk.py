"""A full disk: told at once, kept in memory, written when there is space again, with no line harmed."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("full_disk.py")
ROOT = PROGRAM.parents[3]


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_file_size_limit(tmp_path: Path) -> None:
    """The kernel refuses to grow the file: a short write, then an error. Works for everybody."""
    assert "told" in run([sys.executable, "-m", "tests.unit.storage.full_disk", str(tmp_path), "limit"])


def test_really_full_disk(tmp_path: Path) -> None:
    """A 2 MB tmpfs in a mount namespace of its own; where namespaces are not allowed, the limit again."""
    inside = f'mount -t tmpfs -o size=2m none "{tmp_path}" && exec "{sys.executable}" -m tests.unit.storage.full_disk'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", f'{inside} "{tmp_path}" tmpfs']
    try:
        allowed = subprocess.run(["unshare", "--map-root-user", "--mount", "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        command = [sys.executable, "-m", "tests.unit.storage.full_disk", str(tmp_path), "limit"]
    assert "told" in run(command)


@pytest.mark.parametrize("target", ["/dev/full"])
def test_folder_that_can_not_be_made(target: str) -> None:
    """A root that is no folder: the same answer, not an exception in a thread."""
    code = (
        "from pathlib import Path; from storage.journal import JournalWriter; alarms = []\n"
        f"writer = JournalWriter(Path({target!r}), 'm', 'a', on_alarm=alarms.append)\n"
        "assert writer.append('alarm', {}, 1).result(5) is False; writer.close()\n"
        "assert 'does not take records' in alarms[0] and 'are lost' in alarms[1], alarms\n"
    )
    run([sys.executable, "-c", code])
