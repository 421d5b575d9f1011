"""No privilege is to be had: system calls, set-user-id programs, namespaces, signals and the first process."""

import os
import platform

import pytest

from serve.environments.sandbox import Sandbox
from serve.environments.tasks import Limits

pytestmark = pytest.mark.asyncio(loop_scope="module")

NUMBERS = {  # x86_64, aarch64
    "pivot_root": (155, 41),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "pidfd_getfd": (438, 438),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "clone3": (435, 435),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "kcmp": (312, 272),
    "process_madvise": (440, 440),
    "fanotify_init": (300, 262),
    "ioprio_set": (251, 30),
    "sched_setattr": (314, 274),
    "settimeofday": (164, 170),
}
PRELUDE = f"""
import ctypes, os, signal, subprocess, time
numbers = { ({name: pair[platform.machine() != "x86_64"] for name, pair in NUMBERS.items()})!r}
libc = ctypes.CDLL(None, use_errno=True)
room = ctypes.create_string_buffer(4096)
def checked(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def call(name, *arguments):
    return checked(libc.syscall(numbers[name], *arguments))
def sibling():
    return subprocess.Popen(["sleep", "5"]).pid
def fault():
    return checked(libc.ptrace(16, 1, 0, 0))
"""
REFUSED = {
    "ptrace of PID 1": "checked(libc.ptrace(16, 1, 0, 0))",
    "seize of PID 1": "checked(libc.ptrace(0x4206, 1, 0, 0))",
    "ptrace of a sibling": "checked(libc.ptrace(16, sibling(), 0, 0))",
    "to be traced": "checked(libc.ptrace(0, 0, 0, 0))",
    "memory of PID 1": "checked(libc.process_vm_readv(1, room, 1, room, 1, 0))",
    "memory of a sibling": "checked(libc.process_vm_writev(sibling(), room, 1, room, 1, 0))",
    "a descriptor of PID 1": "call('pidfd_getfd', os.pidfd_open(1), 0, 0)",
    "a comparison with PID 1": "call('kcmp', os.getpid(), 1, 0, 0, 0)",
    "advice on PID 1's memory": "call('process_madvise', os.pidfd_open(1), room, 1, 21, 0)",
    "mem of PID 1": "open('/proc/1/mem', 'rb')",
    "environ of PID 1": "open('/proc/1/environ')",
    "maps of PID 1": "open('/proc/1/maps').read(1) or fault()",
    "descriptors of PID 1": "os.listdir('/proc/1/fd')",
    "its pipe to the host": "open('/proc/1/fd/1', 'wb')",
    "root of PID 1": "os.listdir('/proc/1/root')",
    "cwd of PID 1": "os.listdir('/proc/1/cwd')",
    "program of PID 1": "os.readlink('/proc/1/exe')",
    "stack of PID 1": "open('/proc/1/stack').read()",
    "limits of PID 1": "import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))",
    "niceness of PID 1": "os.setpriority(os.PRIO_PROCESS, 1, 19)",
    "niceness of all its user's": "os.setpriority(os.PRIO_USER, 0, 19)",
    "niceness of PID 1's group": "os.setpriority(os.PRIO_PGRP, 1, 19)",
    "scheduling of PID 1": "os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))",
    "attributes of PID 1": "call('sched_setattr', 1, room, 0)",
    "processors of PID 1": "os.sched_setaffinity(1, [0])",
    "disk priority of PID 1": "call('ioprio_set', 1, 1, 3 << 13)",
    "disk priority of all its user's": "call('ioprio_set', 3, 1000, 3 << 13)",
    "first to be killed": "open('/proc/1/oom_score_adj', 'w').write('1000')",
    "last to be killed": "open('/proc/self/oom_score_adj', 'w').write('-900')",
    "group of PID 1": "os.setpgid(1, 0)",
    "priority above others": "os.nice(-20)",
    "real-time priority": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
    "more memory than allowed": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "more processes than allowed": "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (-1, -1))",
    "core dumps": "import resource; resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))",
    "a mount": "checked(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None))",
    "a bind mount": "checked(libc.mount(b'/usr', b'/work', None, 4096, None))",
    "an unmount": "checked(libc.umount2(b'/opt', 2))",
    "a new root": "os.chroot('/usr')",
    "a root in exchange": "call('pivot_root', b'/work', b'/work')",
    "mounts by the new calls": "call('fsopen', b'tmpfs', 0)",
    "a copy of a mount": "call('open_tree', -100, b'/usr', 1)",
    "mount attributes": "call('mount_setattr', -100, b'/usr', 0, room, 32)",
    "a user namespace": "checked(libc.unshare(0x10000000))",
    "a mount namespace": "checked(libc.unshare(0x20000))",
    "a network namespace": "checked(libc.unshare(0x40000000))",
    "another's namespace": "checked(libc.setns(os.open('/proc/self/ns/net', 0), 0))",
    "clone with a namespace": "checked(libc.syscall({clone}, 0x10000000 | 17, 0, 0, 0, 0))",
    "clone3": "call('clone3', room, 88)",
    "another user": "os.setuid(0)",
    "another group": "os.setgid(0)",
    "more groups": "os.setgroups([0])",
    "a file's owner": "open('/work/own', 'w').close(); os.chown('/work/own', 0, 0)",
    "a device": "os.mknod('/work/device', 0o60666, os.makedev(254, 0))",
    "the time": "time.clock_settime(time.CLOCK_REALTIME, 1)",
    "the time, the old way": "call('settimeofday', room, None)",
    "the clock's speed": "checked(libc.adjtimex(ctypes.create_string_buffer(b'\\x01', 512)))",
    "the host's name": "import socket; socket.sethostname('other')",
    "a key kept": "call('add_key', b'user', b'name', b'secret', 6, -3)",
    "a key asked for": "call('request_key', b'user', b'name', None, -3)",
    "keyrings": "call('keyctl', 0, -3, 1)",
    "bpf": "call('bpf', 0, room, 72)",
    "counters of the processor": "call('perf_event_open', room, 0, -1, -1, 0)",
    "faults handled by itself": "call('userfaultfd', 0)",
    "io_uring": "call('io_uring_setup', 8, room)",
    "another kernel": "call('kexec_load', 0, 0, 0, 0)",
    "a kernel module": "call('init_module', room, 8, b'')",
    "files by handle": "call('open_by_handle_at', -100, room, 0)",
    "watching all files": "call('fanotify_init', 0, 0)",
    "nameless memory": "call('memfd_create', b'x', 0)",
    "secret memory": "call('memfd_secret', 0)",
    "System V memory": "checked(libc.shmget(0, 1 << 20, 0o1600))",
    "System V messages": "checked(libc.msgget(0, 0o1600))",
    "System V semaphores": "checked(libc.semget(0, 32000, 0o1600))",
    "swap": "checked(libc.swapon(b'/work/x', 0))",
    "a restart": "checked(libc.reboot(0))",
    "the kernel's log": "checked(libc.klogctl(3, room, 4096))",
    "another personality": "checked(libc.personality(0x0040000))",
    "kernel settings": "open('/proc/sys/kernel/core_pattern', 'w').write('|/work/x')",
    "memory settings": "open('/proc/sys/vm/drop_caches', 'w').write('3')",
    "network settings": "open('/proc/sys/net/ipv4/ip_forward', 'w').write('1')",
    "magic keys": "open('/proc/sysrq-trigger', 'w').write('b')",
    "the kernel's memory": "open('/proc/kcore', 'rb').read(4)",
    "the kernel's messages": "open('/proc/kmsg', 'rb').read(4)",
    "a mapping of users": "open('/proc/self/uid_map', 'w').write('0 0 1')",
    "keys pressed in a terminal": "import fcntl; fcntl.ioctl(os.open('/dev/tty', 2), 0x5412, b'x')",
}


