"""Starting and stopping the services: clear words when it fails, nothing left behind."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra.services import answers, free_port, start_s3, stop, wait_ready


def test_port_in_use_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"s3: port {port} is in use"):
            start_s3(tmp_path, port, bucket="bucket", access_key="a", secret_key="s")
    with pytest.raises(ValueError, match="'B' is no bucket name"):
        start_s3(tmp_path, port, bucket="B", access_key="a", secret_key="s")


def test_end_before_ready_shows_port_log_and_last_lines(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with (tmp_path / "logs" / "part.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", "print('no such volume'); raise SystemExit(3)"], stdout=log, start_new_session=True
        )
    with pytest.raises(ValueError, match=r"part on port 1234 ended with status 3: no such volume .*part\.log"):
        wait_ready("part", process, 1234, tmp_path, lambda: False, 30)


def test_dies_with_its_parent(tmp_path: Path) -> None:
    port = free_port()
    code = (
        "import sys, time; from pathlib import Path; from infra.services import start_s3\n"
        f"p = start_s3(Path({str(tmp_path)!r}), {port}, bucket='bucket', access_key='a', secret_key='s')\n"
        "print(p.pid, flush=True); time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    assert Path(f"/proc/{child}").exists()
    parent.kill()
    parent.wait()
    until = time.monotonic() + 15
    while time.monotonic() < until and _alive(child):
        time.sleep(0.1)
    assert not _alive(child)


def test_only_loopback_is_listened_on(tmp_path: Path) -> None:
    process = start_s3(tmp_path, free_port(), bucket="bucket", access_key="a", secret_key="s")
    try:
        sockets = {str(path.readlink()) for path in Path(f"/proc/{process.pid}/fd").iterdir() if path.is_symlink()}
        listening = []
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                    listening.append(fields[1].split(":")[0])
        assert listening and set(listening) == {"0100007F"}
    finally:
        stop(process)
    assert not answers("http://127.0.0.1:1/")


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
