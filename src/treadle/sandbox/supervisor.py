"""The program that starts a command without a pid namespace, and ends all of its processes.

It runs by its path in a bare interpreter, so it imports nothing of treadle. It imports only modules that load fast,
because each command waits for it.
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

_SIGSTOP, _SIGKILL = 19, 9
_SET_NO_NEW_PRIVILEGES, _SET_SUBREAPER, _SET_SECCOMP, _SECCOMP_FILTER = 38, 36, 22, 2
_DROP_CAPABILITY, _CAPABILITY_VERSION = 24, 0x20080522
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH = 1
_FILE_RIGHTS = 0b1100_0000_0000_0111  # those a file has: execute, write, read, truncate, ioctl
_REAP_INTERVAL = 0.5

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    """Run the command described in the first descriptor until it ends or the second descriptor gets input."""
    config_descriptor, control = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(control, False)
    with open(config_descriptor, "rb") as file:
        config: dict[str, Any] = marshal.load(file)
    # Orphans become our children instead of those of init, so a daemon stays visible.
    _call("prctl", _SET_SUBREAPER, 1, 0, 0, 0)
    command = os.fork()
    if command == 0:
        _run_command(config)
    handle = os.pidfd_open(command)
    code: int | None = None
    while code is None and control not in select.select([control, handle], [], [], _REAP_INTERVAL)[0]:
        code = _reap_children(command)
    # All are stopped before any is killed, so that none can start another meanwhile.
    refused: set[int] = set()
    while below := set(_find_descendants(os.getpid())) - refused:
        for pid in below:
            if not _send_signal(pid, _SIGSTOP):
                refused.add(pid)
        if set(_find_descendants(os.getpid())) <= below | refused:
            for pid in below - refused:
                _send_signal(pid, _SIGKILL)
        _reap_children(0)
    return 0 if code is None else code


def _run_command(config: dict[str, Any]) -> NoReturn:
    """Set the limits and rights of this process, then replace it with the command."""
    try:
        os.setsid()
        os.chdir(config["cwd"])
        for kind, value in config["limits"]:
            _, hard = resource.getrlimit(kind)
            top = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (top, top))
        if config["rules"]:
            _call("prctl", _SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
            # Some capabilities bypass Landlock. Without them root has little more than its files.
            for number in range(64 if os.geteuid() == 0 else 0):
                if _libc.prctl(_DROP_CAPABILITY, number, 0, 0, 0) < 0:
                    break  # the kernel knows no more
            _call("capset", struct.pack("<Ii", _CAPABILITY_VERSION, 0), bytes(24))
            _restrict_files(config["rules"], config["handled"], config["scoped"])
            steps = ctypes.create_string_buffer(config["seccomp"], len(config["seccomp"]))
            header = struct.pack("@HP", len(config["seccomp"]) // 8, ctypes.addressof(steps))
            _call("prctl", _SET_SECCOMP, _SECCOMP_FILTER, header, 0, 0)
        os.execvpe(config["argv"][0], config["argv"], config["env"])
    except OSError as error:
        os.write(2, f"{config['argv'][0]}: {error.strerror}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _restrict_files(rules: list[tuple[str, int]], handled: int, scoped: int) -> None:
    """Leave this process and its children only the rights that the rules grant."""
    attributes = struct.pack("<QQQ", handled, 0, scoped)
    ruleset = _call("syscall", _CREATE_RULESET, attributes, len(attributes) if scoped else 8, 0)
    for path, rights in rules:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # the path does not exist, so there is nothing to grant
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            rights &= _FILE_RIGHTS
        rule = struct.pack("<Qi", rights, descriptor)
        _call("syscall", _ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
        os.close(descriptor)
    _call("syscall", _RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _call(name: str, *arguments: int | bytes) -> int:
    """Call a function of the C library; raises `OSError` when it fails."""
    words = [ctypes.c_char_p(word) if isinstance(word, bytes) else ctypes.c_long(word) for word in arguments]
    result: int = getattr(_libc, name)(*words)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name} failed: {os.strerror(number)}")
    return result


def _reap_children(command: int) -> int | None:
    """Reap children that have ended. Return the command's exit code, in a shell's way, once it is among them."""
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


def _send_signal(pid: int, number: int) -> bool:
    """Signal a process. Return False when it runs as another user, so that it may not be signalled."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    return True


def _find_descendants(root: int) -> list[int]:
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
