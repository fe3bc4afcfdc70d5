"""A filter program for the kernel that denies system calls which escapes need and ordinary commands do not.

Pure: it assembles classic BPF and loads nothing. It is a deny-list: calls that are not named are allowed.
"""

from __future__ import annotations

import errno
import struct
from functools import lru_cache
from typing import Literal

from msgspec import Struct

Machine = Literal["x86_64", "aarch64"]

ALLOW = 0x7FFF0000
KILL = 0x80000000
ERRNO = 0x00050000
_REFUSED, _UNKNOWN = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS

_LOAD, _EQUAL, _AT_LEAST, _ABOVE, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x25, 0x45, 0x06
_NUMBER, _ARCH = 0, 4
_AUDIT: dict[Machine, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000
_NEWEST = 471
"""One past the last known call. Newer calls fail as if the kernel did not have them."""

_NAMESPACES = 0x7E020000  # CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SHARED_MEMORY = 1 << 20

# x86_64, aarch64; None where the architecture has no such call.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "fanotify_init": (300, 262),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "unshare": (272, 97),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "create_module": (174, None),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "adjtimex": (159, 171),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "vhangup": (153, 58),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
}

# Programs try these and do without when the kernel has none. clone3 and openat2 hide their flags from a filter. A
# memory file that is not mapped belongs to no process, so nobody could count it.
_MISSING: dict[str, tuple[int | None, int | None]] = {
    "clone3": (435, 435),
    "openat2": (437, 437),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
}

# Calls that set the mode of a file: their numbers, and the positions of the mode and of the flags, if any.
_MODES: dict[str, tuple[tuple[int | None, int | None], int, int | None]] = {
    "chmod": ((90, None), 1, None),
    "fchmod": ((91, 52), 1, None),
    "fchmodat": ((268, 53), 2, None),
    "fchmodat2": ((452, 452), 2, None),
    "creat": ((85, None), 1, None),
    "mknod": ((133, None), 1, None),
    "mknodat": ((259, 33), 2, None),
    "open": ((2, None), 2, 1),
    "openat": ((257, 56), 3, 2),
}
_SET_ID = 0o6000
_CREATES = 0o100 | 0o20000000  # O_CREAT, O_TMPFILE: without them the mode is ignored

_CLONE, _IOCTL, _SOCKET, _SOCKETPAIR, _SHMGET = (56, 220), (16, 29), (41, 198), (53, 199), (29, 194)


class Instruction(Struct, frozen=True):
    """One step of the program: its code, its operand, and how far to jump when true and when false."""

    code: int
    operand: int
    jump_true: int = 0
    jump_false: int = 0


@lru_cache(maxsize=4)
def build_program(machine: Machine, *, sockets: bool = True) -> bytes:
    """Build the filter for a machine in the kernel's format. Without `sockets`, only socket pairs can be created."""
    return b"".join(
        struct.pack("<HBBI", step.code, step.jump_true, step.jump_false, step.operand)
        for step in build_instructions(machine, sockets=sockets)
    )


def build_instructions(machine: Machine, *, sockets: bool = True) -> list[Instruction]:
    """Build the same program as a list of steps."""
    column = 0 if machine == "x86_64" else 1
    steps = [
        Instruction(_LOAD, _ARCH),
        Instruction(_EQUAL, _AUDIT[machine], jump_true=1),
        Instruction(_RETURN, KILL),
        Instruction(_LOAD, _NUMBER),
        *(_answer(_AT_LEAST, _X32, KILL) if machine == "x86_64" else ()),
        *_answer(_AT_LEAST, _NEWEST, _UNKNOWN),
    ]
    for table, result in ((_DENIED, _REFUSED), (_MISSING, _UNKNOWN)):
        for calls in table.values():
            if (call := calls[column]) is not None:
                steps += _answer(_EQUAL, call, result)
    checks: list[tuple[tuple[int | None, int | None], list[Instruction]]] = [
        (_CLONE, [_load_argument(0), *_answer(_ANY_BIT, _NAMESPACES, _REFUSED)]),
        # Typing into a terminal. The kernel reads 32 bits of the request, so the upper half is not compared.
        (_IOCTL, [_load_argument(1), *_answer(_EQUAL, _TIOCSTI, _REFUSED), *_answer(_EQUAL, _TIOCLINUX, _REFUSED)]),
        (_SOCKET, _allow_families(_AF_UNIX, _AF_INET, _AF_INET6) if sockets else _allow_families()),
        (_SOCKETPAIR, _allow_families(_AF_UNIX)),
        # Large shared memory that outlives its processes: nobody counts it. Databases need far less for locks.
        (
            _SHMGET,
            [
                _load_argument(1, upper=True),
                Instruction(_EQUAL, 0, jump_true=1),
                Instruction(_RETURN, _REFUSED),
                _load_argument(1),
                *_answer(_ABOVE, _SHARED_MEMORY, _REFUSED),
            ],
        ),
    ]
    for calls, mode, flags in _MODES.values():
        # Set-id files belong to the user outside the sandbox too: anybody who ran one would be that user.
        body = [_load_argument(mode), *_answer(_ANY_BIT, _SET_ID, _REFUSED)]
        if flags is not None:
            body = [_load_argument(flags), Instruction(_ANY_BIT, _CREATES, jump_false=len(body)), *body]
        checks.append((calls, body))
    for calls, body in checks:
        if (call := calls[column]) is not None:
            steps += [Instruction(_EQUAL, call, jump_false=len(body) + 1), *body, Instruction(_LOAD, _NUMBER)]
    return [*steps, Instruction(_RETURN, ALLOW)]


def _allow_families(*allowed: int) -> list[Instruction]:
    """Allow these families. Those of the internet include the part of netlink that lists addresses and routes."""
    refused = ERRNO | errno.EAFNOSUPPORT
    steps = [_load_argument(0), *(step for family in allowed for step in _answer(_EQUAL, family, ALLOW))]
    if _AF_INET in allowed:
        steps += [
            Instruction(_EQUAL, _AF_NETLINK, jump_true=1),
            Instruction(_RETURN, refused),
            _load_argument(2),
            *_answer(_EQUAL, 0, ALLOW),
        ]
    return [*steps, Instruction(_RETURN, refused)]


def _answer(test: int, operand: int, result: int) -> list[Instruction]:
    """Return a result when a test is true, and go on otherwise."""
    return [Instruction(test, operand, jump_false=1), Instruction(_RETURN, result)]


def _load_argument(index: int, *, upper: bool = False) -> Instruction:
    return Instruction(_LOAD, 16 + 8 * index + (4 if upper else 0))
