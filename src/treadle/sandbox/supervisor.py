"""The small program that stands between us and a command without a pid namespace: it sees that all of it ends.

It runs by its path in a bare interpreter, so it stands alone, and it imports only what loads fast: each command waits
for it.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import select
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_STOP, _KILL = 19, 9
_NO_NEW_PRIVILEGES, _SUBREAPER, _SECCOMP, _FILTER = 38, 36, 22, 2
_DROP_FROM_BOUND, _CAPABILITIES = 24, 0x20080522
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_BENEATH = 1
_FILES_ONLY = 0b1100_0000_0000_0111  # of a file: execute, write, read, truncate, ioctl
_BURY_EVERY = 0.5

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    """Run the command that stands in the first descriptor until it ends or we say something in the second."""
    given, control = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(control, False)
    with open(given, "rb") as file:
        config: dict[str, Any] = marshal.load(file)
    # Orphans come to us instead of to init, so a daemon cannot get out of sight.
    _call("prctl", _SUBREAPER, 1, 0, 0, 0)
    command = os.fork()
    if command == 0:
        _become(config)
    handle = os.pidfd_open(command)
    code: int | None = None
    while code is None and control not in select.select([control, handle], [], [], _BURY_EVERY)[0]:
        code = _reap(command)
    _end_all()
    return 0 if code is None else code


def _become(config: dict[str, Any]) -> NoReturn:
    try:
        os.setsid()
        os.chdir(config["cwd"])
        for kind, value in config["limits"]:
            _, hard = resource.getrlimit(kind)
            top = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (top, top))
        if config["rules"]:
            _call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
            _drop_capabilities()
            _restrict(config["rules"], config["handled"], config["scoped"])
            _filter(config["seccomp"])
        os.execvpe(config["argv"][0], config["argv"], config["env"])
    except OSError as error:
        os.write(2, f"{config['argv'][0]}: {error.strerror}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _drop_capabilities() -> None:
    """Root without them is hardly more than the owner of its files; some of them reach past Landlock."""
    if os.geteuid() == 0:
        for number in range(64):
            if _libc.prctl(_DROP_FROM_BOUND, number, 0, 0, 0) < 0:
                break  # the kernel knows no more
    _call("capset", struct.pack("<Ii", _CAPABILITIES, 0), bytes(24))


def _restrict(rules: list[tuple[str, int]], handled: int, scoped: int) -> None:
    """Nothing but the rights in the rules from here on, for this process and all that come from it."""
    attributes = struct.pack("<QQQ", handled, 0, scoped)
    ruleset = _call("syscall", _CREATE_RULESET, attributes, len(attributes) if scoped else 8, 0)
    for path, rights in rules:
        try:
            opened = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # it is not there, so nothing is allowed in it
        if not os.path.isdir(f"/proc/self/fd/{opened}"):
            rights &= _FILES_ONLY
        rule = struct.pack("<Qi", rights, opened)
        _call("syscall", _ADD_RULE, ruleset, _BENEATH, rule, 0)
        os.close(opened)
    _call("syscall", _RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _filter(program: bytes) -> None:
    steps = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(steps))
    _call("prctl", _SECCOMP, _FILTER, header, 0, 0)


def _call(name: str, *arguments: int | bytes) -> int:
    words = [ctypes.c_char_p(word) if isinstance(word, bytes) else ctypes.c_long(word) for word in arguments]
    result: int = getattr(_libc, name)(*words)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name} failed: {os.strerror(number)}")
    return result


def _reap(command: int) -> int | None:
    """Bury who has died; the exit code once it was the command, as a shell would give it."""
    code: int | None = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == command:
            result = os.waitstatus_to_exitcode(status)
            code = result if result >= 0 else 128 - result


def _end_all() -> None:
    """Kill everything below us. They are stopped first, so that none can make another meanwhile."""
    spared: set[int] = set()
    while below := set(_descendants(os.getpid())) - spared:
        for pid in below:
            spared |= _signalled(pid, _STOP)
        if set(_descendants(os.getpid())) <= below | spared:
            for pid in below - spared:
                _signalled(pid, _KILL)
        _reap(0)


def _signalled(pid: int, number: int) -> set[int]:
    """Signal a process; one that we may not signal, because it runs as somebody else, is named."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        return {pid}
    return set()


def _descendants(root: int) -> list[int]:
    found: list[int] = []
    parents = [root]
    while parents:
        parent = parents.pop()
        try:
            for thread in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{thread}/children", "rb") as listing:
                    children = [int(word) for word in listing.read().split()]
                found += children
                parents += children
        except OSError:
            continue  # it has ended meanwhile
    return found


if __name__ == "__main__":
    sys.exit(main())
