"""Owns one SGLang server process: starts it, waits until it is ready, sees it die, stops it with its children.

What it does: builds the command line for a CPU or a GPU, picks a free loopback port (kept over restarts), writes
the server's output to a file, and says from that file why a start failed.
What it leaves out: which weights to serve and when to restart (`serve/policy.py`), requests (`serve/engine_client.py`).
The server dies with this process even if this one is killed (see `serve/sglang_cpu.py`).
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from serve.engine_client import KEEP_ALIVE_S, EngineClient, EngineDown
from serve.sglang_cpu import PARENT

HERE = Path(__file__).resolve().parent.parent  # the folder that holds the packages


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How to run SGLang. The defaults are the 135M model on a laptop's CPU."""

    device: str = "cpu"  # or "cuda"
    dtype: str = "float32"  # on a CPU bfloat16 costs log-prob parity with the trainer
    threads: int = 1  # OMP threads on a CPU
    tensor_parallel: int = 1
    mem_fraction: float = 0.2  # of the memory, for weights and KV cache
    max_total_tokens: int | None = 16384  # of all running requests together; None: as many as fit
    context_length: int | None = None  # None: the model's own
    start_timeout_s: float = 400.0  # 25 s on a quiet machine; 145 s were seen on a busy one
    stop_timeout_s: float = 5.0
    log_dir: str = "logs"  # one file for each start
    extra_args: tuple[str, ...] = ()  # appended to SGLang's command line

    def command(self, model_path: Path | str, version: int, port: int) -> list[str]:
        """The server's command line."""
        flags: dict[str, object] = {
            "--model-path": model_path,
            "--weight-version": version,
            "--host": "127.0.0.1",
            "--port": port,
            "--device": self.device,
            "--dtype": self.dtype,
            "--tp": self.tensor_parallel,
            "--mem-fraction-static": self.mem_fraction,
            "--log-level": "warning",
        }
        if self.max_total_tokens is not None:
            flags["--max-total-tokens"] = self.max_total_tokens
        if self.context_length is not None:
            flags["--context-length"] = self.context_length
        if self.device == "cpu":
            flags |= {"--attention-backend": "torch_native", "--sampling-backend": "pytorch"}
        words = [str(word) for flag in flags.items() for word in flag]
        # sleep-on-idle: else an idle scheduler burns a core; incremental: else each event repeats the whole answer
        return [
            *(sys.executable, "-m", "serve.sglang_cpu"),
            *words,
            *("--sleep-on-idle", "--incremental-streaming-output"),
            *self.extra_args,
        ]

    def environment(self) -> dict[str, str]:
        """The server's environment: ours, with the threads bounded and no telemetry."""
        found = dict(os.environ)
        found.pop("PYTHONDONTWRITEBYTECODE", None)  # each start would compile thousands of files again
        found[PARENT] = str(os.getpid())
        found["HF_HUB_OFFLINE"] = "1"
        found["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] = "0"
        # longer than the client keeps one idle: else a request can meet a connection that the server has just closed
        found["SGLANG_TIMEOUT_KEEP_ALIVE"] = str(4 * int(KEEP_ALIVE_S))
        if self.device == "cpu":
            found |= {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": str(self.threads)}
        return found


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Engine:
    """One server process at a time. Call from one event loop, in a thread that lives as long as the engine shall."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.port = free_port()
        self.client = EngineClient(f"http://127.0.0.1:{self.port}")
        self.log_path: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens, also while it is down."""
        return self.client.url

    @property
    def pid(self) -> int | None:
        """Of the server's first process, while it runs."""
        return self._process.pid if self.alive else None

    @property
    def alive(self) -> bool:
        """Whether the process runs (it may still be loading)."""
        return self._process is not None and self._process.poll() is None

    async def start(self, model_path: Path | str, version: int) -> float:
        """Start with these weights and wait until it answers; returns the seconds that took."""
        assert not self.alive, "stop the engine before starting it again"
        if not Path(model_path, "config.json").is_file():
            raise ValueError(f"{model_path} is no model folder: it has no config.json")
        began = time.monotonic()
        self._spawn(model_path, version)
        while True:
            if not self.alive:
                code = self._process.returncode if self._process else None
                raise EngineDown(f"the engine ended with code {code} while starting; {self._last_words()}")
            if await self.client.health(within_s=2.0):
                return time.monotonic() - began
            if time.monotonic() - began > self.settings.start_timeout_s:
                await self.stop()
                raise EngineDown(
                    f"the engine was not ready after {self.settings.start_timeout_s:.0f} s "
                    f"(setting start_timeout_s); {self._last_words()}"
                )
            await asyncio.sleep(0.2)

    def _spawn(self, model_path: Path | str, version: int) -> None:
        folder = Path(self.settings.log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        self.log_path = folder / f"engine-{self.port}-{time.strftime('%Y%m%dT%H%M%S')}.log"
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.settings.command(Path(model_path).resolve(), version, self.port),
                cwd=HERE,
                env=self.settings.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own, to be stopped as one
            )

    def _last_words(self) -> str:
        assert self.log_path is not None
        lines = self.log_path.read_text(errors="replace").strip().splitlines()
        return f"its last lines ({self.log_path}):\n" + "\n".join(lines[-12:])

    async def stop(self) -> None:
        """End the server and every process that it started."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            until = time.monotonic() + self.settings.stop_timeout_s
            while process.poll() is None and time.monotonic() < until:
                await asyncio.sleep(0.05)
        self.kill()

    def kill(self) -> None:
        """End the whole group at once, also what a dead server left behind."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # all of them are gone
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    async def close(self) -> None:
        """Stop, and give the connections back."""
        await self.stop()
        await self.client.close()
