"""The rule against data leaks: untrusted text, private data and a way out must not meet unseen. Pure.

The author of untrusted text may have chosen the data that is sent. So a person looks before private data leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Literal, cast

from treadle.events import Safety
from treadle.messages import Json

Trait = Literal["untrusted", "private", "way_out"]
"""What the calls of a tool bring in or can do: text from strangers, private data, sending data out."""

SEEN_NOTE = "treadle.seen."
"""How the name of a note begins that lists the tools another session used before it sent its result to this one."""

UNKNOWN_TOOL_TRAITS: frozenset[Trait] = frozenset(("untrusted", "private"))
"""The traits of a tool that no longer exists: nobody can be asked what it brought in."""


def list_tools_seen(used: AbstractSet[str], notes: Mapping[str, Json]) -> set[str]:
    """List the tools whose results a session may know: its own, and those of sessions that sent it their results."""
    from_others = (cast("list[str]", data) for name, data in notes.items() if name.startswith(SEEN_NOTE))
    return set(used).union(*from_others)


def explain_leak_risk(own: AbstractSet[Trait], safety: Safety, seen: Iterable[AbstractSet[Trait]]) -> str:
    """Say why a person must allow a call that could send data out. Return nothing when there is no risk.

    `own` are the traits of the call's tool and `seen` those of the tools that were used before.
    """
    if "way_out" not in own or safety == "safe":
        return ""
    before = frozenset[Trait]().union(*seen)
    if "untrusted" in before and "private" in before | own:
        return "it could carry private data out, and text from outside may have asked for it"
    return ""
