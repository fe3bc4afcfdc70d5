"""What a commit, a tree or a tag refers to. An object that git could read in two ways is refused."""

from __future__ import annotations

import re
import stat

from msgspec import Struct

from treadle.git.names import is_dangerous_name, show_name
from treadle.git.object_format import GITLINK, KINDS, ObjectFormat
from treadle.git.pack_file import DamagedObject, GitObject

_FILE_KINDS = {stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR}
_MODE = re.compile(rb"0?[1-7][0-7]{4,5}")

Link = tuple[str, str]
"""The id that an object refers to, and the kind that this object must have. The commit of a submodule has no kind."""


class Commit(Struct, frozen=True):
    """What is read of a commit. `time` is that of the committer."""

    tree: str
    parents: tuple[str, ...]
    time: int
    subject: str


def list_links(found: GitObject, form: ObjectFormat) -> list[Link]:
    """List what an object refers to. Raises `DamagedObject`."""
    match found.kind:
        case "tree":
            return parse_tree(found.data, form)
        case "commit":
            commit = parse_commit(found.data, form)
            return [(commit.tree, "tree"), *((parent, "commit") for parent in commit.parents)]
        case "tag":
            return [parse_tag(found.data, form)]
        case _:
            return []


def parse_commit(data: bytes, form: ObjectFormat) -> Commit:
    """Read a commit. Raises `DamagedObject`."""
    head, _, message = data.partition(b"\n\n")
    lines = head.split(b"\n")
    tree = _read_id(lines[0], b"tree", form)
    parents: list[str] = []
    for line in lines[1:]:
        if not line.startswith(b"parent "):
            break
        parents.append(_read_id(line, b"parent", form))
    rest = lines[1 + len(parents) :]
    if b"\0" in head or len(rest) < 2 or not (rest[0].startswith(b"author ") and rest[1].startswith(b"committer ")):
        raise DamagedObject("a commit has no proper head")
    time = re.search(rb"> (\d{1,18}) [+-]\d+$", rest[1])
    subject = message.lstrip(b"\n").partition(b"\n")[0].decode(errors="replace").strip()
    return Commit(tree, tuple(parents), int(time[1]) if time else 0, subject)


def parse_tag(data: bytes, form: ObjectFormat) -> Link:
    """Read what a tag object leads to. Raises `DamagedObject`."""
    lines = data.partition(b"\n\n")[0].split(b"\n")
    if len(lines) < 3 or b"\0" in data or not lines[2].startswith(b"tag "):
        raise DamagedObject("a tag has no proper head")
    kind = lines[1].removeprefix(b"type ").decode(errors="replace")
    if kind not in KINDS:
        raise DamagedObject("a tag has no proper head")
    return _read_id(lines[0], b"object", form), kind


def _read_id(line: bytes, key: bytes, form: ObjectFormat) -> str:
    name, _, value = line.partition(b" ")
    text = value.decode(errors="replace")
    if name != key or not form.is_id(text):
        raise DamagedObject(f"a {key.decode()} line is not proper")
    return text


def parse_tree(data: bytes, form: ObjectFormat) -> list[Link]:
    """Read what a tree refers to. Raises `DamagedObject`."""
    found: list[Link] = []
    position, last = 0, b""
    while position < len(data):
        space, end = data.find(b" ", position, position + 8), data.find(b"\0", position)
        start = end + 1
        if space < 0 or end < space or start + form.size > len(data):
            raise DamagedObject("a tree is damaged")
        mode_text, name = data[position:space], data[space + 1 : end]
        mode = int(mode_text, 8) if _MODE.fullmatch(mode_text) else 0
        if mode != GITLINK and stat.S_IFMT(mode) not in _FILE_KINDS:
            raise DamagedObject(f"a tree has an entry of unknown kind: {show_name(name)}")
        if is_dangerous_name(name) or (stat.S_ISLNK(mode) and name.lower() == b".gitmodules"):
            raise DamagedObject(f"a tree has a forbidden name: {show_name(name)}")
        # git sorts a folder as if its name ended in a slash; the same name twice would hide one of both.
        key = name + (b"/" if stat.S_ISDIR(mode) else b"\0")
        if key <= last or name == last[:-1]:
            raise DamagedObject("the names of a tree are not in order")
        last = key
        kind = "" if mode == GITLINK else "tree" if stat.S_ISDIR(mode) else "blob"
        found.append((data[start : start + form.size].hex(), kind))
        position = start + form.size
    return found
