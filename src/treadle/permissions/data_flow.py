"""The flow of data: what a session has seen, and which calls could send it out or let it last. Pure.

Others may have written what a model read, and their text may have chosen what a call sends. So a person looks before
private data leaves, and before a change outlasts the session. Labels say where text comes from, never what it says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Literal, NamedTuple

Trait = Literal["untrusted", "workspace", "private", "way_out", "registries", "network", "host", "lasting"]
"""What a source or a call brings in, and what a call can do.

The first three are labels of data. `untrusted`: strangers wrote it. `workspace`: whoever could write into the workspace
wrote it, so it is untrusted too. `private`: it belongs to the user. Data without a label is trusted.

The others are effects. `way_out`: it can send data out. `registries`: only to package registries. `network`: it is
known to do so. `host`: it runs code of the workspace outside of the sandbox. `lasting`: its change outlasts the session
and may steer or reach others.
"""

EFFECTS: frozenset[Trait] = frozenset(("way_out", "lasting"))
"""A call without any of these needs no check."""

SEEN_NOTE = "treadle.seen."
"""How the name of a note begins with which older versions listed the sources of a helper and of its parent."""

UNKNOWN_TOOL_TRAITS: frozenset[Trait] = frozenset(("untrusted", "private"))
"""The traits of a tool that no longer exists: nobody can be asked what it brought in."""

MESSAGE, ATTACHMENT, ANSWER, HISTORY = "text:message", "text:attachment", "text:answer", "text:history"
INSTRUCTIONS, SKILL = "text:instructions", "text:skill"
MEMORY, UNTRUSTED_MEMORY, HOOK = "text:memory", "text:untrusted_memory", "text:hook"


class Source(NamedTuple):
    """A source of text that is no tool: how it is called, and the labels of its text."""

    words: str
    labels: frozenset[Trait]


SOURCES: dict[str, Source] = {
    MESSAGE: Source("the user's message", frozenset(("private",))),
    ATTACHMENT: Source("a file that the user attached", frozenset(("workspace", "private"))),
    ANSWER: Source("an answer of the user", frozenset(("private",))),
    HISTORY: Source("a conversation from elsewhere", frozenset(("untrusted", "private"))),
    INSTRUCTIONS: Source("AGENTS.md and agents of the workspace", frozenset(("workspace",))),
    SKILL: Source("a skill of the workspace", frozenset(("workspace",))),
    MEMORY: Source("a memory", frozenset(("private",))),
    HOOK: Source("a note of a hook", frozenset(("workspace", "private"))),
    UNTRUSTED_MEMORY: Source("a memory that others may have caused", frozenset(("untrusted", "private"))),
}
"""The sources that are no tools, by name. The colon keeps their names apart from names of tools."""

_MAX_NAMED = 3
_BETWEEN_WORDS = re.compile(r"[\s<>()\[\]{}\"'`|]+")


def explain_flow_risk(tool: str, own: AbstractSet[Trait], seen: Mapping[str, AbstractSet[Trait]]) -> str:
    """Say why a person must allow a call that has an effect. Return nothing when there is no risk.

    `own` are the traits of the call. `seen` are the sources that the session knew, with their labels.
    """
    # With full access the workspace's code runs on the host anyway, so its text adds no risk to a local command. A
    # registry takes no more than names of packages from whoever has no account there, so it is treated alike.
    is_local = bool(own & {"host", "registries"}) and not own & {"network", "lasting"}
    suspect: set[Trait] = {"untrusted"} if is_local else {"untrusted", "workspace"}
    others = [name for name, labels in seen.items() if labels & suspect]
    private = find_private(own, seen)
    if not others or not private:
        return ""
    what = f"{tool} can send data out" if "lasting" not in own else f"what {tool} changes outlasts this session"
    return (
        f"{what}; private data is in reach ({_name_sources(private)}), "
        f"and text that others wrote may have asked for it ({_name_sources(others)})"
    )


def find_private(own: AbstractSet[Trait], seen: Mapping[str, AbstractSet[Trait]]) -> list[str]:
    """Find the sources of private data that a call could send: what was seen, and what the call reads itself."""
    names = [name for name, labels in seen.items() if "private" in labels]
    return [*names, ""] if "private" in own else names


def names_address(texts: Iterable[str], address: str) -> bool:
    """Whether an address stands in one of the texts as a word of its own, with or without its scheme."""
    wanted = _strip_address(address)
    return any(wanted in text and wanted in map(_strip_address, _BETWEEN_WORDS.split(text)) for text in texts)


def _strip_address(word: str) -> str:
    return word.rstrip(".,;:!?").removeprefix("https://").removeprefix("http://").rstrip("/")


def _name_sources(names: list[str]) -> str:
    words = [SOURCES[name].words if name in SOURCES else f"results of {name}" if name else "its own" for name in names]
    more = f" and {len(words) - _MAX_NAMED} more" if len(words) > _MAX_NAMED else ""
    return ", ".join(words[:_MAX_NAMED]) + more
