"""The kernel's means to confine a process, through ctypes: namespaces, Landlock, seccomp, limits, capabilities.

Standard library only: ``child.py`` imports it in an interpreter without site-packages.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys

_libc = ctypes.CDLL(None, use_errno=True)

_CLONE_FLAGS = 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000  # mount uts ipc user pid net
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE = 0x2, 0x4, 0x4000, 0x40000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # the same numbers on every architecture

# Landlock rights (linux/landlock.h)
_WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
_CHANGE = 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 13  # create, remove and move files and folders
_OWN_DIRECTORY = _WRITE_FILE | _READ_FILE | _READ_DIR | _TRUNCATE | _CHANGE
_RIGHTS_OF_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # number of file rights in each version

# What a Python program reads besides the standard library: shared objects for its extension modules, time zones.
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/dev/urandom")
_NOT_STANDARD = ("site-packages", "dist-packages")


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _prctl(option: int, *values: int) -> None:
    padded = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    _check(_libc.prctl(option, *padded), f"prctl {option}")


def _syscall(number: int, *arguments: ctypes.c_long | ctypes.c_char_p | None) -> int:
    return _libc.syscall(ctypes.c_long(number), *arguments)


def landlock_abi() -> int:
    """The kernel's Landlock version; 0 without Landlock."""
    create_version = ctypes.c_long(1)
    return max(0, _syscall(_LANDLOCK_CREATE, None, ctypes.c_long(0), create_version))


def die_with(parent: int) -> None:
    """Be killed when ``parent`` (a pid in this pid namespace) dies, also when it died a moment ago."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def hide_memory() -> None:
    """Forbid other processes of this user to trace this one or to open its memory and descriptors in /proc."""
    _prctl(_PR_SET_DUMPABLE, 0)


def first_victim() -> None:
    """Ask the out-of-memory killer to take this process and its children before anything else."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # no /proc: only the preference is lost


def enter_namespaces() -> None:
    """Move to new user, mount, pid, network, ipc and uts namespaces; the *next* child is pid 1 of the pid namespace."""
    uid, gid = os.getuid(), os.getgid()
    _check(_libc.unshare(_CLONE_FLAGS), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def mount_scratch(path: str, size: int) -> None:
    """Enter ``path``, covered with an empty memory file system of ``size`` bytes that goes with the mount namespace."""
    _check(_libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None), "mount /")
    options = f"size={size},nr_inodes=1024,mode=700".encode()
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
    _check(_libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", flags, options), "mount tmpfs")
    os.chdir(path)


def limit(cpu_s: int, memory: int, disk: int) -> None:
    """Resource limits of this process: CPU seconds, bytes of address space, bytes of any one file."""
    for what, value in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, disk),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, 0),  # this also holds without seccomp, except for root
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        hard = resource.getrlimit(what)[1]
        # The second beyond the CPU limit is what makes its signal SIGXCPU, a cause of death that nothing else has.
        bounds = (value, value + 1 if what == resource.RLIMIT_CPU else value)
        soft, hard = bounds if hard == resource.RLIM_INFINITY else (min(bound, hard) for bound in bounds)
        resource.setrlimit(what, (soft, hard))


def readable_paths() -> list[tuple[str, int]]:
    """(path, Landlock rights) of what a program may read: standard library without site-packages, shared objects."""
    library = os.path.dirname(os.__file__)
    paths = [(library, _READ_DIR)]  # listing; reading is granted by entry, because Landlock cannot take a subfolder out
    with os.scandir(library) as entries:
        for entry in entries:
            if entry.name not in _NOT_STANDARD:
                paths.append((entry.path, _READ_FILE | _READ_DIR if entry.is_dir() else _READ_FILE))
    prefix = os.path.join(sys.base_prefix, "lib")
    if os.path.isdir(prefix):
        with os.scandir(prefix) as entries:
            paths += [(entry.path, _READ_FILE) for entry in entries if ".so" in entry.name]
    paths += [(path, _READ_FILE | _READ_DIR if os.path.isdir(path) else _READ_FILE) for path in _SYSTEM]
    return [*paths, ("/dev/null", _READ_FILE | _WRITE_FILE)]


def restrict_files(abi: int, own: str | None) -> None:
    """Landlock: read ``readable_paths()``, write under ``own`` alone (nowhere if None), send no signals (version 6).

    Needs ``drop_privileges`` first. Metadata calls (chmod, utime, …) are not Landlock's; seccomp forbids them.
    """
    files = (1 << _RIGHTS_OF_ABI.get(abi, 16)) - 1
    network = 0b11 if abi >= 4 else 0  # TCP bind and connect
    scope = 0b11 if abi >= 6 else 0  # abstract sockets and signals
    attributes = struct.pack("=QQQ", files, network, scope)[: 8 if abi < 4 else 16 if abi < 6 else 24]
    size = ctypes.c_long(len(attributes))
    ruleset = _check(_syscall(_LANDLOCK_CREATE, ctypes.c_char_p(attributes), size, ctypes.c_long(0)), "landlock")
    paths = readable_paths()
    if own is not None:
        paths.append((own, _OWN_DIRECTORY))
    for path, rights in paths:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # not on this system
        rule = ctypes.c_char_p(struct.pack("=Qi", rights & files, fd))
        _check(_syscall(_LANDLOCK_ADD, ctypes.c_long(ruleset), ctypes.c_long(1), rule, ctypes.c_long(0)), path)
        os.close(fd)
    _check(_syscall(_LANDLOCK_RESTRICT, ctypes.c_long(ruleset), ctypes.c_long(0)), "landlock")
    os.close(ruleset)


def drop_privileges() -> None:
    """Give up every capability, and with ``no_new_privs`` the way to get one back. Root stays root in name only."""
    header = ctypes.c_char_p(struct.pack("=Ii", 0x20080522, 0))  # _LINUX_CAPABILITY_VERSION_3, this thread
    _check(_libc.capset(header, ctypes.c_char_p(bytes(24))), "capset")
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def filter_calls(program: bytes) -> None:
    """Install the seccomp filter of ``seccomp.build``. Needs ``drop_privileges`` first; nothing undoes it."""
    buffer = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog {unsigned short len; struct sock_filter *filter;}
    fprog = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    keep = ctypes.create_string_buffer(fprog, len(fprog))
    _prctl(_PR_SET_SECCOMP, 2, ctypes.addressof(keep))
