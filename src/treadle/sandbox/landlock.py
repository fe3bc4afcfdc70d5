"""The reduced sandbox, where bubblewrap is missing: the rights that a process can give up by itself.

A command still sees other processes and has no network. In the top folder of the workspace it can create nothing new,
because a rule for that folder would include `.git`.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from treadle.errors import BadInput
from treadle.permissions.paths import GUARDED_NAMES
from treadle.sandbox.base import CommandResult, Job, OnOutput
from treadle.sandbox.bubblewrap import detect_machine
from treadle.sandbox.environment import build_sandbox_environment
from treadle.sandbox.guarded_paths import find_guarded_paths, resolve_sandbox_workspace, resolve_working_folder
from treadle.sandbox.host import SupervisorConfig, run_supervised
from treadle.sandbox.runtime_folder import ETC_PATTERNS, make_runtime_folder
from treadle.sandbox.seccomp import build_program
from treadle.sandbox.toolchains import Toolchains, find_interpreter_folders, find_toolchains

OLDEST_VERSION = 3
"""Before version 3, Landlock let a process truncate files that it may not write."""

_EXECUTE, _WRITE, _READ, _LIST = 1, 2, 4, 8
_READ_ONLY = _EXECUTE | _READ | _LIST
_REFER, _TRUNCATE, _DEVICES = 1 << 13, 1 << 14, 1 << 15
_MAKE_DEVICES = 1 << 6 | 1 << 11
_SCOPES = 0b11  # abstract sockets and signals stay inside
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sys/devices/system/cpu")
_DEVICE_FILES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

Rule = tuple[str, int]


@lru_cache(maxsize=1)
def read_landlock_version() -> int:
    """Return the kernel's version of Landlock, or 0 when it has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint(1))))


async def run_in_landlock(job: Job, on_output: OnOutput) -> CommandResult:
    """Run a command to its end in the reduced sandbox."""
    if job.network:
        raise BadInput(
            "The reduced sandbox cannot grant the network, so the command was not run. Install bubblewrap for that."
        )
    workspace = resolve_sandbox_workspace(job)
    cwd = resolve_working_folder(job, workspace)
    version = read_landlock_version()
    folder = Path(tempfile.mkdtemp(prefix="tmp-", dir=make_runtime_folder()))
    try:
        tools = await asyncio.to_thread(find_toolchains, workspace)
        environment = build_sandbox_environment(job, workspace, str(folder), tools)
        config = SupervisorConfig(
            argv=job.argv,
            cwd=str(cwd),
            env={**environment, "TMPDIR": str(folder), **job.env},
            rules=[*_build_rules(job, workspace, folder, tools)],
            handled=build_handled_rights(version),
            scoped=_SCOPES if version >= 6 else 0,
            seccomp=build_program(detect_machine(), sockets=False),
        )
        return await run_supervised(config, job, (workspace, folder, *job.writable_folders), on_output)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def build_handled_rights(version: int) -> int:
    """Return all rights that a version of Landlock knows. A process has only those of them that a rule grants."""
    rights = (1 << 13) - 1
    for right, since in ((_REFER, 2), (_TRUNCATE, 3), (_DEVICES, 5)):
        rights |= right if version >= since else 0
    return rights


def _build_rules(job: Job, workspace: Path, folder: Path, tools: Toolchains) -> Iterator[Rule]:
    for path in (*_SYSTEM, *map(str, job.read_only), *map(str, find_interpreter_folders())):
        yield os.path.realpath(path), _READ_ONLY
    hidden = dict.fromkeys(tools.masked, 0)
    for mount in tools.mounts:
        if any(path.is_relative_to(mount.path) for path in hidden):
            yield from _split_folder(mount.path, hidden, _READ_ONLY)
        else:
            yield str(mount.path), _READ_ONLY
    for pattern in (*ETC_PATTERNS, "passwd", "group", "hosts", "host.conf", "nsswitch.conf"):
        for path in Path("/etc").glob(pattern):
            yield str(path.resolve()), _READ_ONLY
    for path in _DEVICE_FILES:
        yield path, _READ | _WRITE | _TRUNCATE
    all_rights = build_handled_rights(read_landlock_version()) & ~_MAKE_DEVICES & ~_DEVICES
    yield str(folder), all_rights
    rights = {workspace: all_rights if job.writable else _READ_ONLY}
    rights |= dict.fromkeys(job.shown_folders, _READ_ONLY) | dict.fromkeys(job.writable_folders, all_rights)
    for top, granted in rights.items():
        found = find_guarded_paths(top)
        exceptions = dict.fromkeys((*found.read_only, *(top / name for name in found.named_by_git)), _READ_ONLY)
        exceptions |= dict.fromkeys(found.list_hidden(show_env_files=job.show_env_files), 0)
        yield from _split_folder(top, exceptions, granted)


def _split_folder(folder: Path, exceptions: Mapping[Path, int], rights: int) -> Iterator[Rule]:
    """Grant rights to everything in a folder but the exceptions. A rule holds for all that is below its folder."""
    yield str(folder), _LIST
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        path = Path(entry.path)
        if entry.is_symlink():
            continue  # its target has its own rule, or none
        if entry.name in GUARDED_NAMES and path not in exceptions:
            yield entry.path, _READ_ONLY
        elif path in exceptions:
            if exceptions[path]:
                yield entry.path, exceptions[path]
        elif entry.is_dir(follow_symlinks=False) and any(one.is_relative_to(path) for one in exceptions):
            yield from _split_folder(path, exceptions, rights)
        else:
            yield entry.path, rights
