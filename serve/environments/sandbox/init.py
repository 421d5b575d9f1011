"""The first process (PID 1) of a sandbox: carries out what the host asks, one request at a time.

What it does: runs commands (fresh, or in a persistent bash), Python (in a warm fork), reads and writes files, all of it
inside the sandbox's own namespaces; bounds output, time, processes and memory; reaps what is orphaned.
What it leaves out: everything of ours. It runs on the system's python3 with the standard library alone (Python 3.9 on),
started by `bubblewrap.py`, spoken to by `sandbox.py`.

Frames on stdin and stdout: 4 bytes of length (big-endian), then JSON. Bytes inside are base64. When stdin ends, the
process ends, and the kernel ends everything else in the sandbox with it.

What runs here has this process's own user id. It can't signal PID 1, nor look into it: the process is not dumpable.
"""

import base64
import errno
import fcntl
import json
import os
import resource
import select
import signal
import stat
import sys
import time

PR_SET_DUMPABLE = 4
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
ENVIRONMENT = {"PATH": PATH, "HOME": "/home/agent", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "TERM": "dumb"}
ENVIRONMENT["USER"] = "agent"
WORK = "/work"
PACKAGES = "/opt/packages"
GRACE_S = 1.0  # between asking a shell or an interpreter to stop and killing it
WATCH_S = 0.1  # between two looks at the memory
KILL_AT_BYTES = 32 << 20  # of output of one step: more than that is endless
START_S = 10.0  # for a shell to begin
SCRIPT_BYTES = 2 << 20  # the longest command of the persistent shell


