"""Which names of refs and paths are safe, and how a name is shown. Pure functions.

A tree or an index with an entry below `.git` would let a checkout write settings and hooks. git refuses such names
itself; this is a second check.
"""

from __future__ import annotations

import re

MAX_REF_BYTES = 240
_SHOWN_CHARACTERS = 120

_BAD_IN_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|\.$|/$")
_BAD_REF_PART = re.compile(r"^\.|\.lock$|^-|^$")
# Characters that HFS+ leaves out of a name, so that `.g<U+200C>it` is `.git` there.
_IGNORED_BY_HFS = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_GIT_ON_NTFS = re.compile(r"\.git|git~[0-9]+")
_ACTIVE_IN_SHELLS = re.compile(r"[$`;&|<>()'\"]")
_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def is_ref_name(name: str) -> bool:
    """Whether git allows this full name of a ref (`refs/heads/main`), and it is no trap for who types it."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:  # bytes that are not UTF-8
        return False
    if size > MAX_REF_BYTES or _BAD_IN_REF.search(name) or not name.startswith("refs/"):
        return False
    parts = name.split("/")
    if len(parts) < 3 and name != "refs/stash":
        return False
    return not any(map(_BAD_REF_PART.search, parts)) and parts[-1] != "@" and name != "refs/heads/HEAD"


def is_plain_name(name: str) -> bool:
    """Whether a new ref can have this name: a shell prompt may run parts of it, and a terminal obey or hide them."""
    return not _INVISIBLE.search(name) and not _ACTIVE_IN_SHELLS.search(name)


def is_branch(name: str) -> bool:
    """Whether this is a valid full name of a branch."""
    return name.startswith("refs/heads/") and is_ref_name(name)


def is_dangerous_name(name: bytes) -> bool:
    """Whether a name in a tree could leave its folder, or is `.git` on some file system."""
    if name in (b"", b".", b"..") or b"/" in name or b"\0" in name:
        return True
    if name.isascii() and b"git" not in name.lower():
        return False
    text = _IGNORED_BY_HFS.sub("", name.decode(errors="surrogateescape")).lower()
    return any(_GIT_ON_NTFS.fullmatch(part.split(":")[0].rstrip(" .")) for part in text.split("\\"))


def is_dangerous_path(path: bytes) -> bool:
    """Whether a path in an index could leave the work tree, or leads into `.git` on some file system."""
    return any(map(is_dangerous_name, path.split(b"/")))


def show_name(name: str | bytes) -> str:
    """Show a name in a sentence: control and invisible characters made visible, and not too long."""
    text = name.decode(errors="replace") if isinstance(name, bytes) else name
    text = _INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
