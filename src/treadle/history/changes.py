"""How files and git refs differ between a position of a session and now, as `changes` and `rewind` return it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

ChangeKind: TypeAlias = Literal["added", "modified", "deleted", "committed", "moved", "staged"]
"""The first three are about files, the others about git.

`committed`: calls added commits to a branch. `moved`: a branch, a tag, the stash or HEAD is elsewhere. `staged`: the
index differs.
"""

CHANGED_BY_OTHERS = "somebody else changed it after the last call did, so it stays unless you force it"


class RewindChange(Struct, frozen=True):
    """How a file or a git ref differs, and the ids of the calls that changed it.

    `diff` is a unified diff of a file. `path` is `.git/refs/heads/NAME` for a branch, in the folder of its repository.
    Its `diff` names where it was and is, and lists the commits that calls added, each as `ID SUBJECT`. `others` is True
    when it is not what the last of these calls left: somebody else changed it since.
    """

    path: str
    kind: ChangeKind
    diff: str
    calls: tuple[str, ...] = ()
    others: bool = False


class SkippedFile(Struct, frozen=True):
    """A file or git ref that a rewind does not change, and why."""

    path: str
    why: str
