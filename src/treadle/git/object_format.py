"""The two formats of object ids, and the settings of a repository that decide whether treadle can work with it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import partial
from typing import Protocol

from msgspec import Struct

from treadle.git.git_folder import GitFolder, RepositoryUnsupported, UnsafeFile

MAX_CONFIG_BYTES = 1 << 20
KINDS = ("commit", "tree", "blob", "tag")
GITLINK = 0o160000
"""The mode of a submodule in a tree or an index."""


class Hasher(Protocol):
    """A running hash."""

    def update(self, data: bytes, /) -> None:
        """Add data."""
        ...

    def hexdigest(self) -> str:
        """Return the hash of all data so far."""
        ...

    def digest(self) -> bytes:
        """Return the same as bytes."""
        ...


class ObjectFormat(Struct, frozen=True):
    """How the ids of a repository are computed. `size` is their length in bytes."""

    name: str
    size: int
    start_hash: Callable[[], Hasher]

    @property
    def null_id(self) -> str:
        """The id that stands for "nothing"."""
        return "0" * (self.size * 2)

    def is_id(self, text: str) -> bool:
        """Whether a text is a complete id in lower case, and not the one of nothing."""
        return len(text) == self.size * 2 and _HEX.fullmatch(text) is not None and text != self.null_id

    def hash_object(self, kind: str, data: bytes) -> str:
        """Compute the id of an object."""
        running = self.start_hash()
        running.update(b"%s %d\0" % (kind.encode(), len(data)))
        running.update(data)
        return running.hexdigest()


_HEX = re.compile(r"[0-9a-f]+")


SHA1 = ObjectFormat("sha1", 20, partial(hashlib.sha1, usedforsecurity=False))
SHA256 = ObjectFormat("sha256", 32, hashlib.sha256)
_FORMATS = {"sha1": SHA1, "sha256": SHA256}

# Extensions that change nothing about the files that are read here. A partial clone lacks objects, so what a command
# refers to could not be checked; reftable keeps branches in another format.
_HARMLESS_EXTENSIONS = {"noop", "noop-v1", "preciousobjects", "relativeworktrees", "worktreeconfig"}
_SECTION = re.compile(r"\[\s*([A-Za-z0-9.-]+)\s*(?:\"((?:[^\"\\]|\\.)*)\")?\s*\]")
_VARIABLE = re.compile(r"([A-Za-z][A-Za-z0-9-]*)\s*(?:=\s*(.*))?")


def list_settings(text: str) -> list[tuple[str, str, str]]:
    """List the section, the name (both in lower case) and the value of the settings in a file, roughly.

    Values are not unquoted and includes are not followed: git does neither for what is asked here.
    """
    found: list[tuple[str, str, str]] = []
    section = ""
    for line in text.splitlines():
        line = line.strip()
        if head := _SECTION.match(line):
            section = head[1].lower() + (f".{head[2]}" if head[2] is not None else "")
            line = line[head.end() :].strip()
        if line and line[0] not in "#;" and (variable := _VARIABLE.match(line)):
            value = re.split(r"\s*[#;]", variable[2] or "", maxsplit=1)[0].strip().strip('"')
            found.append((section, variable[1].lower(), value))
    return found


def read_format(common: GitFolder) -> ObjectFormat:
    """Read the format of a repository's ids. Raises `RepositoryUnsupported` for a repository of an unknown kind."""
    try:
        text = (common.read_file("config", MAX_CONFIG_BYTES) or b"").decode(errors="replace")
    except UnsafeFile as error:
        raise RepositoryUnsupported(f"The settings of this repository cannot be read: {error}") from None
    return choose_format(text)


def choose_format(config: str) -> ObjectFormat:
    """Choose the format that the text of a `config` names. Raises `RepositoryUnsupported`."""
    chosen = "sha1"
    for section, name, value in list_settings(config):
        if (section, name) == ("core", "repositoryformatversion") and value not in ("0", "1"):
            raise RepositoryUnsupported(f"This repository has format version {value[:20]}, which is not known.")
        if section != "extensions":
            continue
        if name == "objectformat" and value.lower() in _FORMATS:
            chosen = value.lower()
        elif name not in _HARMLESS_EXTENSIONS and (name, value.lower()) != ("refstorage", "files"):
            raise RepositoryUnsupported(
                f"This repository uses the extension {name} = {value[:40]}, with which commands cannot change it."
            )
    return _FORMATS[chosen]
