"""The hooks of a workspace, `.treadle/hooks.toml`, and which of them the user trusts.

Somebody else may have written them, and they run with the user's rights. So they run only if the user has trusted
exactly this text: the file and everything in `.treadle/hooks/`. No tool of an agent can write either of them.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from treadle.app.hook_settings import HookSettings
from treadle.app.settings import Settings, data_folder
from treadle.errors import BadInput, StoreDamaged
from treadle.knowledge.file_knowledge import write_whole
from treadle.workspace.folder import open_beneath

HOOKS_FILE = ".treadle/hooks.toml"
HOOKS_FOLDER = ".treadle/hooks"
TRUST_FILE = "trusted_hooks.json"
MAX_FILE_BYTES = 256 * 1024
MAX_FILES = 50

Trust = Literal["trusted", "refused", "changed", "new"]
_REFUSED = "refused "
"""Stands before the digest of a text that the user does not want to run."""


class WorkspaceHooks(Struct, frozen=True):
    """The hooks of a workspace as they are now: all their text by path, and a digest of it."""

    files: dict[str, bytes]
    digest: str

    def parse(self) -> HookSettings:
        """Parse the hooks; raises `BadInput`."""
        try:
            table = tomllib.loads(self.files[HOOKS_FILE].decode())
            return msgspec.convert(table, HookSettings)
        except (ValueError, RecursionError, msgspec.ValidationError) as error:
            raise BadInput(f"{HOOKS_FILE}: {error}") from None


def read_workspace_hooks(workspace: Path) -> WorkspaceHooks | None:
    """Read the hooks of a workspace. None if it has none. Raises `BadInput` for links and for what is too large."""
    try:
        root = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not os.path.lexists(workspace / HOOKS_FILE):
            return None
        names = [HOOKS_FILE]
        with suppress(FileNotFoundError):
            folder = open_beneath(root, HOOKS_FOLDER, os.O_RDONLY | os.O_DIRECTORY)
            try:
                names += sorted(f"{HOOKS_FOLDER}/{name}" for name in os.listdir(folder))
            finally:
                os.close(folder)
        if len(names) > MAX_FILES:
            raise BadInput(f"{HOOKS_FOLDER} has more than {MAX_FILES} files; remove some")
        files = {name: _read_file(root, name) for name in names}
    except OSError as error:
        raise BadInput(f"{error.filename or HOOKS_FOLDER} cannot be read: {error.strerror}") from None
    finally:
        os.close(root)
    digest = hashlib.sha256()
    for name, data in files.items():
        digest.update(f"{name}\0{len(data)}\0".encode(errors="surrogateescape") + data)
    return WorkspaceHooks(files, digest.hexdigest())


def _read_file(root: int, name: str) -> bytes:
    try:
        descriptor = open_beneath(root, name, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise BadInput(f"{name} cannot be read: {error.strerror}. Links are not followed") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadInput(f"{name} is not a regular file; only files can be trusted")
    with open(descriptor, "rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise BadInput(f"{name} has more than {MAX_FILE_BYTES} bytes")
    return data


def check_trust(hooks: WorkspaceHooks, folders: Sequence[Path]) -> Trust:
    """Say whether the user trusts these hooks in one of these folders: see `list_trust_folders`."""
    trusted = _load_trust()
    digests = [trusted[key] for folder in folders if (key := os.path.realpath(folder)) in trusted]
    if hooks.digest in digests:
        return "trusted"
    if f"{_REFUSED}{hooks.digest}" in digests:
        return "refused"
    return "changed" if any(not digest.startswith(_REFUSED) for digest in digests) else "new"


def trust_hooks(hooks: WorkspaceHooks, workspace: Path) -> None:
    """Trust exactly this text of hooks in a workspace."""
    _save_trust({**_load_trust(), os.path.realpath(workspace): hooks.digest})


def refuse_hooks(hooks: WorkspaceHooks, workspace: Path) -> None:
    """Remember that the user does not want exactly this text of hooks in a workspace. They are not asked again."""
    _save_trust({**_load_trust(), os.path.realpath(workspace): f"{_REFUSED}{hooks.digest}"})


def forget_trust(workspace: Path) -> bool:
    """Forget what the user said about the hooks of a workspace; whether they said anything."""
    trusted = _load_trust()
    is_known = trusted.pop(os.path.realpath(workspace), None) is not None
    if is_known:
        _save_trust(trusted)
    return is_known


def list_trust_folders(settings: Settings) -> tuple[Path, ...]:
    """List the folders whose trust holds for a session: its own, and the workspace of a worktree."""
    return (settings.folder, Path(settings.workspace)) if settings.worktree else (settings.folder,)


def describe_trust(workspace: Path, trust: Trust) -> str:
    """Tell the user why hooks of a workspace do not run, and what to do."""
    if trust == "refused":
        return (
            f"{workspace / HOOKS_FILE}: these hooks are not run, because you said no. `treadle hooks forget` makes "
            "treadle ask again, and `treadle hooks trust` runs them from now on"
        )
    why = "they changed since you trusted them" if trust == "changed" else "you have not trusted them"
    return (
        f"{workspace / HOOKS_FILE}: these hooks are not run, because {why}. `treadle hooks list` shows them, and "
        "`treadle hooks trust` runs them from now on"
    )


def _load_trust() -> dict[str, str]:
    file = data_folder() / TRUST_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise StoreDamaged(f"{file} cannot be read: {error}. Remove it, and trust your hooks again.") from None


def _save_trust(trusted: dict[str, str]) -> None:
    data = msgspec.json.format(msgspec.json.encode(trusted, order="sorted"), indent=2)
    write_whole(data_folder() / TRUST_FILE, f"{data.decode()}\n")
