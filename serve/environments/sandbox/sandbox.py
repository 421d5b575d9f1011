"""A sandbox from outside: start it, ask it to run things, end it.

What it does: `Sandbox` speaks to `init.py` over two pipes, one request at a time; a request that does not come back in
time, or a sandbox that ended, is `SandboxDied`.
What it leaves out: the walls (`bubblewrap.py`), the limits (`init.py`) and the kernel's own (`control_group.py`).

A sandbox ends with the thread that started it, as it ends with the process: the kernel tells it of the thread's end.
So start it where its event loop runs, and let that loop's thread live as long as its sandboxes.
"""

import asyncio
import base64
import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serve.environments.protocol import EnvironmentFailed
from serve.environments.sandbox import bubblewrap, control_group
from serve.environments.tasks import Limits

START_S = 30.0  # until it is ready, on a busy machine
LATE_S = 15.0  # beyond a request's own time: then the sandbox itself is stuck
MOST_BYTES = 64 << 20  # of one answer
READ_BYTES = 1_000_000
GONE_S = 2.0  # until the kernel has taken apart what was ended
# what an interactive bash says of itself when a command was killed; nothing that the command said
NO_TERMINAL = re.compile(r"^bash: \[\d+: \d+ \(\d+\)\] tcsetattr: .*\n", re.MULTILINE)


class SandboxDied(EnvironmentFailed):
    """The sandbox ended, or does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What a command did."""

    exit_code: int | None  # negative: the signal that ended it; None: it was ended together with the shell
    stdout: str
    stderr: str
    stdout_cut: int  # bytes left out between head and tail
    stderr_cut: int
    timed_out: bool
    ended: str | None  # why a limit ended it, as a sentence
    duration_s: float
    cwd: str = "/work"  # of the shell, afterwards
    shell_restarted: bool = False  # its variables and functions are gone


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonResult:
    """What a piece of Python did."""

    stdout: str
    stderr: str
    stdout_cut: int
    stderr_cut: int
    value: str | None  # the repr of a last expression that is not None
    error: str | None  # its traceback, without frames that are not its own
    error_type: str | None
    timed_out: bool
    ended: str | None
    restarted: bool  # names of earlier calls are gone
    duration_s: float


