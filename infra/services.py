"""Start the real object store (SeaweedFS) and the real MLflow server on this machine's loopback address.

What it does: `start_s3`, `start_mlflow` start a process, wait until it answers, and say which port and log file where
it does not; `stop` ends one by its pid; `free_port` finds a port.
What it leaves out: Ray, the engine and the gateway (`infra/up.py`); stores and servers of one's own: give their
addresses in the settings.

Run: python -m infra.services FOLDER          both, until ctrl-c
"""

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from infra import processes

HOST = "127.0.0.1"
PR_SET_PDEATHSIG = 1


def free_port() -> int:
    """A TCP port that nobody listens on, on loopback."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def is_free(port: int) -> bool:
    """Whether one may listen on a TCP port of loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def start_s3(
    home: Path,
    port: int,
    *,
    bucket: str,
    access_key: str,
    secret_key: str,
    die_with_parent: bool = True,
    timeout_s: float = 60.0,
) -> subprocess.Popen:
    """`weed mini` with its data in home/s3 and its log in home/logs/s3.log; ready with the bucket when this returns.

    With `die_with_parent` it ends when the thread that called this ends.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", bucket):
        raise ValueError(f"s3: {bucket!r} is no bucket name: 3 to 63 of a-z, 0-9, dots and hyphens are needed")
    data = home / "s3"
    data.mkdir(parents=True, exist_ok=True)
    flags = {
        "dir": data,
        "ip": HOST,
        "ip.bind": HOST,
        "s3.port": port,
        "bucket": bucket,
        "webdav": "false",
        "admin.ui": "false",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "master.telemetry": "false",
        **_inner_ports(data / "ports.json"),
    }
    command = [str(_beside_python("weed")), "mini", *(f"-{name}={value}" for name, value in flags.items())]
    keys = {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key, "GOMEMLIMIT": "512MiB"}
    process = _start(command, home, "s3", port, keys, die_with_parent)

    from storage.objects import NotThere, ObjectStore, StoreDown  # boto3 is heavy: only where it is needed

    where = {"endpoint": f"http://{HOST}:{port}", "access_key": access_key, "secret_key": secret_key}
    store = ObjectStore(f"s3://{bucket}", **where, attempts=1, timeout_s=5.0)

    def ready() -> bool:
        try:
            store.put("ready", b"")
        except (StoreDown, NotThere):
            return False
        store.delete("ready")
        return True

    wait_ready("s3", process, port, home, ready, timeout_s)
    return process


def _inner_ports(note: Path) -> dict[str, int]:
    """The ports between the store's own parts: those of the last start where they are free: its state names them."""
    names = [f"{part}.port" for part in ("master", "volume", "filer", "admin")]
    names += [f"{part}.port.grpc" for part in ("master", "volume", "filer", "admin", "s3")]
    ports = json.loads(note.read_text()) if note.exists() else {}
    if ports.keys() != set(names) or not all(is_free(port) for port in ports.values()):
        ports = {name: free_port() for name in names}
        while ports["admin.port"] > 55_535:  # its workers look for it 10,000 ports above
            ports["admin.port"] = free_port()
        note.write_text(json.dumps(ports))
    return ports


def start_mlflow(
    home: Path,
    port: int,
    *,
    die_with_parent: bool = True,
    timeout_s: float = 300.0,  # 15 s on a quiet machine, 110 s were seen on a busy one
    extra_env: Mapping[str, str] | None = None,
) -> subprocess.Popen:
    """The MLflow server with SQLite in home/mlflow and its log in home/logs/mlflow.log; ready when this returns.

    With `die_with_parent` it ends when the thread that called this ends.
    """
    data = home / "mlflow"
    data.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{data.resolve()}/mlflow.db"]
    command += ["--artifacts-destination", str((data / "artifacts").resolve())]
    command += ["--uvicorn-opts", "--timeout-graceful-shutdown 3 --log-level warning"]
    env = {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "GIT_PYTHON_REFRESH": "quiet",
        "OMP_NUM_THREADS": "1",
        **(extra_env or {}),
    }
    process = _start(command, home, "mlflow", port, env, die_with_parent)
    wait_ready("mlflow", process, port, home, lambda: answers(f"http://{HOST}:{port}/health"), timeout_s)
    return process


def answers(url: str) -> bool:
    """Whether a GET of this address gives a 2xx."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return 200 <= answer.status < 300
    except (urllib.error.URLError, OSError):
        return False


def wait_ready(
    name: str, process: subprocess.Popen, port: int, home: Path, ready: Callable[[], bool], timeout_s: float
) -> None:
    """Wait until `ready()`. Where it ends or takes too long: it is stopped, and a ValueError shows port and log."""
    try:
        processes.wait_until(ready, f"{name} on port {port}", timeout_s, process, home / "logs" / f"{name}.log")
    except BaseException:  # ctrl-c as well: nothing is left behind
        stop(process)
        raise


def stop(process: subprocess.Popen, timeout_s: float = 10.0) -> None:
    """End a process that we started and its children: politely, then not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    try:
        os.killpg(process.pid, signal.SIGKILL)  # children that outlived it: it leads its own process group
    except ProcessLookupError:
        return


def die_with_parent_hook() -> Callable[[], None]:
    """For Popen(preexec_fn=...): the child gets SIGTERM when the thread that started it ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def hook() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return hook


def _start(
    command: list[str], home: Path, name: str, port: int, env: Mapping[str, str], die_with_parent: bool
) -> subprocess.Popen:
    if not is_free(port):
        raise ValueError(f"{name}: port {port} is in use: stop what has it, or set another")
    (home / "logs").mkdir(parents=True, exist_ok=True)
    with (home / "logs" / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            start_new_session=True,
            preexec_fn=die_with_parent_hook() if die_with_parent else None,
        )


def _beside_python(name: str) -> Path:
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise ValueError(f"{name} is not in {path.parent}: run `make setup`")
    return path


def main() -> None:
    """Both services with throw-away keys, until ctrl-c."""
    home = Path(sys.argv[1] if len(sys.argv) > 1 else ".clawrl")
    s3_port, mlflow_port = free_port(), free_port()
    started = [start_s3(home, s3_port, bucket="clawrl", access_key="clawrl", secret_key="clawrl-only-local")]
    print(f"s3      http://{HOST}:{s3_port}  bucket clawrl, keys clawrl / clawrl-only-local", flush=True)
    try:
        started.append(start_mlflow(home, mlflow_port))
        print(f"mlflow  http://{HOST}:{mlflow_port}", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        print("stopping")
    finally:
        for process in started:
            stop(process)


if __name__ == "__main__":
    main()
