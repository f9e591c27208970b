"""The system calls a model-written program may make: an allow-list, compiled to a seccomp-BPF filter.

An allow-list, because the ways out are many: ``fcntl(F_SETOWN)`` signals a foreign process, ``prlimit64`` starves it,
``io_uring`` opens sockets. Threads are out, too: only a cgroup or RLIMIT_NPROC bounds them, and root is exempt from it.
"""

from __future__ import annotations

import errno
import platform
import struct

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column below, AUDIT_ARCH_*

# name: (x86_64, aarch64); -1 where the call does not exist. From linux asm/unistd_64.h and asm-generic/unistd.h.
_ALWAYS = {
    # memory, signals of its own, time, identity
    "brk": (12, 214), "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216),
    "madvise": (28, 233), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "rt_sigsuspend": (130, 133), "rt_sigtimedwait": (128, 137), "sigaltstack": (131, 132),
    "restart_syscall": (219, 128), "sched_yield": (24, 124), "futex": (202, 98), "sched_getaffinity": (204, 123),
    "getcpu": (309, 168), "getrandom": (318, 278), "nanosleep": (35, 101), "clock_nanosleep": (230, 115),
    "getitimer": (36, 102), "setitimer": (38, 103), "gettimeofday": (96, 169), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "times": (100, 153), "getrusage": (98, 165), "sysinfo": (99, 179),
    "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "getgroups": (115, 158), "getpgid": (121, 155),
    "getsid": (124, 156), "uname": (63, 160), "umask": (95, 166), "getrlimit": (97, 163), "alarm": (37, -1),
    "pause": (34, -1), "time": (201, -1), "getpgrp": (111, -1), "exit": (60, 93), "exit_group": (231, 94),
    # descriptors it already has, and files it may read
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "fstat": (5, 80), "lseek": (8, 62), "pread64": (17, 67),
    "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66), "pipe2": (293, 59), "dup": (32, 23),
    "dup3": (292, 24), "pselect6": (270, 72), "ppoll": (271, 73), "epoll_create1": (291, 20), "epoll_ctl": (233, 21),
    "epoll_pwait": (281, 22), "eventfd2": (290, 19), "fadvise64": (221, 223), "fsync": (74, 82),
    "fdatasync": (75, 83), "ftruncate": (77, 46), "getdents64": (217, 61), "getcwd": (79, 17), "chdir": (80, 49),
    "fchdir": (81, 50), "newfstatat": (262, 79), "statx": (332, 291), "statfs": (137, 43), "fstatfs": (138, 44),
    "faccessat": (269, 48), "faccessat2": (439, 439), "readlinkat": (267, 78), "close_range": (436, 436),
    "stat": (4, -1), "lstat": (6, -1), "access": (21, -1), "readlink": (89, -1), "pipe": (22, -1),
    "select": (23, -1), "poll": (7, -1), "epoll_wait": (232, -1), "dup2": (33, -1),
}  # fmt: skip
_OPEN = {"openat": (257, 56), "open": (2, -1)}
_WRITING = {
    "mkdirat": (258, 34), "unlinkat": (263, 35), "renameat": (264, 38), "renameat2": (316, 276), "mkdir": (83, -1),
    "rmdir": (84, -1), "unlink": (87, -1), "rename": (82, -1), "creat": (85, -1),
}  # fmt: skip
_FCNTL, _PRLIMIT64, _IOCTL = (72, 25), (302, 261), (16, 29)

_WRITE_FLAGS = 0o3 | 0o100 | 0o1000 | 0o2000 | 0o20000000  # O_ACCMODE, O_CREAT, O_TRUNC, O_APPEND, __O_TMPFILE
_FCNTL_COMMANDS = (0, 1, 2, 3, 4, 5, 6, 7, 1030)  # F_DUPFD … F_SETLKW, F_DUPFD_CLOEXEC: none of them signals or leases
_FIRST_UNIFIED = 424  # calls newer than this get ENOSYS, which makes a C library take its older path

# struct seccomp_data {int nr; u32 arch; u64 instruction_pointer; u64 args[6];}, little-endian
_NR, _ARCH, _ARG0, _ARG1, _ARG2 = 0, 4, 16, 24, 32
_LOAD, _JEQ, _JGE, _JSET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def supported() -> bool:
    """Whether there is a table for this machine's architecture."""
    return platform.machine() in _ARCHITECTURES


def build(writable: bool, machine: str | None = None) -> bytes:
    """The filter as an array of ``struct sock_filter``, 8 bytes each.

    Args:
        writable: let the program open files for writing and make, rename and remove them. Give it only where something
            else confines it to its own directory.
        machine: architecture as ``platform.machine()`` names it; this one by default.
    """
    column, arch = _ARCHITECTURES[machine or platform.machine()]
    code: list[tuple[int, int, int, int]] = []

    def emit(op: int, k: int, jt: int = 0, jf: int = 0) -> None:
        code.append((op, jt, jf, k))

    def only_if(call: tuple[int, int], argument: int, tests: list[tuple[int, int]], hit: int, miss: int) -> None:
        """``call`` returns ``hit`` when any of ``tests`` (jump, constant) holds for its argument, else ``miss``."""
        if call[column] < 0:
            return
        emit(_JEQ, call[column], 0, 1 + 2 * len(tests) + 1)
        emit(_LOAD, argument)
        for op, k in tests:
            emit(op, k, 0, 1)
            emit(_RETURN, hit)
        emit(_RETURN, miss)

    emit(_LOAD, _ARCH)
    emit(_JEQ, arch, 1, 0)
    emit(_RETURN, _KILL)  # the 32-bit call table would bypass everything below
    emit(_LOAD, _NR)
    if column == 0:
        emit(_JGE, 0x40000000, 0, 1)  # the x32 call table
        emit(_RETURN, _KILL)

    allowed = dict(_ALWAYS)
    if writable:
        allowed |= _WRITING | _OPEN
    else:
        for name, call in _OPEN.items():
            only_if(call, _ARG1 if name == "open" else _ARG2, [(_JSET, _WRITE_FLAGS)], _ERRNO | errno.EACCES, _ALLOW)
    denied = _ERRNO | errno.EPERM
    only_if(_FCNTL, _ARG1, [(_JEQ, command) for command in _FCNTL_COMMANDS], _ALLOW, denied)
    only_if(_PRLIMIT64, _ARG0, [(_JEQ, 0)], _ALLOW, denied)  # of itself only
    only_if(_IOCTL, _ARG0, [], _ALLOW, _ERRNO | errno.ENOTTY)  # what open() and isatty() expect of a plain file
    for number in (call[column] for call in allowed.values() if call[column] >= 0):
        emit(_JEQ, number, 0, 1)
        emit(_RETURN, _ALLOW)
    emit(_JGE, _FIRST_UNIFIED, 0, 1)
    emit(_RETURN, _ERRNO | errno.ENOSYS)
    emit(_RETURN, denied)
    return b"".join(struct.pack("=HBBI", *line) for line in code)
