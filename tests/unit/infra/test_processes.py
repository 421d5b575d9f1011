"""What `up` starts is ended by pid and mark, and nothing else is."""

import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from infra import processes
from infra.home import Home, Started, State
from infra.services import free_port
from infra.status import gather

SLEEP = [sys.executable, "-c", "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', "
         "'import time; time.sleep(60)'], start_new_session=True); time.sleep(60)"]  # fmt: skip

STATE = State(instance="i", host="127.0.0.1", ports={"gateway": 9, "mlflow": 9, "s3": 9}, processes=(), started_at=0.0)


def test_ends_its_own_with_their_children_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setenv(processes.MARK, "mark-1")
    child = processes.spawn(SLEEP, tmp_path / "x.log")
    started = Started(name="x", pid=child.pid, created=psutil.Process(child.pid).create_time())
    while len(processes.of_instance("mark-1")) < 2:  # the forked one left the session: only the mark finds it
        assert child.poll() is None
    assert started.process() is not None
    processes.end(processes.of_instance("mark-1"), patience_s=5)
    child.wait()
    assert started.process() is None and processes.of_instance("mark-1") == []
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_a_pid_that_was_used_again_is_not_ours() -> None:
    mine = psutil.Process()
    assert Started(name="a", pid=mine.pid, created=mine.create_time()).process() is not None
    assert Started(name="a", pid=mine.pid, created=mine.create_time() - 100).process() is None


def test_a_taken_port_names_its_user() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        user = processes.port_user(taken.getsockname()[1])
    assert user is not None and str(psutil.Process().pid) in user
    assert processes.port_user(free_port()) is None


def test_a_part_that_ends_says_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    child = processes.spawn([sys.executable, "-c", "print('no such model')"], log)
    with pytest.raises(ValueError, match="no such model"):
        processes.wait_until(lambda: False, "x", 20, child, log)


def test_a_part_that_ends_well_is_no_fault(tmp_path: Path) -> None:
    child = processes.spawn([sys.executable, "-c", "print('done')"], tmp_path / "x.log")
    assert processes.wait_until(lambda: child.poll() == 0, "x", 20, child, tmp_path / "x.log") > 0


def test_a_start_in_progress_is_told_apart_from_a_fault(tmp_path: Path) -> None:
    home = Home(tmp_path / "h")
    assert not home.changing()
    home.make().write_state(STATE)
    assert gather(home)["alarms"]
    with home.alone():
        assert home.changing() and home.changing()
        found = gather(home)
        assert found["changing"] and not found["alarms"]
        with pytest.raises(BlockingIOError), home.alone():
            pass
    assert not home.changing()


def test_keys_are_made_once_and_private(tmp_path: Path) -> None:
    home = Home(tmp_path / "h").make()
    key = home.secret("api_key")
    assert key.startswith("sk-claw-") and home.secret("api_key") == key
    assert (home.root / "api_key").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("text", ["", "{}", '{"instance": "x", "proc', "[]"])
def test_a_damaged_state_names_its_file_and_the_way_out(tmp_path: Path, text: str) -> None:
    home = Home(tmp_path / "h").make()
    (home.run / "state.json").write_text(text)
    with pytest.raises(ValueError, match=r"state\.json, which says what runs, is damaged .*remove the file"):
        home.state()


@pytest.mark.parametrize("given", ["/proc/x", "/tmp/x[/foo]"])
def test_odd_homes_end_in_one_line(given: str) -> None:
    from click.testing import CliRunner

    from infra.cli import main

    done = CliRunner().invoke(main, ["--home", given, "up" if given.startswith("/proc") else "audit"])
    assert done.exit_code == 1 and done.output.startswith("clawrl:") and given in done.output.replace("\n", "")
