"""The folder of one running system: where its settings, keys, logs, journal and data lie, and what it has started.

What it leaves out: what the settings mean (`infra/settings.py`) and how parts are started (`infra/up.py`).
"""

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil


@dataclass(frozen=True, kw_only=True)
class Started:
    """A process that `up` started: the creation time tells it from a later one with the same pid."""

    name: str
    pid: int
    created: float  # Unix seconds, as the kernel has it

    def process(self) -> psutil.Process | None:
        """The process, while it is this one and alive."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.created) < 1.0
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None


@dataclass(frozen=True, kw_only=True)
class State:
    """What runs: written by `up`, removed by `down`."""

    instance: str  # in the environment of every process of this system
    host: str
    ports: dict[str, int]  # "gateway", "mlflow", "s3", "ray"
    processes: tuple[Started, ...]
    started_at: float  # Unix seconds

    def url(self, part: str) -> str:
        """The HTTP address of a part."""
        return f"http://{self.host}:{self.ports[part]}"


@dataclass(frozen=True)
class Home:
    """The folder, and every path below it."""

    root: Path

    @classmethod
    def find(cls, given: str | None = None) -> "Home":
        """The folder named, else CLAWRL_HOME, else `.clawrl` here."""
        return cls(Path(given or os.environ.get("CLAWRL_HOME") or ".clawrl").expanduser().resolve())

    config = property(lambda self: self.root / "config.toml")
    logs = property(lambda self: self.root / "logs")
    run = property(lambda self: self.root / "run")
    journal = property(lambda self: self.root / "journal")
    s3 = property(lambda self: self.root / "s3")
    mlflow = property(lambda self: self.root / "mlflow")
    weights = property(lambda self: self.root / "weights")
    ray_token = property(lambda self: self.run / "ray_token")

    def make(self) -> "Home":
        """Make the folders. Only their owner may read them: they hold conversations and keys."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)
        for folder in (self.logs, self.run, self.journal, self.s3, self.mlflow, self.weights):
            folder.mkdir(exist_ok=True)
        return self

    @property
    def ray_dir(self) -> Path:
        """Ray's folder. Its sockets have long names and 107 bytes is the kernel's limit for a path."""
        here = self.root / "ray"
        return here if len(str(here)) <= 40 else Path("/tmp") / f"clawrl-{os.getuid()}-{hash_of(here):x}"

    def secret(self, name: str) -> str:
        """A key that is made on first use and kept in a file of its owner's."""
        path = self.root / name
        if not path.exists():
            prefix = "sk-claw-" if name == "api_key" else ""
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "w") as file:
                file.write(prefix + secrets.token_urlsafe(24))
        return path.read_text().strip()

    def state(self) -> State | None:
        """What `up` wrote, whether it still runs or not."""
        path = self.run / "state.json"
        try:
            raw: dict[str, Any] = json.loads(path.read_text())
            return State(**{**raw, "processes": tuple(Started(**process) for process in raw["processes"])})
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, TypeError, KeyError) as fault:
            raise ValueError(
                f"{path}, which says what runs, is damaged ({type(fault).__name__}: {fault}). End what still runs of "
                f"it (`pgrep -af {self.root}` finds most of it) and remove the file, then `clawrl up`. "
                "Nothing else is lost."
            ) from fault

    def write_state(self, state: State) -> None:
        """Atomically: a reader sees the old or the new one."""
        part = self.run / "state.json.part"
        with part.open("w") as file:
            json.dump(asdict(state), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        part.rename(self.run / "state.json")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Only one may start or stop the system at a time. Raises BlockingIOError where another one does."""
        with (self.run / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.2)  # `changing` may have been looking
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

    def changing(self) -> bool:
        """Whether somebody starts or stops the system now."""
        try:
            with (self.run / "lock").open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def forget_state(self) -> None:
        """Nothing runs."""
        (self.run / "state.json").unlink(missing_ok=True)


def hash_of(path: Path) -> int:
    """A number that is the same in every process (Python's own hash is not)."""
    import zlib

    return zlib.crc32(str(path).encode())
