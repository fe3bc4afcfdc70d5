"""What a session runs with: model, tools, grants, gate, middleware, clock. Live objects, never stored."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field

from treadle.engine.context import Attachments
from treadle.engine.state import State
from treadle.errors import BadInput
from treadle.events import (
    AgentConfig,
    ApprovalRequested,
    Decision,
    Grant,
    InputRequested,
    Limits,
    Safety,
    Scope,
)
from treadle.messages import Json, Part, Reply, Request, ToolSpec
from treadle.models.base import Model
from treadle.permissions.policy import Verdict
from treadle.secrets.redact import Redactor
from treadle.tools.base import HelperRunner, Recovery, Tool

BACKOFF_BASE = 0.5
BACKOFF_CAP = 30.0
RETRY_AFTER_CAP = 60.0
TOOL_ATTEMPTS = 3

Value = TypeVar("Value")

_logger = logging.getLogger("treadle")


class Answer(Struct, frozen=True):
    """What a person says to a question: a decision on an approval, or `answers` to `ask_user`."""

    decision: Decision = "allow"
    scope: Scope = "call"
    comment: str = ""
    answers: tuple[str, ...] = ()
    by: str = "user"


Gate = Callable[[ApprovalRequested | InputRequested], Awaitable[Answer | None]]
"""A way to bring a question to a person. None leaves the question in the log, for anyone to answer later."""


async def later(question: ApprovalRequested | InputRequested) -> None:
    """The gate that asks nobody here: the question waits in the log until any surface answers it."""


class Middleware:
    """Rewrites what passes, or says no. Override what you need; each method gets and returns the thing itself."""

    async def on_user_message(self, session_id: str, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """Before a message is stored."""
        return parts

    async def on_pre_llm(self, request: Request) -> Request:
        """Before a model call; a rewritten request is not stored."""
        return request

    async def on_post_llm(self, reply: Reply) -> Reply:
        """Before a reply is stored."""
        return reply

    async def may_run(self, tool: str, safety: Safety, arguments: Mapping[str, Json]) -> Verdict | None:
        """Whether a call may run; it can make the policy's verdict stricter, never laxer."""
        return None


def check_returned_type(value: Value, kind: type, by: Middleware, point: str) -> Value:
    """What middleware returned, if it is that: to forget the `return` is the easiest of mistakes."""
    if not isinstance(value, kind):
        what = type(value).__name__
        raise BadInput(
            f"{type(by).__name__}.{point} returned a {what}; it must return a {kind.__name__}, changed or not"
        )
    return value


class Clock:
    """The time, and waiting for it. Tests put a stepping one in its place."""

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


RecoveryStrategy = Callable[[str, str, int], Recovery]
"""(tool, error, attempt) -> what to do about a failed call."""


class Setup(Struct, frozen=True):
    """Everything one session's loop needs beside its log."""

    model: Model
    tools: Mapping[str, Tool]
    config: AgentConfig
    limits: Limits
    grants: tuple[Grant, ...]
    workspace: Path
    gate: Gate | None = None
    middleware: tuple[Middleware, ...] = ()
    on_error: Recovery | RecoveryStrategy = "tell"
    approval_ttl: float | None = None
    check_output: Callable[[str], str] | None = None
    clock: Clock = Clock()
    specs: tuple[ToolSpec, ...] = ()
    polling: frozenset[str] = frozenset()
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    redactor: Redactor = field(default_factory=lambda: Redactor(()))
    attachments: Attachments | None = None
    helpers: HelperRunner | None = None

    def choose_recovery(self, tool: Tool, error: str, attempt: int) -> Recovery:
        """What to do about a call that failed; running it again is tried twice at most."""
        chosen = tool.on_error or self.on_error
        try:
            what = chosen(tool.name, error, attempt) if callable(chosen) else chosen
        except Exception:
            _logger.exception("on_error failed, so the run stops after the failed call of %s", tool.name)
            return "stop"
        return "tell" if what == "retry" and attempt >= TOOL_ATTEMPTS else what


SetupBuilder = Callable[[State], Awaitable[Setup]]
"""Says what a session in some state runs with."""


def compute_backoff(attempt: int, retry_after: float | None) -> float | None:
    """Seconds before the next attempt, with jitter; None when the provider asks for longer than is sensible."""
    import random

    if retry_after is not None:
        return retry_after if retry_after <= RETRY_AFTER_CAP else None
    return min(BACKOFF_CAP, BACKOFF_BASE * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)
