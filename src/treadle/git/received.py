"""Takes over what an exchange with a remote brought: objects, branches of the remote, tags, a new repository.

The exchange folder is ours, and git has checked the objects in it. The repository is changed as files, as git would.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from treadle.errors import BadInput
from treadle.git.exchange_folder import move_packs, quote_setting
from treadle.git.git_folder import GitFolder, LockHeld, UnsafeFile
from treadle.git.names import is_ref_name, show_name
from treadle.git.object_format import MAX_CONFIG_BYTES, SHA1, ObjectFormat
from treadle.git.real_repository import RealRepository, RefMoved
from treadle.git.refs import read_loose_refs, read_packed_refs, render_packed_refs
from treadle.git.repository import Repository
from treadle.workspace.folder import open_beneath

MAX_SHALLOW_BYTES = 16 << 20

_CLONE_SETTINGS = """\
[core]
	repositoryformatversion = 0
	filemode = true
	bare = false
	logallrefupdates = true
[remote "origin"]
	url = {url}
	fetch = +refs/heads/*:refs/remotes/origin/*
[branch {branch}]
	remote = origin
	merge = {ref}
"""

RefMoves = Mapping[str, tuple[str, str]]
"""The value of each ref before and after. Empty: it does not exist."""


class NewRepository(Struct, frozen=True):
    """A repository to create: where, with which remote, and which branch it has checked out."""

    workspace: Path
    folder: str
    url: str
    branch: str


def read_all_refs(folder: GitFolder, form: ObjectFormat) -> dict[str, str]:
    """Read all refs of a repository that have a plain value and a name that git allows."""
    found = read_packed_refs(folder, form) | read_loose_refs(folder, form).values
    return {name: value for name, value in found.items() if is_ref_name(name) and not value.startswith("ref:")}


def find_ref_moves(before: Mapping[str, str], after: Mapping[str, str], tops: tuple[str, ...]) -> RefMoves:
    """Find the refs below some folders that an exchange has changed. A tag that was there stays."""
    names = sorted({name for name in (*before, *after) if name.startswith(tops)})
    moves = {name: (before.get(name, ""), after.get(name, "")) for name in names}
    return {name: (old, new) for name, (old, new) in moves.items() if old != new and not (old and "refs/tags/" in name)}


def take_over_fetched(places: Repository, git_dir: Path, moves: RefMoves, shallow: bytes | None) -> list[str]:
    """Take objects and refs over, first the objects. Return sentences about what was not possible."""
    with RealRepository(places) as real, real.hold():
        move_packs(git_dir, real.common)
        if shallow is not None:
            with real.common.lock_file("shallow") as lock:
                lock.replace(shallow)
        return _move_refs(real, moves)


def note_pushed(places: Repository, remote: str, pushed: Mapping[str, str]) -> list[str]:
    """Note which commits the branches of a remote have now, as git does after a push."""
    with RealRepository(places) as real, real.hold():
        moves: dict[str, tuple[str, str]] = {}
        for ref, value in pushed.items():
            if ref.startswith("refs/heads/"):
                tracking = f"refs/remotes/{remote}/{ref.removeprefix('refs/heads/')}"
                moves[tracking] = (real.read_ref(tracking), value)
        return _move_refs(real, moves)


def _move_refs(real: RealRepository, moves: RefMoves) -> list[str]:
    notes: list[str] = []
    for name, (before, after) in moves.items():
        if before == after:
            continue
        try:
            real.update_ref(name, before, after)
        except RefMoved:
            notes.append(f"{show_name(name)} was changed meanwhile and stays as it is.")
        except (LockHeld, UnsafeFile) as error:
            notes.append(f"{show_name(name)} was not changed: {error}")
    return notes


def set_upstream(places: Repository, branch: str, remote: str, follows: tuple[str, str]) -> str:
    """Let a branch follow its namesake of a remote, unless it `follows` another one. Return what was done."""
    if follows == (remote, f"refs/heads/{branch}"):
        return f"{branch} follows {remote}/{branch}."
    if any(follows):
        return f"{branch} follows another branch already. Only the user can change that."
    ref = quote_setting(f"refs/heads/{branch}")
    with RealRepository(places) as real, real.hold(), real.common.lock_file("config") as lock:
        data = real.common.read_file("config", MAX_CONFIG_BYTES) or b""
        text = f"[branch {quote_setting(branch)}]\n\tremote = {remote}\n\tmerge = {ref}\n"
        lock.replace(data + (b"" if data.endswith(b"\n") or not data else b"\n") + text.encode())
    return f"{branch} follows {remote}/{branch} now."


def create_clone(new: NewRepository, git_dir: Path) -> str:
    """Create a repository with what was fetched, and with settings of ours only. Return the commit of its branch."""
    with GitFolder(git_dir) as exchange:
        refs = read_all_refs(exchange, SHA1)
        shallow = exchange.read_file("shallow", MAX_SHALLOW_BYTES) or b""
    commit = refs.get(f"refs/remotes/origin/{new.branch}", "")
    if commit:
        refs[f"refs/heads/{new.branch}"] = commit
    with GitFolder(new.workspace) as workspace:
        workspace.create_folder("" if new.folder == "." else new.folder)
        opened = open_beneath(workspace.fd, new.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if os.listdir(opened):
                raise BadInput(f"{new.folder} is not empty any more. Nothing was cloned.")
            os.mkdir(".git", dir_fd=opened)
        finally:
            os.close(opened)
    settings = _CLONE_SETTINGS.format(
        url=quote_setting(new.url), branch=quote_setting(new.branch), ref=quote_setting(f"refs/heads/{new.branch}")
    )
    with GitFolder(new.workspace / new.folder / ".git") as repository:
        for name in ("objects/info", "refs/heads", "refs/tags"):
            repository.create_folder(name)
        move_packs(git_dir, repository)
        repository.write_file("config", settings.encode())
        repository.write_file("packed-refs", render_packed_refs(refs))
        if commit:
            repository.write_file("refs/remotes/origin/HEAD", f"ref: refs/remotes/origin/{new.branch}\n".encode())
        if shallow:
            repository.write_file("shallow", shallow)
        # HEAD comes last: without it, git does not take the folder for a repository.
        repository.write_file("HEAD", f"ref: refs/heads/{new.branch}\n".encode())
    return commit