class Limits:
    """What the host set for this sandbox."""

    def __init__(self, memory_mb, processes, disk_mb, cpu_s):
        self.memory = memory_mb << 20
        self.processes = processes
        self.disk = disk_mb << 20
        self.cpu_s = cpu_s

    def apply(self):
        """On this process; what it starts inherits them. Memory in all is watched (`Watch`): no limit counts it."""
        for what, value in (
            (resource.RLIMIT_NPROC, self.processes + 1),
            (resource.RLIMIT_AS, self.memory * 2),
            (resource.RLIMIT_FSIZE, self.disk),
            (resource.RLIMIT_NOFILE, 256),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(what, (value, value))


def children():
    """The ids of all processes here but this one."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def started(pid):
    """When it began, in clock ticks since the machine's start; 0 where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return 0


def held(pid):
    """Bytes of memory that it holds for itself: anonymous and shared, without mapped files."""
    total = 0
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith((b"RssAnon:", b"RssShmem:")):
                    total += int(line.split()[1]) << 10
    except (OSError, ValueError):
        pass
    return total


class Reaper:
    """Exit statuses of whatever ended; orphans are ours too."""

    def __init__(self):
        self.ended = {}
        self.kept = set()  # ids whose status somebody will ask for

    def collect(self):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.kept:
                self.ended[pid] = os.waitstatus_to_exitcode(status)

    def take(self, pid):
        """Its exit code (negative: the signal), once it ended; else None."""
        self.collect()
        if pid not in self.ended:
            return None
        self.kept.discard(pid)
        return self.ended.pop(pid)


REAPER = Reaper()


def end(pids, by=signal.SIGKILL):
    for pid in pids:
        try:
            os.kill(pid, by)
        except ProcessLookupError:
            pass


class Watch:
    """Kills the largest process while all of them together hold more memory than allowed."""

    def __init__(self, limit):
        self.limit = limit
        self.next = 0.0
        self.struck = False

    def look(self):
        if time.monotonic() < self.next:
            return
        sizes = {pid: held(pid) for pid in children()}
        if sum(sizes.values()) > self.limit:
            self.struck = True
            end([max(sizes, key=sizes.get)])
        self.next = time.monotonic() + (0.0 if self.struck and sizes else WATCH_S)


class Capture:
    """The head and the tail of an output, and how much there was between them."""

    def __init__(self, fd, limit):
        self.fd = fd
        self.half = max(1, limit // 2)
        self.head = bytearray()
        self.tail = bytearray()
        self.total = 0

    def pump(self):
        """Take what is there. False at its end."""
        for _ in range(16):
            try:
                data = os.read(self.fd, 65536)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            self.total += len(data)
            room = self.half - len(self.head)
            if room > 0:
                self.head += data[:room]
                data = data[room:]
            if data:
                self.tail += data
                del self.tail[: -self.half]
        return True

    def result(self):
        """(base64 of head, base64 of tail, bytes left out between them)"""
        text = [base64.b64encode(bytes(part)).decode() for part in (self.head, self.tail)]
        return [*text, self.total - len(self.head) - len(self.tail)]


def pipe():
    """A pipe whose reading end does not block; neither end is inherited by accident."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    return read, write


def close(*fds):
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            pass


def become(limits, stdin, stdout, stderr, extra=()):
    """In a fresh fork: a session of its own, these as 0, 1, 2 (and `extra` as (fd, number)), nothing else open."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + 1))
    wanted = ((stdin, 0), (stdout, 1), (stderr, 2), *extra)
    moved = [(fcntl.fcntl(fd, fcntl.F_DUPFD, 10), number) for fd, number in wanted]
    for fd, number in moved:
        os.dup2(fd, number, inheritable=True)
    numbers = {number for _, number in moved}
    for fd in range(3, 256):
        if fd not in numbers:
            close(fd)


def spawn(limits, argv, env, cwd, stdin, stdout, stderr, extra=()):
    """Fork and exec. The child says on stderr where it can't begin, and ends with 126 or 127."""
    pid = os.fork()
    if pid:
        REAPER.kept.add(pid)
        return pid
    try:
        become(limits, stdin, stdout, stderr, extra)
        os.chdir(cwd)
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        os._exit(127 if error.errno == errno.ENOENT else 126)
    finally:
        os._exit(126)


class Step:
    """One thing that runs under limits: pumps its outputs until `finished` says so, or a limit ends it."""

    def __init__(self, host, limits, out, err, timeout_s, chars):
        self.host, self.limits = host, limits
        self.captures = {fd: Capture(fd, chars * 4) for fd in (out, err)}
        self.out, self.err = out, err
        self.begun = time.monotonic()
        self.until = self.begun + timeout_s
        self.watch = Watch(limits.memory)
        self.timed_out = False
        self.ended = None

    def wait(self, finished, more=()):
        """Until `finished()`, the time is up, or too much came out. True if finished."""
        poll = select.poll()
        for fd in (*self.captures, *more, self.host.wake, 0):
            poll.register(fd, select.POLLIN)
        while not finished():
            left = self.until - time.monotonic()
            if left <= 0:
                self.timed_out = True
                return False
            for fd, _ in poll.poll(min(left, WATCH_S) * 1000):
                if fd == 0:
                    self.host.hung_up()
                elif fd == self.host.wake:
                    os.read(fd, 4096)
                elif fd in self.captures and not self.captures[fd].pump():
                    poll.unregister(fd)
            self.watch.look()
            if sum(capture.total for capture in self.captures.values()) > KILL_AT_BYTES:
                self.ended = f"it was ended: it wrote more than {KILL_AT_BYTES >> 20} MB"
                return False
        return True

    def report(self, **more):
        for capture in self.captures.values():
            capture.pump()
        if self.watch.struck:
            self.ended = f"a process was killed: together they held more than {self.limits.memory >> 20} MB of memory"
        return {
            "stdout": self.captures[self.out].result(),
            "stderr": self.captures[self.err].result(),
            "timed_out": self.timed_out,
            "ended": self.ended,
            "duration_s": time.monotonic() - self.begun,
            **more,
        }


def run(host, limits, argv, stdin, env, cwd, timeout_s, chars):
    """A fresh process. What it leaves running in its group is ended with it."""
    (out, out_w), (err, err_w) = pipe(), pipe()
    source = open_with(stdin) if stdin else os.open("/dev/null", os.O_RDONLY)
    pid = spawn(limits, argv, {**ENVIRONMENT, **env}, cwd, source, out_w, err_w)
    close(out_w, err_w, source)
    step = Step(host, limits, out, err, timeout_s, chars)
    code = None

    def finished():
        nonlocal code
        code = REAPER.take(pid)
        return code is not None

    step.wait(finished)
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    while code is None:
        finished()
        time.sleep(0.001)
    report = step.report(exit_code=code)
    close(out, err)
    return report


def open_with(data):
    """A nameless file with this content, to read from."""
    fd = os.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


class Shell:
    """A bash that lives on between steps: interactive, so that an interrupt ends a command and not the shell."""

    ARGV = ("bash", "--norc", "--noprofile", "--noediting", "+m", "+H", "-i")

    def __init__(self, host, limits):
        self.host = host
        self.limits = limits
        self.pid = None
        self.cwd = WORK
        self.script = os.open("/run", os.O_TMPFILE | os.O_RDWR, 0o600)
        os.posix_fallocate(self.script, 0, SCRIPT_BYTES)  # there is room for a command on a full disk too

    def start(self):
        stdin, self.stdin = os.pipe()
        (self.out, out_w), (self.err, err_w), (self.status, status_w) = pipe(), pipe(), pipe()
        cwd = self.cwd if os.path.isdir(self.cwd) else WORK
        env = {**ENVIRONMENT, "PS1": "", "PS2": ""}
        extra = ((self.script, 8), (status_w, 9))
        self.pid = spawn(self.limits, self.ARGV, env, cwd, stdin, out_w, err_w, extra)
        close(stdin, out_w, err_w, status_w)
        token = os.urandom(8).hex()
        state = {"code": None, "dead": None, "said": b""}
        os.write(self.stdin, b"PS1= PS2= PROMPT_COMMAND=; set +o history; unset HISTFILE\n" + self._say(token))
        until = time.monotonic() + START_S
        while not self._look(state, token):  # what bash says when it begins is nobody's output
            if state["dead"] is not None or time.monotonic() > until:
                raise OSError(errno.EAGAIN, "no shell could be started: too many processes, or no memory")
            select.select([self.status, self.host.wake], [], [], WATCH_S)
        for fd in (self.out, self.err):
            Capture(fd, 1).pump()

    @staticmethod
    def _say(token):
        """The line that reports: token, exit code, folder. Its own trace, if tracing is on, goes nowhere."""
        return f"{{ \\builtin printf '%s %d %s\\0' {token} $? \"$PWD\" >&9; }} 2>/dev/null\n".encode()

    def stop(self):
        if self.pid is None:
            return
        end([self.pid])
        while REAPER.take(self.pid) is None:
            time.sleep(0.001)
        close(self.stdin, self.out, self.err, self.status)
        self.pid = None

    def run(self, host, command, timeout_s, chars):
        """One command; its exit code is None where it was ended."""
        data = command.encode("utf-8", "surrogateescape")
        if len(data) > SCRIPT_BYTES:
            raise ValueError(f"a command of {len(data)} bytes is longer than the {SCRIPT_BYTES} allowed")
        if self.pid is None:
            self.start()
        os.ftruncate(self.script, 0)
        os.pwrite(self.script, data, 0)
        token = os.urandom(8).hex()
        ticks = ticks_now()
        os.write(
            self.stdin,
            b'eval "$(</dev/fd/8)" </dev/null 8<&- 9>&-\n' + self._say(token),
        )
        step = Step(host, self.limits, self.out, self.err, timeout_s, chars)
        state = {"code": None, "dead": None, "said": b""}

        def finished():
            return self._look(state, token)

        restarted = False
        if not step.wait(finished, [self.status]):
            restarted = not self._interrupt(step, finished, ticks)
        if state["dead"] is not None:
            step.ended = step.ended or f"the shell itself ended with exit code {state['dead']}"
            restarted = True
        report = step.report(exit_code=state["code"] if state["dead"] is None else state["dead"])
        os.ftruncate(self.script, 0)
        os.posix_fallocate(self.script, 0, SCRIPT_BYTES)
        if restarted:
            self.stop()
            self.start()
        return {**report, "cwd": self.cwd, "restarted": restarted}

    def _look(self, state, token):
        """Whether the status line came, or the shell is gone."""
        while True:
            try:
                data = os.read(self.status, 65536)
            except BlockingIOError:
                break
            if not data:
                break
            state["said"] += data
        start = state["said"].find(token.encode())
        line = state["said"][start:].partition(b"\0") if start >= 0 else (b"", b"", b"")
        if line[1]:
            _, code, cwd = line[0].split(b" ", 2)
            state["code"] = int(code)
            self.cwd = cwd.decode("utf-8", "surrogateescape")
            return True
        REAPER.collect()
        if self.pid in REAPER.ended:
            state["dead"] = REAPER.ended[self.pid]
            return True
        return False

    def _interrupt(self, step, finished, ticks):
        """End what the step started, and the command in the shell. True if the shell lives on."""
        reason, step.until = step.timed_out, time.monotonic() + GRACE_S
        send = signal.SIGINT  # as a terminal would: bash gives up the whole command line only if its child died of this
        while time.monotonic() < step.until:
            end([pid for pid in children() if pid != self.pid and started(pid) >= ticks], send)
            end([self.pid], signal.SIGINT)
            send = signal.SIGKILL
            deadline = time.monotonic() + 0.05
            while time.monotonic() < deadline:
                for capture in step.captures.values():
                    capture.pump()
                if finished():
                    step.timed_out = reason
                    return True
                time.sleep(0.002)
        end([pid for pid in children() if pid != self.pid and started(pid) >= ticks])
        return False


def ticks_now():
    """Now, in the clock of `started`."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


class Python:
    """A Python that is forked from this warm process: one that keeps its names, or one for each piece of code."""

    def __init__(self, limits):
        self.limits = limits
        self.pid = None
        self.count = 0

    def start(self):
        requests, self.requests = os.pipe()
        (self.out, out_w), (self.err, err_w), (self.results, results_w) = pipe(), pipe(), pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                null = os.open("/dev/null", os.O_RDONLY)
                become(self.limits, null, out_w, err_w, ((requests, 8), (results_w, 9)))
                signal.signal(signal.SIGINT, signal.default_int_handler)
                os.chdir(WORK)
                os.environ.clear()
                os.environ.update(ENVIRONMENT)
                serve_code(8, 9)
            finally:
                os._exit(0)
        REAPER.kept.add(self.pid)
        close(requests, out_w, err_w, results_w)

    def stop(self):
        if self.pid is None:
            return
        end([self.pid])
        while REAPER.take(self.pid) is None:
            time.sleep(0.001)
        close(self.requests, self.out, self.err, self.results)
        self.pid = None

    def run(self, host, code, keep, timeout_s, chars):
        """One piece of code: what it printed, its last expression's repr, its traceback."""
        if not keep:
            self.stop()
        if self.pid is None:
            self.start()
        self.count += 1
        ticks = ticks_now()
        data = json.dumps({"code": code, "name": f"<call {self.count}>", "chars": chars}).encode()
        step = Step(host, self.limits, self.out, self.err, timeout_s, chars)
        state = {"said": b"", "result": None, "dead": None}
        self._send(data, step)
        restarted = False

        def finished():
            return self._look(state)

        if not step.wait(finished, [self.results]):
            end([pid for pid in children() if pid != self.pid and started(pid) >= ticks])
            os.kill(self.pid, signal.SIGINT)
            timed_out, step.until = step.timed_out, time.monotonic() + GRACE_S
            restarted = not step.wait(finished, [self.results])
            step.timed_out = timed_out
        if state["dead"] is not None:
            step.ended = step.ended or f"the interpreter ended with exit code {state['dead']}"
            restarted = True
        report = step.report(**(state["result"] or {"value": None, "error": None, "error_type": None}))
        if restarted or not keep:
            self.stop()
        return {**report, "restarted": restarted}

    def _send(self, data, step):
        view = memoryview(len(data).to_bytes(4, "big") + data)
        os.set_blocking(self.requests, False)
        while view and time.monotonic() < step.until:
            try:
                view = view[os.write(self.requests, view) :]
            except BlockingIOError:
                time.sleep(0.001)
            except BrokenPipeError:
                return

    def _look(self, state):
        while True:
            try:
                data = os.read(self.results, 65536)
            except BlockingIOError:
                break
            if not data:
                break
            state["said"] += data
        said = state["said"]
        if len(said) >= 4 and len(said) - 4 >= (size := int.from_bytes(said[:4], "big")):
            try:
                result = json.loads(said[4 : 4 + size])
                state["result"] = {name: result[name] for name in ("value", "error", "error_type")}
            except (ValueError, KeyError, TypeError):
                state["result"] = {"value": None, "error": "the result could not be read", "error_type": "Error"}
            return True
        REAPER.collect()
        if self.pid in REAPER.ended:
            state["dead"] = REAPER.ended[self.pid]
            return True
        return False


def serve_code(requests, results):
    """In the fork: run code as it comes, answer with value and error."""
    import io

    # code runs as that of a program of its own, not with this module's names
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    module.exit = module.quit = sys.exit  # what `site` would have brought
    sys.argv = [""]
    sys.stdin = io.TextIOWrapper(io.FileIO(0), encoding="utf-8")
    for fd, stream in ((1, "stdout"), (2, "stderr")):
        opened = io.TextIOWrapper(io.FileIO(fd, "w"), encoding="utf-8", errors="replace", write_through=True)
        setattr(sys, stream, opened)
        setattr(sys, f"__{stream}__", opened)
    sys.path.insert(0, WORK)
    while True:
        header = read_exactly(requests, 4)
        if header is None:
            return
        request = json.loads(read_exactly(requests, int.from_bytes(header, "big")))
        answer = json.dumps(execute(request["code"], request["name"], module.__dict__, request["chars"])).encode()
        data = memoryview(len(answer).to_bytes(4, "big") + answer)
        while data:
            data = data[os.write(results, data) :]


def read_exactly(fd, size):
    data = b""
    while len(data) < size:
        part = os.read(fd, size - len(data))
        if not part:
            return None
        data += part
    return data


def execute(code, name, names, chars):
    """Run it; the repr of its last expression, or the traceback without the frames of this file."""
    import ast
    import linecache
    import traceback

    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    try:
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), names)
        value = eval(compile(ast.Expression(last.value), name, "eval"), names) if last is not None else None
        shown = None if value is None else repr(value)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BaseException as error:  # whatever the code raises is its result
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == execute.__code__.co_filename:
            frames = frames.tb_next
        if frames is not None and isinstance(error, SyntaxError) and frames.tb_frame.f_code.co_filename != name:
            frames = None  # the code never began: only the parser's frames are there
        lines = traceback.format_exception(type(error), error, frames)
        return {"value": None, "error": cut("".join(lines).rstrip(), chars), "error_type": type(error).__name__}
    return {"value": cut(shown, chars), "error": None, "error_type": None}


