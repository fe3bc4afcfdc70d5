"""Creates a clean repository: our own settings, no hooks. What a command made is taken over into it afterwards."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from treadle.git.git_folder import GitFolder, RepositoryUnsupported, UnsafeFile, is_temporary
from treadle.git.names import is_branch, is_plain_name
from treadle.git.object_format import ObjectFormat, read_format
from treadle.git.refs import read_ref_file
from treadle.git.repository import Repository

_EXCLUDE = b"# Files that git shall not see, one pattern a line.\n"
SWITCHED_OFF_HEAD = "HEAD.switched-off"
_UNFINISHED = {"./config", "./info/exclude"}
_FEW = 20


def read_new_head(private: GitFolder, head_name: str) -> tuple[ObjectFormat, str]:
    """Read the format of a repository that a command made, and the branch for its HEAD.

    Raises `RepositoryUnsupported` when it is none, or one that cannot be read.
    """
    form = read_format(private)
    try:
        head = read_ref_file(private, head_name, form)
    except UnsafeFile as error:
        raise RepositoryUnsupported(str(error)) from None
    if not head or not private.is_folder("objects") or not private.is_folder("refs"):
        raise RepositoryUnsupported("HEAD, objects or refs are missing, so it is no repository.")
    branch = head.removeprefix("ref: ")
    return form, head if is_branch(branch) and is_plain_name(branch) else "ref: refs/heads/main"


def create_repository(repository: Repository, form: ObjectFormat, head: str, *, is_bare: bool) -> None:
    """Create a repository without commits. Its folder may be empty or unfinished. Raises `RepositoryUnsupported`.

    It is filled in place, because another command may have something mounted on the folder. HEAD comes last: git sees
    the repository when it is whole, or not at all.
    """
    is_new_format = form.name != "sha1"
    lines = [
        "[core]",
        f"\trepositoryformatversion = {int(is_new_format)}",
        "\tfilemode = true",
        f"\tbare = {str(is_bare).lower()}",
        *([] if is_bare else ["\tlogallrefupdates = true"]),
        *(["[extensions]", f"\tobjectformat = {form.name}"] if is_new_format else []),
    ]
    try:
        with GitFolder(repository.git_dir.parent) as above:
            above.create_folder(repository.git_dir.name)
        with GitFolder(repository.git_dir) as real:
            if not is_unfinished(repository.git_dir):
                raise RepositoryUnsupported(f"{repository.git_dir.name} is not empty any more.")
            for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags"):
                real.create_folder(name)
            real.write_file("info/exclude", _EXCLUDE)
            real.write_file("config", "".join(f"{line}\n" for line in lines).encode())
            real.write_file("HEAD", f"{head}\n".encode())
    except (UnsafeFile, OSError) as error:
        raise RepositoryUnsupported(f"A repository could not be created here: {error}") from None


def is_unfinished(git_dir: Path) -> bool:
    """Tell whether a folder is missing or empty, or has only what `create_repository` wrote before it was killed."""
    if not os.path.lexists(git_dir):
        return True
    try:
        with GitFolder(git_dir) as folder:
            found = [path for path, _ in folder.walk_entries(".", _FEW) if not is_temporary(path)]
            is_ours = not found or folder.read_file("info/exclude", len(_EXCLUDE)) == _EXCLUDE  # it is written first
    except UnsafeFile:
        return False
    return is_ours and _UNFINISHED.issuperset(found)


def move_aside(found: Path, aside: Path) -> bool:
    """Move a hostile repository out of the way, and switch it off: without HEAD, git takes it for a plain folder.

    It stays beside its old place, so that it is on the same file system. Returns False if a process that was killed had
    done that, and had begun to remove it. Raises `UnsafeFile`.
    """
    with GitFolder(found.parent) as above:
        is_moved = above.look_up(aside.name) is not None
        try:
            if not is_moved:
                above.rename(found.name, aside.name)
            above.allow_access(aside.name)
        except OSError as error:
            raise UnsafeFile(f"{found.name} cannot be moved: {error.strerror}") from None
    with GitFolder(aside) as opened:
        with suppress(FileNotFoundError):
            opened.rename("HEAD", SWITCHED_OFF_HEAD)
        return not is_moved or opened.look_up(SWITCHED_OFF_HEAD) is not None
