"""Reads the refs of a repository: loose files and `packed-refs`, merged as git sees them. It writes nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from msgspec import Struct, field

from treadle.git.git_folder import GitFolder, UnsafeFile
from treadle.git.object_format import ObjectFormat

STASH = "refs/stash"
MAX_REFS = 100_000
MAX_PACKED_BYTES = 64 << 20
_MAX_REF_FILE = 4096
_OWN_REFS = ("refs/bisect/", "refs/worktree/", "refs/rewritten/")
_SYMBOLIC = re.compile(r"ref:\s*(\S+)\s*")


class RefList(Struct):
    """The refs of a repository by name. A value is an id, or `ref: NAME` for a symbolic one.

    `odd` names what stands in the place of a ref and is none: a link, a pipe, a damaged file.
    """

    values: dict[str, str] = field(default_factory=dict[str, str])
    odd: list[str] = field(default_factory=list[str])


def is_own_ref(name: str) -> bool:
    """Whether each worktree has its own ref of that name."""
    return not name.startswith("refs/") or name.startswith(_OWN_REFS)


def parse_value(data: bytes, form: ObjectFormat) -> str:
    """Read the content of a loose ref or of HEAD: an id or `ref: NAME`; empty when it is neither."""
    text = os.fsdecode(data)
    if symbolic := _SYMBOLIC.fullmatch(text):
        return f"ref: {symbolic[1]}"
    value = text.strip()
    return value if form.is_id(value) else ""


def read_ref_file(folder: GitFolder, name: str, form: ObjectFormat) -> str:
    """Read one loose ref, or HEAD; empty when there is none or it is damaged. Raises `UnsafeFile`."""
    return parse_value(folder.read_file(name, _MAX_REF_FILE) or b"", form)


def read_loose_refs(folder: GitFolder, form: ObjectFormat, top: str = "refs") -> RefList:
    """Read all loose refs below a folder."""
    found = RefList()
    for path, entry in folder.walk_entries(top, MAX_REFS):
        if entry.name.endswith(".lock"):
            continue
        try:
            value = read_ref_file(folder, path, form) if entry.is_file(follow_symlinks=False) else ""
        except UnsafeFile:
            value = ""
        if value:
            found.values[path] = value
        else:
            found.odd.append(path)
    return found


def read_packed_refs(folder: GitFolder, form: ObjectFormat) -> dict[str, str]:
    """Read the refs in `packed-refs`. Raises `UnsafeFile`."""
    return parse_packed_refs(folder.read_file("packed-refs", MAX_PACKED_BYTES) or b"", form)


def parse_packed_refs(data: bytes, form: ObjectFormat) -> dict[str, str]:
    """Read the text of a `packed-refs`. Lines that are no refs are left out."""
    found: dict[str, str] = {}
    for line in os.fsdecode(data).split("\n"):
        value, _, name = line.partition(" ")
        if name.startswith("refs/") and form.is_id(value):
            found[name] = value
    return found


def render_packed_refs(values: Mapping[str, str]) -> bytes:
    """Write the text of a `packed-refs` with these refs. Symbolic ones have no place there and are left out."""
    names = sorted((name for name, value in values.items() if not value.startswith("ref:")), key=os.fsencode)
    lines = [f"{values[name]} {name}\n" for name in names]
    return os.fsencode("# pack-refs with: sorted \n" + "".join(lines)) if lines else b""


def remove_packed_ref(data: bytes, name: str) -> bytes:
    """Remove a ref, and the line about its target, from the text of a `packed-refs`. The rest stays as it is."""
    lines = data.split(b"\n")
    ending = b" " + os.fsencode(name)
    kept: list[bytes] = []
    is_removing = False
    for line in lines:
        is_removing = line.endswith(ending) if not line.startswith(b"^") else is_removing
        if not is_removing:
            kept.append(line)
    return b"\n".join(kept)
