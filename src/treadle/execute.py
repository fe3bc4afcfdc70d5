"""Running one tool call: time-out, errors and output turned into a result. Decides nothing about what may run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from msgspec import Struct

from treadle.errors import BadInput, NotFound
from treadle.events import (
    CallFinished,
    CallStatus,
    Custom,
    FilesKept,
    KeptFile,
    OutputDelta,
    Progress,
    Truncation,
    checked,
)
from treadle.judge import Ready
from treadle.log.base import Artifact, Log
from treadle.messages import NO_USAGE, Json, Part, TextPart, Usage
from treadle.observation import clean, shorten, text_of_result
from treadle.policy import tier_of
from treadle.redact import RedactedStream, Redactor
from treadle.setup import Setup
from treadle.tools.base import Desk, ToolContext, ToolError, ToolResult

GRACE = 1.0
SMALLEST_CAP = 512
"""The cap in bytes is at most half the tokens of the window, so that one result fills no more than an eighth of it."""


class Outcome(Struct):
    """How a call went."""

    status: CallStatus
    text: str
    parts: tuple[Part, ...] = ()
    duration: float = 0.0
    usage: Usage = NO_USAGE


STOPPED = Outcome("cancelled", "Stopped while it ran: it may have had effects. Check before you repeat it.")


async def execute(ready: Ready, context: ToolContext, redactor: Redactor) -> Outcome:
    """Run a call to its end, whatever that is; only cancelling it raises. Known secrets are taken out of the result."""
    began = time.perf_counter()
    limit = asyncio.timeout(ready.tool.timeout)
    try:
        async with limit:
            running = ready.tool.run(ready.parsed, context)
            value = await (running if ready.tool.lets_go else _leaving_behind(running))
        text, parts, ok = text_of_result(value)
        outcome = Outcome("ok" if ok else "error", text, parts)
        if isinstance(value, ToolResult):
            outcome.usage = value.usage
            outcome.status = "timed_out" if value.timed_out else outcome.status
    except asyncio.CancelledError:
        context.cancelled = True
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        outcome = Outcome("error", "The tool cancelled itself.")
    except TimeoutError as error:
        if limit.expired():
            context.cancelled = True
            text = f"Timed out after {ready.tool.timeout:g} s. It may have had effects: check before you repeat it."
            outcome = Outcome("timed_out", text)
        else:
            outcome = Outcome("error", _told(error))
    except (ToolError, BadInput) as error:
        outcome = Outcome("error", clean(str(error)))
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        outcome = Outcome("error", _told(error))
    outcome.duration = time.perf_counter() - began
    outcome.text = redactor.text(outcome.text)
    if outcome.parts:
        outcome.parts = tuple(
            TextPart(redactor.text(part.text)) if isinstance(part, TextPart) else part for part in outcome.parts
        )
    return outcome


async def _leaving_behind(running: Coroutine[Any, Any, object]) -> object:
    """Await a tool; when cancelled, one that does not stop within a second is left behind."""
    task = asyncio.ensure_future(_contained(running))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait((task,), timeout=GRACE)
        raise


async def _contained(running: Coroutine[Any, Any, object]) -> object:
    try:
        return await running
    except SystemExit as error:  # would end the event loop, and every other session with it
        raise ToolError(_told(error)) from None


def _told(error: BaseException) -> str:
    return clean(f"{type(error).__name__}: {error}")


async def finished(
    log: Log, session_id: str, ready: Ready, outcome: Outcome, window: int | None = None
) -> CallFinished:
    """The fact of a call's end; output over the cap is kept whole as an artifact and shown head and tail."""
    text, truncation = outcome.text, None
    cap = min(ready.tool.cap, max(window // 2, SMALLEST_CAP)) if window else ready.tool.cap
    head, tail, dropped = shorten(text, cap)
    if dropped:
        artifact = await log.put_artifact(session_id, text.encode())
        truncation = Truncation(len(head) + len(tail), dropped, artifact)
        text = f"{head}\n[… {dropped} characters left out; the whole is artifact {artifact} …]\n{tail}"
    return CallFinished(
        call_id=ready.call.call.id,
        tool=ready.tool.name,
        status=outcome.status,
        output=text,
        parts=outcome.parts,
        truncation=truncation,
        duration=round(outcome.duration, 6),
        usage=outcome.usage,
    )


async def output_of(log: Log, session_id: str, artifact_id: str) -> Artifact:
    """An artifact, or under a call's id its result: a result that is only pruned from the context has no copy."""
    try:
        return await log.get_artifact(session_id, artifact_id)
    except NotFound:
        for fact in await log.read(session_id):
            if isinstance(fact, CallFinished) and fact.call_id == artifact_id:
                return Artifact(artifact_id, "text/plain", fact.output.encode())
        raise


class LogDesk(Desk):
    """A call's own corner of its session's log."""

    def __init__(self, log: Log, session_id: str, call_id: str, redactor: Redactor) -> None:
        self._log, self._session_id, self._call_id, self._redactor = log, session_id, call_id, redactor

    async def note(self, name: str, data: Json) -> None:
        fact = checked(Custom(name=name, data=self._redactor.value(data)))
        await self._log.post(self._session_id, [fact], wake=False)

    async def keep(self, files: Sequence[KeptFile], *, tree: str = "", left_out: Sequence[str] = ()) -> None:
        fact = FilesKept(call_id=self._call_id, files=tuple(files), tree=tree, left_out=tuple(left_out))
        await self._log.post(self._session_id, [checked(fact)], wake=False)

    async def read_artifact(self, artifact_id: str) -> bytes:
        return (await output_of(self._log, self._session_id, artifact_id)).data


def context_of(setup: Setup, log: Log, session_id: str, ready: Ready, notes: Mapping[str, Json]) -> ToolContext:
    """What the tool is given; its live output goes to whoever watches."""
    loop, call_id, after = asyncio.get_running_loop(), ready.call.call.id, log.head(session_id)
    context = ToolContext(session_id, call_id, setup.workspace, ready.attempt)
    context.tier, context.notes = tier_of(setup.grants), notes
    context.desk = LogDesk(log, session_id, call_id, setup.redactor)
    context.desk.memories, context.desk.helpers = log.memories, setup.helpers

    live: RedactedStream | None = None

    def progress(message: str, done: float | None = None, total: float | None = None) -> None:
        told = setup.redactor.text(message)
        delta = Progress(message=told, call_id=call_id, done=done, total=total, after=after)
        loop.call_soon_threadsafe(log.publish, session_id, delta)

    def output(text: str) -> None:
        nonlocal live
        live = live or setup.redactor.stream()
        if told := live.feed(text):
            loop.call_soon_threadsafe(log.publish, session_id, OutputDelta(call_id=call_id, text=told, after=after))

    context.progress, context.output = progress, output
    return context
