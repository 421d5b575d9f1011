"""The first process (PID 1) of a sandbox: carries out what the host asks, one request at a time.

What it does: runs commands (fresh, or in a persistent bash), Python (in a warm fork), reads and writes files, all of it
inside the sandbox's own namespaces; bounds output, time, processes and memory; reaps what is orphaned.
What it leaves out: everything of ours. It runs on the system's python3 with the standard library alone (Python 3.9 on),
started by `bubblewrap.py`, spoken to by `sandbox.py`.

Frames on stdin and stdout: 4 bytes of length (big-endian), then JSON. Bytes inside are base64. When stdin ends, the
process ends, and the kernel ends everything else in the sandbox with it.

What runs here has this process's own user id. It can't signal PID 1, nor look into it (the process is not dumpable),
nor change its limits and priorities (the system call filter). What it says over a pipe is read as if an enemy wrote it.

`signal`, `json` and `base64` are not imported: each start would wait for `enum` and `re`, which is half of its time.
"""

import _signal as signal
import binascii
import errno
import fcntl
import os
import resource
import select
import stat
import sys
import time
from _json import encode_basestring_ascii, make_scanner

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
STATUS_BYTES = 1 << 16  # of what a shell may say beside its status line
MOST_OPEN = 256  # files that one process may have open
MOST_FILES = 100_000  # in all memory file systems: inodes are memory that their size does not count
MORE_FILES = 1000
MOUNTS = ("/work", "/home/agent", "/tmp", "/dev/shm", "/run")


class Scanner:
    """How JSON is read."""

    strict, memo = True, {}
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float


def from_json(data):
    """What the host said: it is JSON, or this process ends."""
    return make_scanner(Scanner)(data.decode(), 0)[0]


def to_json(value):
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if isinstance(value, dict):
        return f"{{{','.join(f'{to_json(name)}:{to_json(one)}' for name, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(to_json, value))}]"
    return "null" if value is None else str(value).lower()


def base64(data):
    return binascii.b2a_base64(data, newline=False).decode()


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
            (resource.RLIMIT_NOFILE, MOST_OPEN),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(what, (value, value))


def children():
    """The ids of all processes here but this one."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def fact(pid, number):
    """A field of /proc/pid/stat, counted from its state; 0 where the process is gone."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
        try:
            return int(os.read(fd, 2000).rpartition(b")")[2].split()[number])
        finally:
            os.close(fd)
    except (OSError, IndexError):
        return 0


PARENT, THREADS, STARTED = 1, 17, 19


def since(ticks, but=None):
    """Processes that began at this time (`ticks_now`) or later."""
    return [pid for pid in children() if pid != but and fact(pid, STARTED) >= ticks]


def strays(before):
    """Processes that neither are in `before` nor descend from one of it."""
    parents = {pid: fact(pid, PARENT) for pid in children()}
    found = []
    for pid in parents:
        up = pid
        while up > 1 and up not in before:
            up = parents.get(up, 0)
        if up not in before:
            found.append(pid)
    return found


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

    def ended_already(self, pid):
        """Whether it ended; its status stays to be taken."""
        self.collect()
        return pid in self.ended

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


def end_all():
    """Every process but this one; at a blow, so that none can fork its way out."""
    while children():
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass
        REAPER.collect()
        time.sleep(0.0005)


def end_each(find):
    """What `find()` finds, until it finds nothing; everything where that takes too long."""
    until = time.monotonic() + GRACE_S
    while pids := find():
        if time.monotonic() > until:
            return end_all()
        end(pids)
        REAPER.collect()
        time.sleep(0.0005)


class Rank:
    """How soon the kernel ends a process where memory runs short: what is forked before PID 1, and before the host."""

    FIRST = b"1000"

    def __init__(self):
        self.fd = os.open("/proc/self/oom_score_adj", os.O_RDWR)
        self.own = os.read(self.fd, 16).strip()

    def set(self, score):
        os.pwrite(self.fd, score, 0)


