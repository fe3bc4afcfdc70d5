"""The other worktrees of a repository, and which branches they have checked out. It reads names only."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from treadle.git.git_folder import GitFolder, UnsafeFile
from treadle.git.object_format import MAX_CONFIG_BYTES, list_settings
from treadle.git.real_repository import RealRepository
from treadle.git.refs import read_ref_file

_MAX_WORKTREES = 1000
_MAX_NAME_BYTES = 8192


class OtherWorktree(Struct, frozen=True):
    """Another worktree: where its files are, the value of its HEAD, and the branch that it rebases, if it does."""

    work_tree: str
    head: str
    rebased: str = ""


def list_other_worktrees(real: RealRepository) -> list[OtherWorktree]:
    """List the worktrees of a repository but the one that is open here."""
    found: list[OtherWorktree] = []
    settings = list_settings(_read(real.common, "config", MAX_CONFIG_BYTES).decode(errors="replace"))
    is_bare = ("core", "bare", "true") in settings
    if real.is_linked and not is_bare:
        found.append(_read_worktree(real, "", str(real.places.common_dir.parent)))
    for entry in real.common.list_entries("worktrees", _MAX_WORKTREES):
        place = f"worktrees/{entry.name}"
        if real.places.common_dir / "worktrees" / entry.name == real.places.git_dir:
            continue
        link = os.fsdecode(_read(real.common, f"{place}/gitdir")).strip()
        found.append(_read_worktree(real, f"{place}/", str(Path(link).parent) if link else ""))
    return [other for other in found if other.head]


def list_foreign_branches(real: RealRepository) -> set[str]:
    """List the branches that another worktree has checked out or is rebasing."""
    others = list_other_worktrees(real)
    heads = {other.head.removeprefix("ref: ") for other in others if other.head.startswith("ref: ")}
    return heads | {other.rebased for other in others if other.rebased}


def _read_worktree(real: RealRepository, place: str, work_tree: str) -> OtherWorktree:
    try:
        head = read_ref_file(real.common, f"{place}HEAD", real.form)
    except UnsafeFile:
        head = ""
    rebased = os.fsdecode(_read(real.common, f"{place}rebase-merge/head-name")).strip()
    return OtherWorktree(work_tree.replace("\n", ""), head, rebased)


def _read(folder: GitFolder, name: str, limit: int = _MAX_NAME_BYTES) -> bytes:
    try:
        return folder.read_file(name, limit) or b""
    except UnsafeFile:
        return b""
