"""Confined: what tests of the sandbox share: two confinements, ways out of them, and the processes there are."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from specbench.evals.sandbox.sandbox import Confinement, Limits

TIGHT = Limits(cpu_s=1, wall_s=1.5, memory=512 << 20)
BARE = Confinement(seccomp=True, landlock=0, namespaces=False)  # what a strict container leaves

# Ways out, as expressions.
PROCESSES = {
    "fork": "os.fork()", "fork bomb": "[os.fork() for _ in range(10 ** 6)]",
    "daemon": "os.setsid() if os.fork() == 0 else None", "thread": "threading.Thread(target=int).start()",
    "exec": "os.execv('/bin/true', ['true'])", "shell": "subprocess.run('true', shell=True)",
    "spawn": "os.posix_spawn('/bin/true', ['true'], {})", "raw clone": "call(56 if x86 else 220, 0x11, 0, 0, 0, 0)",
    "raw vfork": "call(58, ) if x86 else denied()", "clone3": "call(435, None, 88)",
}  # fmt: skip
NETWORK = {
    "tcp": "socket.socket()", "udp": "socket.socket(type=socket.SOCK_DGRAM)", "unix": "socket.socket(socket.AF_UNIX)",
    "pair": "socket.socketpair()", "connect": "socket.create_connection(('127.0.0.1', PORT), 1)",
    "io_uring": "call(425, 8, b'0' * 120)",
}  # fmt: skip
SIGNALS = {
    "parent": "os.kill(os.getppid(), 9)", "scorer": "os.kill(SCORER, 9)", "everybody": "os.kill(-1, 9)",
    "own group": "os.killpg(0, 9)", "leave the group": "os.setsid()", "leave the group too": "os.setpgid(0, 0)",
    "by descriptor": "fcntl.fcntl(0, fcntl.F_SETOWN, SCORER)",
    "by limit": "resource.prlimit(SCORER, resource.RLIMIT_CPU, (1, 1))",
    "by priority": "os.setpriority(os.PRIO_PROCESS, SCORER, 19)", "by affinity": "os.sched_setaffinity(SCORER, {0})",
    "ptrace": "call(101 if x86 else 117, 16, SCORER, 0, 0)",
    "write memory": "call(311 if x86 else 271, SCORER, 0, 0, 0, 0, 0)",
    "outlive": "call(157 if x86 else 167, 1, 0, 0, 0, 0)",
}  # fmt: skip
FILES = {
    "write outside": "open(OUTSIDE + '/new', 'w')",
    "overwrite": "open(OUTSIDE + '/old', 'w')",
    "append": "os.open(OUTSIDE + '/old', os.O_WRONLY | os.O_APPEND)",
    "truncate while reading": "os.open(OUTSIDE + '/old', os.O_RDONLY | os.O_TRUNC)",
    "truncate": "os.truncate(OUTSIDE + '/old', 0)",
    "remove": "os.remove(OUTSIDE + '/old')",
    "rename": "os.rename(OUTSIDE + '/old', OUTSIDE + '/new')",
    "make a folder": "os.mkdir(OUTSIDE + '/new')",
    "link": "os.link(OUTSIDE + '/old', OUTSIDE + '/new')",
    "symbolic link": "os.symlink('/', OUTSIDE + '/new')",
    "mode": "os.chmod(OUTSIDE + '/old', 0)",
    "owner": "os.chown(OUTSIDE + '/old', 0, 0)",
    "times": "os.utime(OUTSIDE + '/old')",
    "pipe": "os.mkfifo(OUTSIDE + '/new')",
    "unnamed file": "os.open(OUTSIDE, os.O_TMPFILE | os.O_WRONLY)",
    "memory file": "os.memfd_create('x')",
    "parent folder": "open('../new', 'w')",
    "by another root": "os.chroot(OUTSIDE)",
    "mount": "call(165 if x86 else 40, b'x', b'/', b'tmpfs', 0, 0)",
    "namespace": "call(272 if x86 else 97, 0x10000000)",
}


def processes() -> dict[int, tuple[int, bool]]:
    """Every process: its parent, and whether a seccomp filter holds it."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # gone meanwhile
            fields = dict(line.split(":\t", 1) for line in path.read_text().splitlines() if ":\t" in line)
            found[int(path.parent.name)] = (int(fields["PPid"]), fields.get("Seccomp") == "2")
    return found


def children() -> set[int]:
    return {pid for pid, (parent, _) in processes().items() if parent == os.getpid()}
