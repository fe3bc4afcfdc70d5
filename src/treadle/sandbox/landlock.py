"""The reduced sandbox, where bubblewrap is missing: what the kernel lets a process give up by itself.

Other processes stay visible, and in the workspace's own folder nothing new can be made: a rule for it would hold in
`.git` too. There is no network to grant.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from treadle.errors import BadInput
from treadle.permissions.paths import PROTECTED
from treadle.sandbox import supervised
from treadle.sandbox.base import CommandResult, Job, OnOutput
from treadle.sandbox.bubblewrap import detect_machine
from treadle.sandbox.environment import build_sandbox_environment, find_interpreter_folders
from treadle.sandbox.guarded_paths import find_guarded_paths, resolve_sandbox_workspace, resolve_working_folder
from treadle.sandbox.runtime_folder import ETC_PATTERNS, make_runtime_folder
from treadle.sandbox.seccomp import build_program

OLDEST_VERSION = 3
"""Before its third version, Landlock let a process empty files that it may not write."""

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
    """Which Landlock the kernel has; 0 for none."""
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint(1))))


async def run_in_landlock(job: Job, on_output: OnOutput) -> CommandResult:
    """Run a command to its end behind the reduced walls."""
    if job.network:
        raise BadInput(
            "The reduced sandbox cannot grant the network, so the command was not run. Install bubblewrap for that."
        )
    workspace = resolve_sandbox_workspace(job)
    cwd = resolve_working_folder(job, workspace)
    folder = Path(tempfile.mkdtemp(prefix="tmp-", dir=make_runtime_folder()))
    try:
        launch = supervised.SupervisorConfig(
            argv=job.argv,
            cwd=str(cwd),
            env=_environment(job, workspace, folder),
            rules=[*_rules(job, workspace, folder)],
            handled=build_handled_rights(read_landlock_version()),
            scoped=_SCOPES if read_landlock_version() >= 6 else 0,
            seccomp=build_program(detect_machine(), sockets=False),
        )
        return await supervised.run_supervised(launch, job, (workspace, folder), on_output)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def build_handled_rights(abi: int) -> int:
    """Every right that this version of Landlock knows, so that each must be given to be had."""
    return (1 << 13) - 1 | (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0) | (_DEVICES if abi >= 5 else 0)


def _environment(job: Job, workspace: Path, folder: Path) -> dict[str, str]:
    seen = (Path("/usr"), workspace, *job.read_only, *find_interpreter_folders())
    return {**build_sandbox_environment(job, str(folder), seen), "TMPDIR": str(folder), **job.env}


def _rules(job: Job, workspace: Path, folder: Path) -> Iterator[Rule]:
    for path in (*_SYSTEM, *map(str, job.read_only), *map(str, find_interpreter_folders())):
        yield os.path.realpath(path), _READ_ONLY
    for pattern in (*ETC_PATTERNS, "passwd", "group", "hosts", "host.conf", "nsswitch.conf"):
        for path in Path("/etc").glob(pattern):
            yield str(path.resolve()), _READ_ONLY
    for path in _DEVICE_FILES:
        yield path, _READ | _WRITE | _TRUNCATE
    everything = build_handled_rights(read_landlock_version()) & ~_MAKE_DEVICES & ~_DEVICES
    yield str(folder), everything
    found = find_guarded_paths(workspace)
    special = dict.fromkeys(found.repositories, _READ_ONLY)
    special |= dict.fromkeys((*found.own_files, *(() if job.show_env_files else found.env_files)), 0)
    yield from _split(workspace, special, everything if job.writable else _READ_ONLY)


def _split(folder: Path, special: Mapping[Path, int], rights: int) -> Iterator[Rule]:
    """Rights for all in a folder, and others for what is special; a rule holds for everything below its folder."""
    yield str(folder), _LIST
    for entry in os.scandir(folder):
        path = Path(entry.path)
        if entry.is_symlink():
            continue  # what it leads to has its own rule, or none
        if entry.name in PROTECTED:
            yield entry.path, _READ_ONLY
        elif path in special:
            if special[path]:
                yield entry.path, special[path]
        elif entry.is_dir(follow_symlinks=False) and any(one.is_relative_to(path) for one in special):
            yield from _split(path, special, rights)
        else:
            yield entry.path, rights
