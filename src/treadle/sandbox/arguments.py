"""The arguments of bubblewrap: an empty root, and everything that a plan shows mounted by name."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from treadle.errors import BadInput
from treadle.sandbox.plan import HOME, BubblewrapPlan
from treadle.sandbox.runtime_folder import make_empty_file, make_file, prepare_etc
from treadle.sandbox.shown_paths import is_below
from treadle.sandbox.toolchains import find_interpreter_folders

BWRAP = "/usr/bin/bwrap"
"""Exactly this path: distributions allow only this program to create user namespaces."""

NAMESPACES = ("user", "pid", "net", "ipc", "uts", "cgroup-try")

_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# The host's root keeps some rights to these files even in its own namespace.
_HIDDEN_FROM_ROOT = (
    "kmsg",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
    "mtrr",
    "slabinfo",
    "sysrq-trigger",
    "vmallocinfo",
)
_TWO_WORDS = ("bind", "ro-bind", "bind-fd", "ro-bind-fd", "symlink", "setenv")
_ONE_WORD = ("tmpfs", "proc", "dev", "dir")
_NO_PATH = ("uid", "gid", "hostname", "cap-drop", "perms", "size", "remount-ro", "chdir")


def build_arguments(plan: BubblewrapPlan, *, by_path: bool = False) -> list[str]:
    """Build the arguments of bubblewrap, without its descriptors. Later mounts cover earlier ones.

    `by_path` is for a bubblewrap that does not inherit the descriptors of the plan. Then check the mounts.
    """
    uid, gid = os.getuid() or 1000, os.getgid() or 1000  # the same as ours, but never root
    size = str(plan.job.bounds.tmp_mb * 1024 * 1024)
    arguments = [
        *(f"--unshare-{name}" for name in NAMESPACES),
        *("--uid", str(uid), "--gid", str(gid), "--hostname", "sandbox"),
        *("--cap-drop", "ALL", "--new-session", "--die-with-parent", "--clearenv"),
        *(word for item in plan.environment.items() for word in ("--setenv", *item)),
        *("--ro-bind", "/usr", "/usr"),
        *list_system_mounts(),
        *("--ro-bind", str(prepare_etc(uid, gid)), "/etc"),
        # Without these, a command of root could set core_pattern to a program that the kernel runs outside.
        *("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"),
    ]
    for name in _HIDDEN_FROM_ROOT if os.getuid() == 0 else ():
        if Path("/proc", name).exists():
            arguments += ("--ro-bind", str(make_empty_file()), f"/proc/{name}")
    arguments += (
        *("--dev", "/dev", "--perms", "1777", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
        *("--perms", "1777", "--size", size, "--tmpfs", "/tmp", "--perms", "0700", "--dir", HOME),
        *("--dir", "/run", "--dir", "/var", *_build_var_tmp(plan, size)),
    )
    for mount in plan.tools.mounts:
        arguments += ("--ro-bind", str(mount.path), str(mount.path))
    for name, data in plan.tools.home_files.items():
        copy = make_file(f"home-{hashlib.blake2b(data, digest_size=16).hexdigest()}", data)
        arguments += ("--ro-bind", str(copy), f"{HOME}/{name}")
    if plan.cache is not None:
        arguments += ("--bind", str(plan.cache), f"{HOME}/.cache")
    for folder in plan.job.read_only:
        if not folder.is_absolute() or not folder.exists() or Path.home().resolve().is_relative_to(folder.resolve()):
            raise BadInput(
                f"{folder} cannot be shown to commands: name an existing folder, and not your home. Nothing was run."
            )
        arguments += ("--ro-bind", str(folder), str(folder))
    arguments += ("--bind" if plan.job.writable else "--ro-bind", str(plan.workspace), str(plan.workspace))
    is_open = can_bind_descriptors() and not by_path
    for mount in plan.list_mounts():
        option = "--bind" if mount.is_writable else "--ro-bind"
        source = (f"{option}-fd", str(mount.descriptor)) if is_open else (option, mount.source)
        arguments += (*source, mount.target)
    for masked in plan.list_masked():
        if masked.is_dir():
            arguments += ("--tmpfs", str(masked), "--remount-ro", str(masked))
        else:
            arguments += ("--ro-bind", str(make_empty_file(masked.suffix)), str(masked))
    # On top of the workspace: the code that runs us stays unchanged even when it is inside of it.
    tools = [mount.path for mount in plan.tools.mounts]
    for folder in find_interpreter_folders():
        if is_below(folder, tools) and not folder.is_relative_to(plan.workspace):
            continue  # it is read-only already
        arguments += ("--ro-bind", str(folder), str(folder))
    return [*arguments, *list_links(plan, arguments), "--remount-ro", "/", "--chdir", str(plan.cwd)]


def list_links(plan: BubblewrapPlan, arguments: Sequence[str]) -> Iterator[str]:
    """List the arguments that create links: those of toolchains, and from the home of the command to given folders.

    What is mounted at a link, or on the way, replaces it.
    """
    links, home = list(plan.tools.links), Path.home().resolve()
    given = {*plan.job.shown_folders, *plan.job.writable_folders}
    for folder in sorted(given):
        below = folder.relative_to(home) if folder.is_relative_to(home) else Path()
        if below.parts and not below.parts[0].startswith(".") and not given.intersection(folder.parents):
            links.append((Path(HOME, below), str(folder)))
    points = [(option, Path(target)) for option, _, target in list_mount_points(arguments)]
    closed = [path for option, path in points if "bind" in option or path in plan.tools.masked]
    for location, text in links:
        if not is_below(location, closed) and not any(path.is_relative_to(location) for _, path in points):
            yield from ("--symlink", text, str(location))


def list_mount_points(arguments: Sequence[str]) -> list[tuple[str, str, str]]:
    """List what arguments of bubblewrap put into its root: the option, the source or nothing, and the target."""
    found, words = list[tuple[str, str, str]](), iter(arguments)
    for option in words:
        name = option.removeprefix("--")
        if name in _TWO_WORDS:
            source, target = next(words), next(words)
            if name != "setenv":
                found.append((name, source, target))
        elif name in _ONE_WORD:
            found.append((name, "", next(words)))
        elif name in _NO_PATH:
            next(words)
    return found


def _build_var_tmp(plan: BubblewrapPlan, size: str) -> tuple[str, ...]:
    """Build /var/tmp. It is the private /tmp, unless something in it is mounted, which needs its own path."""
    tools = (mount.path for mount in plan.tools.mounts)
    folders = (plan.workspace, *plan.job.read_only, *plan.job.shown_folders, *plan.job.writable_folders, *tools)
    if any(folder.is_relative_to("/var/tmp") for folder in folders):
        return ("--perms", "1777", "--size", size, "--tmpfs", "/var/tmp")
    return ("--symlink", "../tmp", "/var/tmp")


def list_system_mounts() -> Iterator[str]:
    """List the arguments that show the system's programs and libraries."""
    for name in _SYSTEM:
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))


@lru_cache(maxsize=1)
def can_bind_descriptors() -> bool:
    """Tell whether this bubblewrap can mount an open descriptor, so that nobody can exchange it. 0.10 and later can."""
    done = subprocess.run([BWRAP, "--help"], capture_output=True, text=True, check=False, env={}, cwd="/")
    return "--ro-bind-fd" in done.stdout
