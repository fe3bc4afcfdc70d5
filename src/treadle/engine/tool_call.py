"""Running one tool call: time-out, errors and output turned into a result. Decides nothing about what may run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from msgspec import Struct

from treadle.engine.authorize import ReadyCall
from treadle.engine.cancel_scope import CancelScope
from treadle.engine.observation import cut_output, remove_control_characters, render_result
from treadle.engine.setup import Setup
from treadle.errors import BadInput, NotFound, describe_error
from treadle.events import (
    AnyDelta,
    CallFinished,
    CallStarted,
    CallStatus,
    Custom,
    FilesKept,
    KeptFile,
    OutputDelta,
    Progress,
    Truncation,
    validate_fact,
)
from treadle.log.base import Artifact, Claim, Log
from treadle.messages import NO_USAGE, Json, Part, TextPart, Usage
from treadle.permissions.policy import find_narrowest_tier
from treadle.secrets.redact import RedactedStream, Redactor
from treadle.tools.base import ToolContext, ToolError, ToolResult, ToolServices

GRACE_SECONDS = 1.0
MIN_OUTPUT_CAP = 512
"""The cap in bytes is at most half the tokens of the window, so that one result fills no more than an eighth of it."""


class CallOutcome(Struct):
    """How a call went."""

    status: CallStatus
    text: str
    parts: tuple[Part, ...] = ()
    duration: float = 0.0
    usage: Usage = NO_USAGE


STOPPED_OUTCOME = CallOutcome("cancelled", "Stopped while it ran: it may have had effects. Check before you repeat it.")


async def run_tool(ready: ReadyCall, context: ToolContext, redactor: Redactor, limit: CancelScope) -> CallOutcome:
    """Run a call to its end, whatever that is; only cancelling it raises. Known secrets are taken out of the result."""
    began = time.perf_counter()
    try:
        with limit.limit_to(ready.tool.timeout):
            running = ready.tool.run(ready.parsed, context)
            value = await (running if ready.tool.ends_when_cancelled else _leaving_behind(running))
        text, parts, ok = render_result(value)
        outcome = CallOutcome("ok" if ok else "error", text, parts)
        if isinstance(value, ToolResult):
            outcome.usage = value.usage
            outcome.status = "timed_out" if value.timed_out else outcome.status
    except asyncio.CancelledError:
        context.cancelled = True
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        outcome = CallOutcome("error", "The tool cancelled itself.")
    except TimeoutError as error:
        if limit.was_stopped:
            context.cancelled = True
            text = f"Timed out after {ready.tool.timeout:g} s. It may have had effects: check before you repeat it."
            outcome = CallOutcome("timed_out", text)
        else:
            outcome = CallOutcome("error", _told(error))
    except (ToolError, BadInput) as error:
        outcome = CallOutcome("error", remove_control_characters(str(error)))
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        outcome = CallOutcome("error", _told(error))
    outcome.duration = time.perf_counter() - began
    outcome.text = redactor.redact_text(outcome.text)
    if outcome.parts:
        outcome.parts = tuple(
            TextPart(redactor.redact_text(part.text)) if isinstance(part, TextPart) else part for part in outcome.parts
        )
    return outcome


async def _leaving_behind(running: Coroutine[Any, Any, object]) -> object:
    """Await a tool; when cancelled, one that does not stop within a second is left behind."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[object] = loop.create_future()
    task = loop.create_task(_deliver(running, result))
    try:
        return await result
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait((task,), timeout=GRACE_SECONDS)
        raise


async def _deliver(running: Coroutine[Any, Any, object], result: asyncio.Future[object]) -> None:
    """Await a tool and hand over what it gives, in the same turn of the event loop, while anybody waits for it."""
    try:
        value = await running
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except asyncio.CancelledError:
        result.cancel()
    except BaseException as error:
        # SystemExit would end the event loop, and every other session with it.
        if not result.done():
            result.set_exception(ToolError(_told(error)) if isinstance(error, SystemExit) else error)
    else:
        if not result.done():
            result.set_result(value)