class Sandbox:
    """One sandbox. Not for several tasks at once: requests wait for each other."""

    def __init__(self, process: asyncio.subprocess.Process, limits: Limits, group: control_group.Group | None) -> None:
        self._process = process
        self._limits = limits
        self._group = group
        self._struck = 0  # how often the group's limit was met
        self._lock = asyncio.Lock()

    @classmethod
    async def start(
        cls, limits: Limits, packages: Iterable[str] = (), warm: Iterable[str] = (), grouped: bool = True
    ) -> "Sandbox":
        """A fresh one. `packages`: Python packages of ours that it shows; `warm`: "shell" or "python", started ahead.
        `grouped`: in a control group, where one can be made; that takes about 5 ms of start and close together.

        Raises:
            SandboxUnavailable: none can start on this machine; says what to install.
            SandboxDied: this one did not start.
        """
        bubblewrap.require()
        names = tuple(packages)
        fds = bubblewrap.open_files()
        group = None
        try:
            argv = [*bubblewrap.command(limits, names, fds), bubblewrap.PYTHON, "-I", "-S", "/opt/init.pyc"]
            group = control_group.make(limits) if grouped else None
            process = await _spawn(argv, tuple(fds.values()))
        except OSError as error:
            await _remove(group)
            raise SandboxDied(f"the sandbox could not be started: {error}") from error
        except BaseException:
            await _remove(group)
            raise
        finally:
            for fd in fds.values():
                os.close(fd)
        self = cls(process, limits, group)
        bounds = {
            "memory_mb": limits.memory_mb, "processes": limits.processes, "disk_mb": limits.disk_mb,
            "cpu_s": int(limits.episode_s) + 1,
        }  # fmt: skip
        first = {"limits": bounds, "warm": list(warm), "packages": bool(names), "script": fds["script"]}
        try:
            if group is not None:
                await asyncio.to_thread(group.take_child, process.pid)
            await self._ask(first, START_S)
        except OSError as error:
            await self.close()
            raise SandboxDied(f"the sandbox could not be started: {error}") from error
        except BaseException:
            await self.close()
            raise
        return self

    @property
    def pid(self) -> int:
        """Of bubblewrap, on the host: everything in the sandbox ends with it."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.returncode is None

    async def shell(self, command: str, *, timeout_s: float) -> CommandResult:
        """One command in the persistent bash: folder, variables and functions live on.

        Raises:
            ValueError: the command is longer than 2 MB.
            SandboxDied: the sandbox ended.
        """
        answer = await self._ask_timed("shell", timeout_s, command=command)
        return _command_result(answer, self._limits.output_chars)

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", env: Mapping[str, str] | None = None, cwd: str = "/work",
        timeout_s: float,
    ) -> CommandResult:  # fmt: skip
        """A fresh process in a clean environment, which `env` adds to. What it leaves running ends with it.

        Raises:
            SandboxDied: the sandbox ended.
        """
        answer = await self._ask_timed(
            "run", timeout_s, argv=list(argv), stdin=base64.b64encode(stdin).decode(), env=dict(env or {}), cwd=cwd
        )
        return _command_result(answer, self._limits.output_chars)

    async def python(self, code: str, *, keep: bool, timeout_s: float) -> PythonResult:
        """Python in a warm interpreter. `keep`: with the names of earlier calls; else in one of its own.

        Raises:
            SandboxDied: the sandbox ended.
        """
        taken = ("value", "error", "error_type", "timed_out", "ended", "restarted", "duration_s")
        answer = await self._ask_timed("python", timeout_s, code=code, keep=keep)
        out, out_cut = _text(answer["stdout"], self._limits.output_chars)
        err, err_cut = _text(answer["stderr"], self._limits.output_chars)
        return PythonResult(
            stdout=out, stderr=err, stdout_cut=out_cut, stderr_cut=err_cut,
            **{name: answer[name] for name in taken},
        )  # fmt: skip

    async def write(self, files: Mapping[str, bytes], mode: int = 0o644) -> None:
        """Files, each at its path inside; parents are made, links in their place replaced.

        Raises:
            OSError: no room, or a path that can't be written.
            SandboxDied: the sandbox ended.
        """
        data = {path: base64.b64encode(content).decode() for path, content in files.items()}
        await self._ask({"ask": "write", "files": data, "mode": mode}, LATE_S)

    async def read(self, path: str, limit: int = READ_BYTES) -> bytes:
        """A regular file's content.

        Raises:
            OSError: FileNotFoundError, IsADirectoryError, PermissionError ...
            ValueError: no regular file, or more than `limit` bytes.
            SandboxDied: the sandbox ended.
        """
        answer = await self._ask({"ask": "read", "path": path, "limit": limit}, LATE_S)
        return base64.b64decode(answer["data"])

    async def clear(self) -> None:
        """End every process in it: shell, interpreter, whatever was left running. Files stay."""
        await self._ask({"ask": "clear"}, LATE_S)

    async def close(self) -> None:
        """End it and all in it. May be called twice."""
        await _end(self._process)
        await _remove(self._group)

    async def _ask_timed(self, ask: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        request = {"ask": ask, "timeout_s": timeout_s, "chars": self._limits.output_chars, **fields}
        answer = await self._ask(request, timeout_s + LATE_S)
        if self._group is not None and (struck := self._group.struck()) > self._struck:
            self._struck = struck
            most = f"{self._limits.memory_mb} MB of memory and {self._limits.disk_mb} MB of files"
            answer["ended"] = answer["ended"] or f"a process was killed: together they held more than {most}"
        return answer

    async def _ask(self, request: dict[str, Any], within_s: float) -> dict[str, Any]:
        async with self._lock:
            try:
                async with asyncio.timeout(within_s):
                    answer = await self._exchange(json.dumps(request).encode())
            except TimeoutError:
                await self.close()
                raise SandboxDied(f"the sandbox did not answer within {within_s:.0f} s and was ended") from None
            except (OSError, asyncio.IncompleteReadError, ValueError) as error:
                raise SandboxDied(f"the sandbox ended: {await self._last_words()}") from error
            except asyncio.CancelledError:  # half an exchange can't be taken up again
                await self.close()
                raise
        if "fault" in answer:
            raise _fault(answer)
        return answer

    async def _exchange(self, data: bytes) -> dict[str, Any]:
        self._process.stdin.write(len(data).to_bytes(4, "big") + data)
        await self._process.stdin.drain()
        size = int.from_bytes(await self._process.stdout.readexactly(4), "big")
        if size > MOST_BYTES:
            raise ValueError(f"an answer of {size} bytes")
        return json.loads(await self._process.stdout.readexactly(size))

    async def _last_words(self) -> str:
        struck = self._group is not None and self._group.struck() > self._struck
        await self.close()
        said = (await self._process.stderr.read(2000)).decode(errors="replace").strip()
        code = self._process.returncode
        if struck:
            said += " the kernel killed in it for want of memory"
        return f"{said or 'without a word'} (exit code {code})"


async def _spawn(argv: list[str], fds: tuple[int, ...]) -> asyncio.subprocess.Process:
    """The process. asyncio can't be cancelled while it makes one (it would wait for ever), so that is waited for."""
    made = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            pass_fds=fds, start_new_session=True,
        )
    )  # fmt: skip
    try:
        return await asyncio.shield(made)
    except asyncio.CancelledError:
        await _end(await made)
        raise


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):  # its group: what it forked may not have cut itself loose yet
            os.killpg(process.pid, signal.SIGKILL)
    for fd in range(3):  # who still holds their other ends must not hold us up
        if (pipe := process._transport.get_pipe_transport(fd)) is not None:
            pipe.close()
    await process.wait()