def cut(text, limit):
    if text is None or len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... ({len(text) - 2 * half} characters left out) ...\n{text[-half:]}"


def write_files(files, mode):
    """Each to its path; parents are made. A symbolic link in the place of the file is replaced, not followed."""
    for path, data in files.items():
        os.makedirs(os.path.dirname(path) or "/", exist_ok=True)
        try:
            os.unlink(path)
        except (FileNotFoundError, IsADirectoryError, PermissionError):
            pass
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
        with os.fdopen(fd, "wb") as file:
            file.write(base64.b64decode(data))
        os.chmod(path, mode)
    return {}


def read_file(path, limit):
    """A regular file's content: neither a pipe nor a device can block or bomb the reader."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        kind = os.fstat(fd)
        if stat.S_ISDIR(kind.st_mode):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        if not stat.S_ISREG(kind.st_mode):
            raise ValueError(f"{path}: no regular file")
        if kind.st_size > limit:
            raise ValueError(f"{path}: {kind.st_size} bytes, more than the {limit} allowed")
        return {"data": base64.b64encode(file.read(limit)).decode()}


class Host:
    """The requests, in order."""

    def __init__(self):
        first = self.receive()
        self.limits = Limits(**first["limits"])
        if first["packages"]:
            ENVIRONMENT["PYTHONPATH"] = PACKAGES
            sys.path.append(PACKAGES)
        self.wake, wake_w = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake_w, False)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.limits.apply()
        self.shell = Shell(self, self.limits)
        self.python = Python(self.limits)
        for name in first["warm"]:
            self.warm(name)

    def warm(self, name):
        if name == "shell":
            self.shell.start()
        else:
            import ast  # noqa: F401 - what the forks would import each for itself
            import linecache  # noqa: F401
            import traceback  # noqa: F401

            self.python.start()

    def hung_up(self):
        """The host spoke during a step: it only ever does so by closing."""
        os._exit(0)

    def receive(self):
        header = read_exactly(0, 4)
        if header is None:
            os._exit(0)
        return json.loads(read_exactly(0, int.from_bytes(header, "big")))

    def send(self, answer):
        data = json.dumps(answer).encode("utf-8", "replace")
        view = memoryview(len(data).to_bytes(4, "big") + data)
        while view:
            view = view[os.write(1, view) :]

    def idle(self):
        """Until the next request: reap, and watch what was left running."""
        watch = Watch(self.limits.memory)
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        while True:
            busy = len(children()) > 0
            for fd, _ in poll.poll(WATCH_S * 3000 if busy else None):
                if fd == 0:
                    return
                os.read(self.wake, 4096)
            REAPER.collect()
            watch.look()

    def clear(self):
        self.shell.stop()
        self.python.stop()
        while left := children():
            end(left)
            REAPER.collect()
            time.sleep(0.001)
        return {}

    def answer(self, request):
        ask = request.pop("ask")
        if ask == "run":
            request["stdin"] = base64.b64decode(request["stdin"])
            return run(self, self.limits, **request)
        if ask == "shell":
            return self.shell.run(self, **request)
        if ask == "python":
            return self.python.run(self, **request)
        if ask == "write":
            return write_files(**request)
        if ask == "read":
            return read_file(**request)
        assert ask == "clear", ask
        return self.clear()

    def serve(self):
        self.send({"ready": os.getpid()})
        while True:
            self.idle()
            request = self.receive()
            try:
                answer = self.answer(request)
            except OSError as error:  # the request's own fault: a path, no room
                answer = {"fault": "OSError", "errno": error.errno, "why": error.strerror, "path": error.filename}
            except ValueError as error:  # the request's own fault: a size
                answer = {"fault": "ValueError", "why": str(error)}
            self.send(answer)


def harden():
    """Nobody here may look into this process, end it by a signal, or outlive memory that runs short."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass


if __name__ == "__main__":
    harden()
    Host().serve()