@pytest.mark.parametrize("name", REFUSED)
async def test_refused(box: Sandbox, name: str) -> None:
    code = REFUSED[name].replace("{clone}", "56" if platform.machine() == "x86_64" else "220")
    result = await box.python(f"{PRELUDE}\n{code}", keep=False, timeout_s=5)
    assert result.error_type in (
        "PermissionError",
        "OSError",
        "FileNotFoundError",
        "ProcessLookupError",
        "ValueError",
    ), result
    if name not in ("another user", "another group", "a file's owner"):  # there is no other here
        assert "Invalid argument" not in result.error, result.error  # refused for what it is, not for how it was asked


async def test_calls_of_another_architecture_end_the_process(box: Sandbox) -> None:
    if platform.machine() == "x86_64":
        code = "import ctypes; ctypes.CDLL(None).syscall(0x40000000 + 165, b'none', b'/tmp', b'tmpfs', 0, 0)"
        assert (await box.run(["/usr/bin/python3", "-c", code], timeout_s=5)).exit_code == -31
    assert (await box.run(["true"], timeout_s=5)).exit_code == 0


COMMANDS = (
    "su -c id",
    "sudo -n id",
    "mount -t tmpfs none /tmp",
    "umount /work",
    "unshare -U true",
    "unshare -m true",
    "unshare -r id",
    "nsenter -t 1 -m true",
    "chroot / true",
    "date -s 2001-01-01",
    "hostname other",
    "passwd -d root",
    "newgrp root </dev/null",
    "chown root /work",
    "setpriv --reuid 0 true",
    "capsh --caps=cap_sys_admin+ep -- -c true",
    "renice -n -5 $$",
    "chrt -f 1 true",
    "prlimit --pid 1 --nofile=3:3",
    "prlimit --pid 1 --cpu=1:1",
    "ionice -c 1 -p 1",
    "taskset -p 1 1",
    "dmesg",
    "losetup -f",
    "mknod /work/node c 1 1",
    "swapon -a",
    "ip link add x type dummy",
    "bwrap --ro-bind / / true",
    "ulimit -u 1000",
    "ulimit -v unlimited",
    "strace -p 1",
    "cat /dev/tty",
    "kill -0 0 && kill -s KILL 1 && ! kill -0 1",
)


