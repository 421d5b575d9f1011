"""Which system calls a sandbox refuses, as a filter that bubblewrap loads (seccomp, by Debian's libseccomp2).

What it leaves out: a list of allowed calls. What agents run is anything; the namespaces, the missing capabilities and
the limits are the walls, and this takes away what none of them covers: the kernel's keys, other processes' memory,
clocks, mounting, more namespaces, memory that no limit counts, sockets that leave the network namespace (vsock), and
other processes' limits and priorities: the sandbox's first process has the same user id as what runs there.
"""

import errno
from typing import BinaryIO

REFUSED = (
    "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "add_key", "request_key", "keyctl", "bpf",
    "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "mount", "umount2",
    "pivot_root", "move_mount", "open_tree", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "unshare",
    "setns", "chroot", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot",
    "swapon", "swapoff", "acct", "quotactl", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "syslog",
    "personality", "name_to_handle_at", "open_by_handle_at", "fanotify_init", "lookup_dcookie", "vhangup", "iopl",
    "ioperm", "shmget", "msgget", "semget", "memfd_create", "memfd_secret", "process_madvise", "process_mrelease",
)  # fmt: skip
ALLOWED_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: of the sandbox's own, empty network
LAST_FAMILY = 64  # AF_MAX is 46 today
CLONE_NEWUSER = 0x10000000
# calls that a process may make for itself alone: their argument with this number has to be 0
FOR_ITSELF = (
    ("prlimit64", 0), ("sched_setscheduler", 0), ("sched_setparam", 0), ("sched_setattr", 0), ("sched_setaffinity", 0),
    ("setpriority", 0), ("setpriority", 1), ("ioprio_set", 1), ("migrate_pages", 0), ("move_pages", 0),
)  # fmt: skip
IOPRIO_WHO_PROCESS = 1


def write_filter(file: BinaryIO) -> None:
    """The filter as BPF, for this machine's architecture.

    Raises:
        OSError: libseccomp can't be loaded, or does not make it.
    """
    import pyseccomp as seccomp  # loads libseccomp

    refuse = seccomp.ERRNO(errno.EPERM)
    made = seccomp.SyscallFilter(seccomp.ALLOW)
    for name in REFUSED:
        try:
            made.add_rule(refuse, name)
        except OSError as error:  # a call that this architecture, or this libseccomp, does not know
            if error.errno != errno.EINVAL:
                raise
    # libc falls back from clone3, whose flags can't be looked at, to clone
    made.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
    made.add_rule(refuse, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, CLONE_NEWUSER, CLONE_NEWUSER))
    for name, argument in FOR_ITSELF:
        made.add_rule(refuse, name, seccomp.Arg(argument, seccomp.NE, 0))
    made.add_rule(refuse, "ioprio_set", seccomp.Arg(0, seccomp.NE, IOPRIO_WHO_PROCESS))
    for family in range(LAST_FAMILY):
        if family not in ALLOWED_FAMILIES:
            made.add_rule(refuse, "socket", seccomp.Arg(0, seccomp.EQ, family))
            made.add_rule(refuse, "socketpair", seccomp.Arg(0, seccomp.EQ, family))
    made.add_rule(refuse, "socket", seccomp.Arg(0, seccomp.GE, LAST_FAMILY))
    made.add_rule(refuse, "socketpair", seccomp.Arg(0, seccomp.GE, LAST_FAMILY))
    made.export_bpf(file)
