"""What hooks are told and what they say. Values, and how several results become one."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle import events
from treadle.messages import Json
from treadle.permissions.policy import Verdict, choose_strictest

HOOK_NOTE = "treadle.hook"
"""The name of the custom fact that records the result of hooks. It is a `HookRecord`."""

HookPoint = Literal["before_tool", "after_tool", "prompt", "run_end"]

_STRICTNESS = {"": 0, "continue": 1, "ask": 2, "deny": 3}


class HookSession(Struct, frozen=True):
    """The session of a hook. `parent` is the session that this one helps, or was forked from."""

    id: str
    workspace: str
    parent: str = ""


class HookCall(Struct, frozen=True):
    """A call as hooks see it: with the tool and the arguments that run."""

    session: HookSession
    call_id: str
    tool: str
    safety: events.Safety
    arguments: dict[str, Json]


class HookResult(Struct, frozen=True, omit_defaults=True):
    """What hooks said.

    `decision`: before a tool `ask` or `deny`, on a message `deny`, at the end of a run `continue`. `note` is text for
    the model. `failures` describe the hooks that failed.
    """

    decision: Literal["", "continue", "ask", "deny"] = ""
    reason: str = ""
    note: str = ""
    failures: tuple[str, ...] = ()

    def merge(self, later: HookResult) -> HookResult:
        """Add the result of a later hook. The stricter decision counts."""
        is_stricter = _STRICTNESS[later.decision] > _STRICTNESS[self.decision]
        chosen = later if is_stricter else self
        return HookResult(
            decision=chosen.decision,
            reason=chosen.reason,
            note="\n\n".join(filter(None, (self.note, later.note))),
            failures=(*self.failures, *later.failures),
        )

    def tighten(self, verdict: Verdict) -> Verdict:
        """Return the stricter of a verdict and this result."""
        reason = self.reason or "a hook of the user says so"
        if self.decision == "deny":
            return choose_strictest(verdict, Verdict("deny", reason))
        if self.decision != "ask" or verdict.action == "deny":
            return verdict
        # No rule answers a hook: it asks about this very call.
        why = reason if verdict.action == "allow" else f"{verdict.why}; {reason}"
        return replace(verdict, action="ask", why=why, is_once_only=True)


class HookRecord(Struct, frozen=True, omit_defaults=True):
    """The result of hooks, for the log: of a call, or of a run at the end of a turn."""

    point: HookPoint
    result: HookResult = HookResult()
    call_id: str = ""
    run_id: str = ""
    turn: int = 0


def read_hook_record(data: Json) -> HookRecord | None:
    """Read the record of hooks from the data of a custom fact. Return None if it has none."""
    try:
        return msgspec.convert(data, HookRecord)
    except msgspec.ValidationError:
        return None