@pytest.mark.parametrize("command", COMMANDS)
async def test_command_fails(box: Sandbox, command: str) -> None:
    result = await box.run(["bash", "-c", command], timeout_s=5)
    assert result.exit_code not in (0, None), result
    assert not result.timed_out


async def test_set_user_id_gives_nothing(box: Sandbox) -> None:
    script = "cp /usr/bin/bash /work/b && chmod 6755 /work/b && /work/b -p -c 'id -u; id -un; id -G'; rm /work/b"
    assert (await box.run(["bash", "-c", script], timeout_s=5)).stdout.split() == ["1000", "agent", "1000"]
    result = await box.shell("grep -E '^(Cap...|NoNewPrivs|Seccomp):' /proc/self/status", timeout_s=5)
    facts = dict(line.split(":\t") for line in result.stdout.splitlines())
    assert {name: int(value, 16) for name, value in facts.items() if name.startswith("Cap")} == dict.fromkeys(
        ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), 0
    )
    assert facts["NoNewPrivs"] == "1" and facts["Seccomp"] == "2"


async def test_only_its_own_processes_are_there(box: Sandbox) -> None:
    result = await box.run(["bash", "-c", "cd /proc; for one in [0-9]*; do cat $one/comm; done"], timeout_s=5)
    assert set(result.stdout.split()) <= {"python3", "bash", "cat", "sleep"}
    assert len(result.stdout.split()) < 8
    ids = await box.run(["bash", "-c", f"ls -d /proc/{os.getpid()}; kill -0 {os.getpid()}"], timeout_s=5)
    assert ids.exit_code != 0


@pytest.mark.parametrize("number", [1, 2, 3, 6, 9, 10, 11, 13, 15, 17, 19, 20, 24, 25, 31, 34, 64])
async def test_init_is_not_ended_by_a_signal(box: Sandbox, number: int) -> None:
    await box.run(["bash", "-c", f"kill -{number} 1; kill -{number} 1"], timeout_s=5)
    assert (await box.run(["echo", "here"], timeout_s=5)).stdout == "here\n"


async def test_killing_everything_leaves_init(box: Sandbox) -> None:
    await box.shell("x=1", timeout_s=5)
    await box.run(["bash", "-c", "kill -9 -1; kill -9 0"], timeout_s=5)
    result = await box.shell("echo here [$x]", timeout_s=5)
    assert (result.stdout, result.shell_restarted) == ("here []\n", True)


async def test_flood_of_signals_does_not_hold_init_up(own_box: Sandbox) -> None:
    await own_box.shell(
        "(while :; do kill -CHLD 1; kill -INT 1; done) & (while :; do kill -USR1 1; done) &", timeout_s=5
    )
    result = await own_box.run(["echo", "here"], timeout_s=5)
    assert result.stdout == "here\n"
    await own_box.clear()


async def test_secrets_of_the_hosts_environment_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWRL_TEST_SECRET", "a-secret-value")
    made = await Sandbox.start(Limits())
    try:
        seen = await made.shell(
            "env; cat /proc/[0-9]*/environ | tr '\\0' '\\n'; grep -a -c a-secret-value /proc/self/environ", timeout_s=5
        )
        assert "SECRET" not in seen.stdout and "a-secret-value" not in seen.stdout
        names = {line.partition("=")[0] for line in (await made.run(["env"], timeout_s=5)).stdout.splitlines()}
        assert names == {"PATH", "HOME", "TMPDIR", "LANG", "TERM", "USER"}
    finally:
        await made.close()


async def test_only_three_descriptors_are_inherited(box: Sandbox) -> None:
    code = "import os; sorted(int(fd) for fd in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{fd}'))"
    for _ in range(2):
        assert (await box.run(["bash", "-c", "ls /proc/self/fd"], timeout_s=5)).stdout.split() == ["0", "1", "2", "3"]
        assert (await box.shell("ls /proc/self/fd", timeout_s=5)).stdout.split() == ["0", "1", "2", "3"]
        assert (await box.python(code, keep=True, timeout_s=5)).value == "[0, 1, 2, 8, 9]"  # its questions and answers


async def test_no_descriptor_above_the_limit_is_inherited() -> None:
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(300)]  # so that those of a start are high
    try:
        made = await Sandbox.start(Limits())
    finally:
        for fd in held:
            os.close(fd)
    try:
        assert (await made.run(["bash", "-c", "ls /proc/self/fd"], timeout_s=5)).stdout.split() == ["0", "1", "2", "3"]
        assert (await made.shell("echo 1; ls /proc/self/fd", timeout_s=5)).stdout.split() == ["1", "0", "1", "2", "3"]
    finally:
        await made.close()