async def _remove(group: control_group.Group | None) -> None:
    """Take the group away once the last process in it is gone; else the next process that sweeps does."""
    until = time.monotonic() + GONE_S
    while group is not None and not group.remove() and time.monotonic() < until:
        await asyncio.sleep(0.001)


def _fault(answer: dict[str, Any]) -> Exception:
    """The request's own error, as Python has it."""
    if answer["fault"] == "ValueError":
        return ValueError(answer["why"])
    return OSError(answer["errno"], answer["why"], answer["path"] if isinstance(answer["path"], str) else None)


def _command_result(answer: dict[str, Any], limit: int) -> CommandResult:
    out, out_cut = _text(answer["stdout"], limit)
    err, err_cut = _text(answer["stderr"], limit)
    err = NO_TERMINAL.sub("", err)
    return CommandResult(
        exit_code=answer["exit_code"], stdout=out, stderr=err, stdout_cut=out_cut, stderr_cut=err_cut,
        timed_out=answer["timed_out"], ended=answer["ended"], duration_s=answer["duration_s"],
        cwd=answer.get("cwd", "/work"), shell_restarted=answer.get("restarted", False),
    )  # fmt: skip


def _text(part: list, limit: int) -> tuple[str, int]:
    """Head and tail as text of at most `limit` characters, and how much was left out."""
    head, tail = (base64.b64decode(data).decode("utf-8", "replace") for data in part[:2])
    whole, left_out = head + tail, part[2]
    if not left_out and len(whole) <= limit:
        return whole, 0
    half = limit // 2
    start, stop = (head[:half], tail[-half:]) if left_out else (whole[:half], whole[-half:])
    cut = left_out + len(head) + len(tail) - len(start) - len(stop)
    return f"{start}\n... ({cut} characters left out) ...\n{stop}", cut