RANK = None  # `harden` makes it: afterwards this process can't open that file any more


def fork():
    """A fork; where there are too many processes for one more, all others are ended."""
    RANK.set(Rank.FIRST)  # for the child, which inherits it
    try:
        pid = os.fork()
    except BlockingIOError:
        end_all()
        pid = os.fork()
    if pid:
        RANK.set(RANK.own)
    return pid


class Watch:
    """Kills the largest process while all of them together hold more memory than allowed; all, if files abound."""

    files = MOST_FILES  # that there may be; once there were more, they stay, and only as many more again are too many

    def __init__(self, limit):
        self.limit = limit
        self.next = 0.0
        self.why = None  # it struck

    def look(self):
        if time.monotonic() < self.next:
            return
        sizes = {pid: held(pid) for pid in children()}
        if sum(sizes.values()) > self.limit:
            self.why = f"a process was killed: together they held more than {self.limit >> 20} MB of memory"
            end([max(sizes, key=sizes.get)])
        files = sum(room.f_files - room.f_ffree for room in map(os.statvfs, MOUNTS))
        if files > Watch.files:
            self.why = f"it was ended: there were more files than the {MOST_FILES} that there may be"
            end_all()
            Watch.files = files + MORE_FILES
        self.next = time.monotonic() + (0.0 if self.why and sizes else WATCH_S)


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
        text = [base64(part) for part in (self.head, self.tail)]
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
    low = 3
    for number in sorted(number for _, number in moved if number >= low):
        os.closerange(low, number)
        low = number + 1
    os.closerange(low, MOST_OPEN)


def spawn(limits, argv, env, cwd, stdin, stdout, stderr, extra=()):
    """Fork and exec. The child says on stderr where it can't begin, and ends with 126 or 127."""
    pid = fork()
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
        self.host = host
        self.captures = {fd: Capture(fd, chars * 4) for fd in (out, err)}
        self.out, self.err = out, err
        self.begun = time.monotonic()
        self.until = self.begun + timeout_s
        self.watch = Watch(limits.memory)
        self.timed_out = False
        self.ended = None

    def wait(self, finished, more=(), feed=None):
        """Until `finished()`, the time is up, or too much came out. True if finished. `feed`: what it is given."""
        poll = select.poll()
        for fd in (*self.captures, *more, self.host.wake, 0):
            poll.register(fd, select.POLLIN)
        if feed is not None:
            poll.register(feed.fd, select.POLLOUT)
        while not finished():
            left = self.until - time.monotonic()
            if left <= 0:
                self.timed_out = True
                return False
            for fd, event in poll.poll(min(left, WATCH_S) * 1000):
                if fd == 0:
                    self.host.hung_up()
                elif fd == self.host.wake:
                    os.read(fd, 4096)
                elif fd in self.captures:
                    if not self.captures[fd].pump():
                        poll.unregister(fd)
                elif feed is not None and fd == feed.fd:
                    if not feed.push():
                        poll.unregister(fd)
                        feed.close()
                elif not event & select.POLLIN:  # nobody can say anything there any more
                    poll.unregister(fd)
            self.watch.look()
            if sum(capture.total for capture in self.captures.values()) > KILL_AT_BYTES:
                self.ended = f"it was ended: it wrote more than {KILL_AT_BYTES >> 20} MB"
                return False
        return True

    def report(self, **more):
        for capture in self.captures.values():
            capture.pump()
        self.ended = self.watch.why or self.ended
        return {
            "stdout": self.captures[self.out].result(),
            "stderr": self.captures[self.err].result(),
            "timed_out": self.timed_out,
            "ended": self.ended,
            "duration_s": time.monotonic() - self.begun,
            **more,
        }


