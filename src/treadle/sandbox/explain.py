"""Explains the sandbox of a command: everything that is mounted, and why. It reads what bubblewrap is told to do."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct

from treadle.sandbox.arguments import build_arguments, list_mount_points
from treadle.sandbox.base import Job
from treadle.sandbox.plan import HOME, BubblewrapPlan, PlanKind, build_plan
from treadle.sandbox.runtime_folder import make_runtime_folder
from treadle.sandbox.tool_roots import VERSIONS_FILE
from treadle.sandbox.toolchains import find_interpreter_folders

_REASONS = {
    "/etc": "a copy without passwords and names of this machine",
    "/tmp": "private, deleted afterwards",
    "/var/tmp": "private, deleted afterwards",
    "/dev/shm": "private, deleted afterwards",
    HOME: "the home of the command, deleted afterwards",
    f"{HOME}/.cache": "the cache of this workspace, kept",
    f"{HOME}/{VERSIONS_FILE}": "your choice of versions",
    "/proc": "its own processes",
    "/dev": "null, zero, random and the like",
}
_GIT_REASONS = {
    "gitconfig": "your name and settings of git",
    "objects": "objects of git, read from the real repository",
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
        reader = _PlanReader(await build_plan(job, stack, PlanKind(is_command=True)))
        return reader.explain()


class _PlanReader:
    """Reads a plan, and puts it into words."""

    def __init__(self, plan: BubblewrapPlan) -> None:
        self._plan = plan
        self._reasons = {str(mount.path): mount.why for mount in plan.tools.mounts}

    def explain(self) -> Explanation:
        plan = self._plan
        mounts = list_mount_points(build_arguments(plan))
        rows = tuple(self._describe_mount(*mount) for mount in mounts)
        left_out = tuple(MountRow(str(one.path), "not shown", one.why) for one in plan.tools.left_out)
        name = plan.job.argv[0] if plan.job.argv else ""
        return Explanation(rows, plan.environment["PATH"], name if "/" in name else self._find_program(name), left_out)

    def _describe_mount(self, option: str, source: str, target: str) -> MountRow:
        is_hidden = Path(source).parent == make_runtime_folder() and Path(source).name.startswith("empty")
        if is_hidden or Path(target) in self._plan.list_masked():
            why = "of the kernel" if target.startswith("/proc/") else "it may hold secrets or rights"
            return MountRow(target, "hidden", why)
        if option == "symlink":
            return MountRow(target, "link", f"leads to {source}")
        why = self._reasons.get(target) or _REASONS.get(target) or self._describe_place(Path(target))
        return MountRow(target, _KINDS.get(option, "folder"), why)

    def _describe_place(self, path: Path) -> str:
        plan = self._plan
        if path == plan.workspace:
            return "the workspace"
        if str(path) in plan.parent_folders:
            return "it cannot be moved: something protected is in it"
        if path in (*plan.job.read_only, *plan.job.shown_folders, *plan.job.writable_folders):
            return "chosen by you"
        if plan.git is not None and any(mount.target == str(path) for mount in plan.git.mounts):
            return _GIT_REASONS.get(path.name) or _GIT_REASONS.get(path.parent.name) or "a private copy"
        if path in find_interpreter_folders():
            return "the Python that runs treadle"
        is_inside = path.is_relative_to(plan.workspace)
        return "protected: it runs or instructs outside the sandbox" if is_inside else "system"

    def _find_program(self, name: str) -> str:
        plan = self._plan
        seen, cache = f"{HOME}/.cache", str(plan.cache or HOME)
        path = [entry.replace(seen, cache) for entry in plan.environment["PATH"].split(os.pathsep)]
        folders = (plan.workspace, Path(cache), *plan.job.read_only, *plan.job.writable_folders)
        found = plan.tools.find_program(name, path, folders) if name else None
        return str(found).replace(cache, seen) if found else ""