def _told(error: BaseException) -> str:
    return remove_control_characters(describe_error(error))


def build_start_fact(setup: Setup, claim: Claim, ready: ReadyCall, attempt: int) -> CallStarted:
    """The fact of a call's beginning, stored before it runs."""
    return CallStarted(
        call_id=ready.call.call.id,
        tool=ready.tool.name,
        arguments=ready.parsed.arguments,
        attempt=attempt,
        safety=ready.safety,
        sandbox=ready.tool.describe_sandbox(find_narrowest_tier(setup.grants)),
        why=ready.why,
        owner=claim.owner,
        epoch=claim.epoch,
        resumes=ready.tool.resumes,
    )


async def build_finish_fact(
    log: Log, session_id: str, ready: ReadyCall, outcome: CallOutcome, window: int | None = None
) -> CallFinished:
    """The fact of a call's end; output over the cap is kept whole as an artifact and shown head and tail."""
    text, truncation = outcome.text, None
    cap = min(ready.tool.cap, max(window // 2, MIN_OUTPUT_CAP)) if window else ready.tool.cap
    head, tail, dropped = cut_output(text, cap)
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
        duration=int(outcome.duration * 1e6) / 1e6,
        usage=outcome.usage,
    )


async def load_output(log: Log, session_id: str, artifact_id: str) -> Artifact:
    """An artifact, or under a call's id its result: a result that is only pruned from the context has no copy."""
    try:
        return await log.get_artifact(session_id, artifact_id)
    except NotFound:
        for fact in await log.read(session_id):
            if isinstance(fact, CallFinished) and fact.call_id == artifact_id:
                return Artifact(artifact_id, "text/plain", fact.output.encode())
        raise


class LogToolServices(ToolServices):
    """A call's own corner of its session's log; what it says while it runs goes to whoever watches."""

    def __init__(self, setup: Setup, log: Log, session_id: str, call_id: str) -> None:
        self.memories, self.helpers, self._redactor = log.memories, setup.helpers, setup.redactor
        self._log, self._session_id, self._call_id = log, session_id, call_id
        self._loop, self._after = asyncio.get_running_loop(), log.head(session_id)
        self._live: RedactedStream | None = None

    def progress(self, message: str, done: float | None = None, total: float | None = None) -> None:
        told = self._redactor.redact_text(message)
        self._show(Progress(message=told, call_id=self._call_id, done=done, total=total, after=self._after))

    def output(self, text: str) -> None:
        self._live = self._live or self._redactor.start_stream()
        if told := self._live.feed(text):
            self._show(OutputDelta(call_id=self._call_id, text=told, after=self._after))

    def _show(self, delta: AnyDelta) -> None:
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:  # at once: what is said last would else be heard after the call has ended
            self._log.publish(self._session_id, delta)
        else:
            self._loop.call_soon_threadsafe(self._log.publish, self._session_id, delta)

    async def save_note(self, name: str, data: Json) -> None:
        fact = validate_fact(Custom(name=name, data=self._redactor.redact_value(data)))
        await self._log.post(self._session_id, [fact], wake=False)

    async def record_kept_files(
        self, files: Sequence[KeptFile], *, tree: str = "", left_out: Sequence[str] = ()
    ) -> None:
        fact = FilesKept(call_id=self._call_id, files=tuple(files), tree=tree, left_out=tuple(left_out))
        await self._log.post(self._session_id, [validate_fact(fact)], wake=False)

    async def read_artifact(self, artifact_id: str) -> bytes:
        return (await load_output(self._log, self._session_id, artifact_id)).data


def build_tool_context(
    setup: Setup, log: Log, session_id: str, ready: ReadyCall, notes: Mapping[str, Json]
) -> ToolContext:
    """What the tool is given."""
    call_id = ready.call.call.id
    desk = LogToolServices(setup, log, session_id, call_id)
    return ToolContext(
        session_id,
        call_id,
        setup.workspace,
        ready.attempt,
        desk.progress,
        desk.output,
        tier=find_narrowest_tier(setup.grants),
        notes=notes,
        services=desk,
    )