class Feed:
    """What a process is given on stdin, as fast as it takes it."""

    def __init__(self, data):
        self.view = memoryview(data)
        self.source, self.fd = os.pipe()
        os.set_blocking(self.fd, False)
        if not self.push():
            self.close()

    def push(self):
        """False once nothing more is to be written."""
        try:
            while self.view:
                self.view = self.view[os.write(self.fd, self.view) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            pass
        return False

    def close(self):
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


def run(host, limits, argv, stdin, env, cwd, timeout_s, chars):
    """A fresh process. What it leaves running is ended with it."""
    (out, out_w), (err, err_w) = pipe(), pipe()
    feed = Feed(stdin)
    before = set(children())
    try:
        pid = spawn(limits, argv, {**ENVIRONMENT, **env}, cwd, feed.source, out_w, err_w)
        close(out_w, err_w, feed.source)
        step = Step(host, limits, out, err, timeout_s, chars)
        code = None

        def finished():
            nonlocal code
            code = REAPER.take(pid)
            return code is not None

        step.wait(finished, feed=feed if feed.fd >= 0 else None)
        end_each(lambda: strays(before))
        while code is None:
            finished()
        return step.report(exit_code=code)
    finally:
        feed.close()
        close(out, err)


class Lasting:
    """A process that lives on between requests: its id, None where there is none, and our ends of its pipes."""

    PIPES = ()  # names of the attributes that hold them

    def __init__(self, limits):
        self.limits = limits
        self.pid = None

    def stop(self):
        if self.pid is None:
            return
        end([self.pid])
        while REAPER.take(self.pid) is None:
            time.sleep(0.001)
        close(*(getattr(self, name) for name in self.PIPES))
        self.pid = None


class Shell(Lasting):
    """A bash that lives on between steps: interactive, so that an interrupt ends a command and not the shell."""

    PIPES = ("stdin", "out", "err", "status")
    ARGV = ("/usr/bin/bash", "--norc", "--noprofile", "--noediting", "+m", "+H", "-i")
    EVAL = b'\\builtin eval "$(</dev/fd/8)" </dev/null 8<&- 9>&-\n'

    def __init__(self, host, limits):
        super().__init__(limits)
        self.host = host
        self.cwd = WORK
        self.script = host.script

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
        while not self._look(state, token) or state["dead"] is not None:
            if state["dead"] is not None or time.monotonic() > until:
                self.stop()
                raise OSError(errno.EAGAIN, "no shell could be started: too many processes, or no memory")
            if self.host.wake in select.select([self.status, self.host.wake], [], [], WATCH_S)[0]:
                os.read(self.host.wake, 4096)
        # what bash says when it begins is nobody's output
        for fd in (self.out, self.err):
            Capture(fd, 1).pump()

    @staticmethod
    def _say(token):
        """The lines that report: token, exit code, folder. Their own trace, if tracing is on, goes nowhere.

        The empty line first: after an open quote, bash takes the next word for no keyword. A function that is named
        `builtin` would come before the real one.
        """
        report = f'\\builtin printf \'%s %d %.4096s\\0\' {token} "$__code" "$PWD" >&9'
        return f'\n{{ for __code in "$?"; do \\unset -f builtin; {report}; done; }} 2>/dev/null\n'.encode()

    def run(self, host, command, timeout_s, chars):
        """One command; its exit code is None where it was ended."""
        data = command.encode("utf-8", "surrogateescape")
        if len(data) > SCRIPT_BYTES:
            raise ValueError(f"a command of {len(data)} bytes is longer than the {SCRIPT_BYTES} allowed")
        restarted = self._make_ready()
        os.ftruncate(self.script, 0)
        os.pwrite(self.script, data, 0)
        token = os.urandom(8).hex()
        ticks = ticks_now()
        try:
            os.write(self.stdin, self.EVAL + self._say(token))
        except BrokenPipeError:  # it ended just now: `_look` tells
            pass
        step = Step(host, self.limits, self.out, self.err, timeout_s, chars)
        state = {"code": None, "dead": None, "said": b""}

        def finished():
            return self._look(state, token)

        renew = False
        if not step.wait(finished, [self.status]):
            renew = not self._interrupt(step, finished, ticks)
        if state["dead"] is not None:
            step.ended = step.ended or f"the shell itself ended with exit code {state['dead']}"
            renew = True
        report = step.report(exit_code=state["code"] if state["dead"] is None else state["dead"])
        if renew:
            self.stop()
            self.start()
        cwd = self.cwd.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return {**report, "cwd": cwd, "restarted": restarted or renew}

    def _make_ready(self):
        """See that there is a shell, and room for what it starts. True if an earlier one is gone."""
        had = self.pid is not None
        if had:
            others = [pid for pid in children() if pid != self.pid]
            if others and self.limits.processes - sum(fact(pid, THREADS) for pid in [self.pid, *others]) < 2:
                end_all()
            if REAPER.ended_already(self.pid):
                self.stop()
        if self.pid is None:
            self.start()
            return had
        return False

    def _look(self, state, token):
        """Whether the status line came, or the shell is gone. A command may have written there too, and without end."""
        state["said"] += take(self.status)
        start = state["said"].find(token.encode())
        line = state["said"][start:].partition(b"\0") if start >= 0 else (b"", b"", b"")
        parts = line[0].split(b" ", 2)
        if line[1] and len(parts) == 3 and parts[1].isdigit():
            state["code"] = int(parts[1]) & 255
            self.cwd = parts[2].decode("utf-8", "surrogateescape")
            return True
        if len(state["said"]) > STATUS_BYTES:
            state["said"] = state["said"][-STATUS_BYTES // 2 :]
        if REAPER.ended_already(self.pid):
            state["dead"] = REAPER.ended[self.pid]
            return True
        return False

    def _interrupt(self, step, finished, ticks):
        """End what the step started, and the command in the shell. True if the shell lives on."""
        reason, step.until = step.timed_out, time.monotonic() + GRACE_S
        send = signal.SIGINT  # as a terminal would: bash gives up the whole command line only if its child died of this
        while time.monotonic() < step.until:
            end(since(ticks, self.pid), send)
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
        end([self.pid])
        end_each(lambda: since(ticks, self.pid))
        return False


def take(fd):
    """What can be read there now, without waiting; some of it, where it never ends."""
    data = b""
    try:
        while len(data) < STATUS_BYTES and (part := os.read(fd, 65536)):
            data += part
    except OSError:
        pass
    return data


def ticks_now():
    """Now, in the clock of processes' beginnings."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


class Python(Lasting):
    """A Python that is forked from this warm process: one that keeps its names, or one for each piece of code.

    The fork has a copy of this process's memory. Once that held what the host alone is to know (files it wrote,
    commands it ran), a Python is started anew instead.
    """

    PIPES = ("requests", "out", "err", "results")
    ANEW = ("/usr/bin/python3", "-I", "-S", "/opt/init.pyc", "serve")

    def __init__(self, limits):
        super().__init__(limits)
        self.count = 0
        self.used = False  # the one that waits has run something
        self.told = False  # this process knows what its forks must not

    def start(self):
        self.used = False
        requests, self.requests = os.pipe()
        (self.out, out_w), (self.err, err_w), (self.results, results_w) = pipe(), pipe(), pipe()
        extra = ((requests, 8), (results_w, 9))
        null = os.open("/dev/null", os.O_RDONLY)
        if self.told:
            self.pid = spawn(self.limits, self.ANEW, ENVIRONMENT, WORK, null, out_w, err_w, extra)
        elif (pid := self._fork()) == 0:
            try:
                become(self.limits, null, out_w, err_w, extra)
                os.chdir(WORK)
                os.environ.clear()
                os.environ.update(ENVIRONMENT)
                serve_code(8, 9)
            finally:
                os._exit(0)
        else:
            REAPER.kept.add(pid)
            self.pid = pid
        close(null, requests, out_w, err_w, results_w)

    @staticmethod
    def _fork():
        import ast  # noqa: F401 - what the forks would import each for itself
        import io  # noqa: F401
        import linecache  # noqa: F401
        import traceback  # noqa: F401

        return fork()

    def run(self, host, code, keep, timeout_s, chars):
        """One piece of code: what it printed, its last expression's repr, its traceback."""
        restarted = self.pid is not None and REAPER.ended_already(self.pid)
        if restarted or (self.used and not keep):
            self.stop()
        before = set(children())
        if self.pid is None:
            self.start()
        self.count += 1
        self.used = True
        ticks = ticks_now()
        token = os.urandom(8)
        request = {"code": code, "name": f"<call {self.count}>", "chars": chars, "token": token.hex()}
        step = Step(host, self.limits, self.out, self.err, timeout_s, chars)
        state = {"token": token, "said": b"", "most": 16 * chars + STATUS_BYTES, "result": None, "dead": None}
        self._send(to_json(request).encode(), step)

        def finished():
            return self._look(state)

        renew = False
        if not step.wait(finished, [self.results]):
            end_each(lambda: since(ticks, self.pid))
            end([self.pid], signal.SIGINT)
            timed_out, step.until = step.timed_out, time.monotonic() + GRACE_S
            renew = not step.wait(finished, [self.results])
            step.timed_out = timed_out
        if state["dead"] is not None:
            step.ended = step.ended or f"the interpreter ended with exit code {state['dead']}"
            renew = True
        report = step.report(**(state["result"] or {"value": None, "error": None, "error_type": None}))
        if renew or not keep:
            self.stop()
        if not keep:
            end_each(lambda: strays(before))
        return {**report, "restarted": restarted or renew}

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
        """Whether an answer to this request came, or the interpreter is gone. Code may have written there too."""
        state["said"] += take(self.results)
        start = state["said"].find(state["token"])
        fields = unpack(state["said"][start + len(state["token"]) :]) if start >= 0 else None
        if fields is not None:
            state["result"] = {"value": fields[0], "error": fields[1], "error_type": fields[2]}
            return True
        if len(state["said"]) > state["most"]:
            state["said"] = state["said"][-STATUS_BYTES // 2 :]
        if REAPER.ended_already(self.pid):
            state["dead"] = REAPER.ended[self.pid]
            return True
        return False


NOTHING = (1 << 32) - 1


def pack(texts):
    """Texts or None, each after its length in bytes."""
    data = bytearray()
    for text in texts:
        encoded = b"" if text is None else text.encode("utf-8", "replace")
        data += (NOTHING if text is None else len(encoded)).to_bytes(4, "big") + encoded
    return data


def unpack(data, count=3):
    """The reverse, once `data` holds them all; else None."""
    texts, at = [], 0
    for _ in range(count):
        if len(data) < at + 4:
            return None
        size = int.from_bytes(data[at : at + 4], "big")
        at += 4
        if size == NOTHING:
            texts.append(None)
            continue
        if len(data) < at + size:
            return None
        texts.append(data[at : at + size].decode("utf-8", "replace"))
        at += size
    return texts


def serve_code(requests, results):
    """In the fork: run code as it comes, answer with value and error."""
    import io

    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.path.isdir(PACKAGES) and PACKAGES not in sys.path:
        sys.path.append(PACKAGES)
    own, leave, write, identify = os.getpid(), os._exit, os.write, os.getpid
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
        request = from_json(read_exactly(requests, int.from_bytes(header, "big")))
        answer = execute(request["code"], request["name"], module.__dict__, request["chars"])
        if identify() != own:  # the code forked, and this is the child: one answer is enough
            leave(0)
        data = memoryview(bytes.fromhex(request["token"]) + pack(answer))
        while data:
            data = data[write(results, data) :]


def read_exactly(fd, size):
    data = bytearray()
    while len(data) < size:
        part = os.read(fd, min(size - len(data), 1 << 16))  # a pipe holds no more, and room for more takes time to make
        if not part:
            return None
        data += part
    return data


def execute(code, name, names, chars):
    """Run it: (repr of its last expression, traceback without the frames of this file, kind of error)."""
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
    except BaseException as error:  # whatever the code raises is its result
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == execute.__code__.co_filename:
            frames = frames.tb_next
        if frames is not None and isinstance(error, SyntaxError) and frames.tb_frame.f_code.co_filename != name:
            frames = None  # the code never began: only the parser's frames are there
        lines = traceback.format_exception(type(error), error, frames)
        return None, cut("".join(lines).rstrip(), chars), type(error).__name__
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, OSError, ValueError):  # the code put another in its place, or closed it
                pass
    return cut(shown, chars), None, None


def cut(text, limit):
    if text is None or len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... ({len(text) - 2 * half} characters left out) ...\n{text[-half:]}"


def write_files(files, mode):
    """Each to its path; parents are made. A symbolic link in the place of the file is replaced, not followed."""
    for path, data in files.items():
        content = binascii.a2b_base64(data)
        try:
            put(path, content, mode)
        except PermissionError:  # a folder that was made read-only
            there = os.path.dirname(path)
            while not os.path.lexists(there):
                there = os.path.dirname(there)
            os.chmod(there, 0o755)
            put(path, content, mode)
    return {}


def put(path, data, mode):
    """Nothing that stands in the file's place can be followed, or keep this process waiting."""
    os.makedirs(os.path.dirname(path) or "/", exist_ok=True)
    try:
        os.unlink(path)
    except (FileNotFoundError, IsADirectoryError):
        pass
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fchmod(fd, mode)


def read_file(path, limit):
    """A regular file's content: neither a pipe nor a device can block or bomb the reader."""
    kind = os.stat(path)  # some devices do something when they are opened
    if not stat.S_ISDIR(kind.st_mode) and not stat.S_ISREG(kind.st_mode):
        raise ValueError(f"{path}: no regular file")
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        kind = os.fstat(fd)
        if stat.S_ISDIR(kind.st_mode):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        if not stat.S_ISREG(kind.st_mode):
            raise ValueError(f"{path}: no regular file")
        if kind.st_dev == os.stat("/proc").st_dev:  # what the kernel says of processes: here, of this one
            raise ValueError(f"{path}: no regular file")
        if kind.st_size > limit:
            raise ValueError(f"{path}: {kind.st_size} bytes, more than the {limit} allowed")
        return {"data": base64(file.read(limit))}


class Host:
    """The requests, in order."""

    def __init__(self):
        first = self.receive()
        self.limits = Limits(**first["limits"])
        # a file in memory, inherited: there is room for a command on a full disk too
        given = first["script"] if "script" in first else os.open("/run", os.O_TMPFILE | os.O_RDWR, 0o600)
        self.script = fcntl.fcntl(given, fcntl.F_DUPFD_CLOEXEC, 3)
        os.close(given)
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
            self.python.start()

    def hung_up(self):
        """The host spoke during a step: it only ever does so by closing."""
        os._exit(0)

    def receive(self):
        header = read_exactly(0, 4)
        if header is None:
            os._exit(0)
        return from_json(read_exactly(0, int.from_bytes(header, "big")))

    def send(self, answer):
        data = to_json(answer).encode()
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
        end_all()
        self.shell.stop()
        self.python.stop()
        return {}

    def answer(self, request):
        ask = request.pop("ask")
        self.python.told = self.python.told or ask in ("run", "write")
        if ask == "run":
            request["stdin"] = binascii.a2b_base64(request["stdin"])
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
    """Nobody here may look into this process, or end it by a signal."""
    global RANK
    import _ctypes  # `ctypes` itself takes four times as long to import

    RANK = Rank()
    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")
    if _ctypes.call_function(prctl, (PR_SET_DUMPABLE, 0, 0, 0, 0)) != 0:
        raise OSError("this process can't be hidden")
    signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve_code(8, 9)
    else:
        harden()
        Host().serve()
