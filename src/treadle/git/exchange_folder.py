"""A repository of our own, in which git talks to a remote. It shares the objects of the user's repository.

Git uses the settings of the repository it runs in, and some of them name programs. So it never runs in a repository
of a workspace: it runs here, where every setting is ours or from the user's own configuration.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from treadle.errors import BadInput
from treadle.git.git_folder import GitFolder, UnsafeFile
from treadle.git.object_format import ObjectFormat
from treadle.git.object_store import list_alternates
from treadle.git.refs import render_packed_refs
from treadle.workspace.folder import open_beneath

REMOTE = "treadle"
"""The name of the remote in this folder. No setting of the user is about a remote of this name."""

_SETTINGS = """\
[core]
	repositoryformatversion = {version}
	bare = true
	hooksPath = /dev/null
	fsmonitor = false
	alternateRefsCommand = ": #"
	commitGraph = false
	multiPackIndex = false
	logAllRefUpdates = false
[extensions]
{extensions}[remote "treadle"]
	url = {url}
[url {url}]
	insteadOf = {url}
	pushInsteadOf = {url}
[push]
	default = nothing
	followTags = false
	gpgSign = false
	negotiate = false
	pushOption =
	recurseSubmodules = no
	useForceIfIncludes = false
[fetch]
	prune = false
	pruneTags = false
	recurseSubmodules = no
	unpackLimit = 1
	writeCommitGraph = false
[transfer]
	bundleURI = false
	unpackLimit = 1
[pack]
	useBitmaps = false
[submodule]
	recurse = false
[gc]
	auto = 0
[maintenance]
	auto = false
[http]
	followRedirects = false
"""
"""Settings of the user's own that would send or change more than was shown are overridden here.

The address is rewritten to itself, so that git uses the one that was shown. `: #` is a shell command that does nothing:
without it git would run in the repository that shares its objects. Files beside those objects that could tell lies
about them (a commit graph, bitmaps) are not read.
"""

_OBJECT_FOLDERS = ("pack", *(f"{first:02x}" for first in range(256)))
_MAX_PLACES = 16
_PACK_FILE = re.compile(r"pack-[0-9a-f]{40,64}\.(pack|rev|idx)")
_PACK_ORDER = ("pack", "rev", "idx")  # a pack is used as soon as its index is there


def quote_setting(value: str) -> str:
    """Quote a value, or the name of a subsection, for a file of settings; raises `BadInput` if that is impossible."""
    if "\0" in value or "\n" in value:
        raise BadInput("a setting of git cannot hold a line break.")
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def create_exchange(
    git_dir: Path, url: str, form: ObjectFormat, *, objects: Path | None, refs: Mapping[str, str], shallow: bytes = b""
) -> None:
    """Create the repository. `objects` are those of the user's repository, and `refs` tell git which of them it has."""
    for name in ("objects/info", "objects/pack", "refs"):
        (git_dir / name).mkdir(parents=True)
    is_old = form.name == "sha1"
    extensions = "" if is_old else f"\tobjectFormat = {form.name}\n"
    settings = _SETTINGS.format(version=0 if is_old else 1, extensions=extensions, url=quote_setting(url))
    with GitFolder(git_dir) as folder:
        folder.write_file("HEAD", b"ref: refs/heads/treadle\n")
        folder.write_file("config", settings.encode(), 0o600)
        folder.write_file("packed-refs", render_packed_refs(refs))
        if objects is not None:
            folder.write_file("objects/info/alternates", _borrow_objects(git_dir, objects))
        if shallow:
            folder.write_file("shallow", shallow)


def _borrow_objects(git_dir: Path, objects: Path) -> bytes:
    """Make folders with the objects of a repository and of those it borrows from. Return the list of them for git.

    They have nothing else of these repositories: an `info/alternates` there may be a link to any file of the user, and
    git tells its lines in errors.
    """
    places = [objects]
    for number, place in enumerate(places):  # which grows meanwhile
        shown = git_dir / f"borrowed/{number}"
        shown.mkdir(parents=True)
        try:
            with GitFolder(place) as store:
                for name in filter(store.is_folder, _OBJECT_FOLDERS):
                    (shown / name).symlink_to(place / name)
                places += [one for one in list_alternates(store) if one not in places][: _MAX_PLACES - len(places)]
        except UnsafeFile:  # there is no such folder
            continue
    return b"".join(b"../borrowed/%d\n" % number for number in range(len(places)))


def move_packs(git_dir: Path, target: GitFolder) -> None:
    """Move the packs that git has received and checked into a repository."""
    source = git_dir / "objects/pack"
    names = [name for name in os.listdir(source) if _PACK_FILE.fullmatch(name)]
    target.create_folder("objects/pack")
    opened = open_beneath(target.fd, "objects/pack", os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in sorted(names, key=lambda one: _PACK_ORDER.index(one.rpartition(".")[2])):
            _move_file(source / name, opened, name)
    finally:
        os.close(opened)


def _move_file(source: Path, folder: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.stat(name, dir_fd=folder, follow_symlinks=False)
        return  # the name is the hash of the content
    try:
        os.rename(source, name, dst_dir_fd=folder)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        temporary = f"tmp_pack_{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(source, "rb") as reading, open(os.open(temporary, flags, 0o444, dir_fd=folder), "wb") as writing:
            shutil.copyfileobj(reading, writing, 1 << 20)
            writing.flush()
            os.fsync(writing.fileno())
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
