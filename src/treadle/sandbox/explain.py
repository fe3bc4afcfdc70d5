"""Explains the sandbox of a command: everything that is mounted, and why. It reads what bubblewrap is told to do."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct

from treadle.permissions.paths import OPENED_WITH_FOLDER, PROTECTED
from treadle.sandbox.arguments import build_arguments, list_mount_points
from treadle.sandbox.base import Job
from treadle.sandbox.plan import HOME, BubblewrapPlan, PlanKind, build_plan
from treadle.sandbox.runtime_folder import make_runtime_folder

_REASONS = {
    "/etc": "a copy without passwords and names of this machine",
    "/tmp": "private, deleted afterwards",
    "/var/tmp": "private, deleted afterwards",
    "/dev/shm": "private, deleted afterwards",
    HOME: "the home of the command, deleted afterwards",
    f"{HOME}/.cache": "the cache of this workspace, kept",
    "/proc": "its own processes",
    "/dev": "null, zero, random and the like",
}
_KINDS = {"ro-bind": "read", "ro-bind-fd": "read", "bind": "write", "bind-fd": "write", "tmpfs": "write"}


class MountRow(Struct, frozen=True):
    """One line of an explanation. `access` is read, write, hidden, link or folder."""

    path: str
    access: str
    why: str


class Explanation(Struct, frozen=True):
    """What a command sees. `program` is what its first word leads to, `left_out` what is on PATH and not shown."""

    rows: tuple[MountRow, ...]
    search_path: str
    program: str
    left_out: tuple[MountRow, ...]


async def explain_job(job: Job) -> Explanation:
    """Explain the full sandbox of a job. Nothing is run."""
    with ExitStack() as stack:
        plan = await build_plan(job, stack, PlanKind(is_command=True))
        mounts = list_mount_points(build_arguments(plan))
    rows = [_describe_mount(plan, *mount) for mount in mounts]
    name = job.argv[0] if job.argv else ""
    left_out = (MountRow(str(one.path), "not shown", one.why) for one in plan.tools.left_out)
    return Explanation(tuple(rows), plan.environment["PATH"], _find_program(plan, name), tuple(left_out))


def _find_program(plan: BubblewrapPlan, name: str) -> str:
    if not name or "/" in name:
        return name
    seen, cache = f"{HOME}/.cache", str(plan.cache or HOME)
    path = [entry.replace(seen, cache) for entry in plan.environment["PATH"].split(os.pathsep)]
    folders = (plan.workspace, Path(cache), *plan.job.read_only, *plan.job.writable_folders)
    found = plan.tools.find_program(name, path, folders)
    return str(found).replace(cache, seen) if found else ""


def _describe_mount(plan: BubblewrapPlan, option: str, source: str, target: str) -> MountRow:
    is_hidden = Path(source).parent == make_runtime_folder() and Path(source).name.startswith("empty")
    if is_hidden or Path(target) in plan.list_masked():
        why = "of the kernel" if target.startswith("/proc/") else "it may hold secrets or rights"
        return MountRow(target, "hidden", why)
    if option == "symlink":
        return MountRow(target, "link", f"leads to {source}")
    access = _KINDS.get(option, "folder")
    known = {str(mount.path): mount.why for mount in plan.tools.mounts}
    return MountRow(target, access, known.get(target) or _REASONS.get(target) or _describe_place(plan, target))


def _describe_place(plan: BubblewrapPlan, target: str) -> str:
    path = Path(target)
    if path == plan.workspace:
        return "the workspace"
    if path.is_relative_to(plan.workspace):
        if target in plan.parent_folders:
            return "it cannot be moved: something protected is in it"
        if path.name in (*PROTECTED, *OPENED_WITH_FOLDER):
            return "protected: it runs or instructs outside the sandbox"
        return "protected"
    if path in plan.job.read_only or path in plan.job.writable_folders:
        return "chosen by you"
    return "the Python that runs treadle" if os.path.isdir(path / "bin") and path != Path("/usr") else "system"
