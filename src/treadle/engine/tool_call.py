"""Run one tool call: apply its time-out, catch its errors, and turn its output into a fact.

It decides nothing about what may run: `authorize` does. A model reads output without control characters, cut to a cap.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from treadle import events
from treadle.engine.authorize import ReadyCall
from treadle.engine.cancel_scope import CancelScope
from treadle.engine.permission_request import CallEnvironment, PermissionRequests
from treadle.engine.setup import Lease, Setup
from treadle.errors import BadInput, NotFound, describe_error
from treadle.log.base import Artifact, Claim, Log
from treadle.messages import NO_USAGE, Call, Json, Part, TextPart, Usage, replace_surrogates
from treadle.permissions.policy import find_narrowest_tier
from treadle.secrets.redact import RedactedStream, Redactor
from treadle.tools.base import DEFAULT_CAP, PermissionAnswer, ToolContext, ToolError, ToolResult, ToolServices

GRACE_SECONDS = 1.0
MIN_OUTPUT_CAP = 512
"""The cap in bytes is at most half of the window's tokens, so one result fills at most an eighth of the window."""

# An escape sequence without an end stops at the end of its line, so it cannot remove the text after it.
_ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]")
_CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_VISIBLE_CONTROLS = {
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"},
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
    0x7F: 0x2421,
}


class CallOutcome(Struct):
    """The status and the output of a call that ended."""

    status: events.CallStatus
    text: str
    parts: tuple[Part, ...] = ()
    duration: float = 0.0
    usage: Usage = NO_USAGE
    sources: tuple[str, ...] = ()


STOPPED_OUTCOME = CallOutcome("cancelled", "Stopped while it ran. It may have had effects: check before you repeat it.")


async def run_tool(ready: ReadyCall, context: ToolContext, redactor: Redactor, limit: CancelScope) -> CallOutcome:
    """Run a call to its end and remove known secrets from its result. Only cancelling the call raises."""
    began = time.perf_counter()
    try:
        with limit.limit_to(ready.tool.timeout):
            running = ready.tool.run(ready.parsed, context)
            value = await (running if ready.tool.ends_when_cancelled else _await_or_abandon(running))
        text, parts, ok = render_result(value)
        outcome = CallOutcome("ok" if ok else "error", text, parts)
        if isinstance(value, ToolResult):
            outcome.usage, outcome.sources = value.usage, value.sources
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
            outcome = CallOutcome("error", _render_error(error))
    except (ToolError, BadInput) as error:
        outcome = CallOutcome("error", remove_control_characters(str(error)))
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        outcome = CallOutcome("error", _render_error(error))
    outcome.duration = time.perf_counter() - began
    outcome.text = redactor.redact_text(outcome.text)
    if outcome.parts:
        outcome.parts = _redact_parts(redactor, outcome.parts)
    return outcome


async def _await_or_abandon(running: Coroutine[Any, Any, object]) -> object:
    """Await a tool. A cancelled tool that does not stop within the grace period is abandoned."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[object] = loop.create_future()

    async def deliver() -> None:
        # The result is set in the same iteration of the event loop in which the tool ends.
        try:
            value = await running
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except asyncio.CancelledError:
            result.cancel()
        except BaseException as error:
            # SystemExit would end the event loop, and every other session with it.
            if not result.done():
                result.set_exception(ToolError(_render_error(error)) if isinstance(error, SystemExit) else error)
        else:
            if not result.done():
                result.set_result(value)

    task = loop.create_task(deliver())
    try:
        return await result
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait((task,), timeout=GRACE_SECONDS)
        raise


def _render_error(error: BaseException) -> str:
    return remove_control_characters(describe_error(error))


def render_result(value: object) -> tuple[str, tuple[Part, ...], bool]:
    """Return a tool's result as text, parts and whether it succeeded. Raises `BadInput` if it is not JSON."""
    if isinstance(value, ToolResult):
        try:
            parts = msgspec.json.decode(msgspec.json.encode(value.parts), type=tuple[Part, ...]) if value.parts else ()
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            raise BadInput(
                f"the tool returned parts that are not text, images or files ({error}). It may have run."
            ) from None
        return remove_control_characters(value.text), parts, value.ok
    if value is None:
        return "", (), True
    if isinstance(value, str):
        return remove_control_characters(value), (), True
    try:
        return remove_control_characters(msgspec.json.encode(value, enc_hook=_convert_to_json).decode()), (), True
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadInput(
            f"the tool returned a {type(value).__name__}, which is not JSON ({error}). It may have run. "
            "Its author should return text, numbers, lists, dicts or a pydantic model."
        ) from None


def _convert_to_json(value: object) -> object:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    if hasattr(value, "__fspath__"):
        return str(value)
    raise TypeError(f"{type(value).__name__} inside")


def remove_control_characters(text: str) -> str:
    """Remove terminal escape sequences and make other control characters visible."""
    if "\r\n" in text:
        text = text.replace("\r\n", "\n")
    if _CONTROL_CHARACTER.search(text):
        text = _ESCAPE_SEQUENCE.sub("", text).translate(_VISIBLE_CONTROLS)
    return replace_surrogates(text)


def cut_output(text: str, cap: int) -> tuple[str, str, int]:
    """Return head, tail and the number of dropped characters. Head and tail have at most `cap` bytes together."""
    data = text.encode()
    if len(data) <= cap:
        return text, "", 0
    head = data[: cap * 2 // 3].decode("utf-8", "ignore")
    tail = data[len(data) - cap // 3 :].decode("utf-8", "ignore")
    return head, tail, len(text) - len(head) - len(tail)


def build_start_fact(setup: Setup, claim: Claim, ready: ReadyCall, attempt: int) -> events.CallStarted:
    """Build the fact that a call starts. It is stored before the call runs."""
    return events.CallStarted(
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
        access=find_narrowest_tier(setup.grants),
    )


async def build_finish_fact(
    lease: Lease, ready: ReadyCall, outcome: CallOutcome, window: int | None = None
) -> events.CallFinished:
    """Build the fact that a call ended.

    Output over the cap is stored whole as an artifact, and the fact has its head and tail.
    """
    text, truncation = await _keep_output(lease.put_artifact, outcome.text, ready.tool.cap, window)
    return events.CallFinished(
        call_id=ready.call.call.id,
        tool=ready.tool.name,
        status=outcome.status,
        output=text,
        parts=outcome.parts,
        truncation=truncation,
        duration=int(outcome.duration * 1e6) / 1e6,
        usage=outcome.usage,
        sources=outcome.sources,
    )


async def _keep_output(
    put: Callable[[bytes], Awaitable[str]], text: str, cap: int, window: int | None
) -> tuple[str, events.Truncation | None]:
    """Return the output that the model reads. An output over the cap is stored whole as an artifact."""
    cap = min(cap, max(window // 2, MIN_OUTPUT_CAP)) if window else cap
    head, tail, dropped = cut_output(text, cap)
    if not dropped:
        return text, None
    artifact = await put(text.encode())
    text = f"{head}\n[… {dropped} characters left out; the whole is artifact {artifact} …]\n{tail}"
    return text, events.Truncation(len(head) + len(tail), dropped, artifact)


async def build_client_result(
    setup: Setup, log: Log, session_id: str, call: Call, result: ToolResult
) -> events.CallFinished:
    """Build the fact that the client ran a call. Its output is treated like that of any tool."""
    text, parts, is_ok = render_result(result)
    put = partial(log.put_artifact, session_id)
    text, truncation = await _keep_output(put, setup.redactor.redact_text(text), DEFAULT_CAP, setup.model.window)
    return events.CallFinished(
        call_id=call.id,
        tool=call.tool,
        status="ok" if is_ok else "error",
        output=text,
        parts=_redact_parts(setup.redactor, parts),
        truncation=truncation,
    )


def _redact_parts(redactor: Redactor, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return tuple(TextPart(redactor.redact_text(part.text)) if isinstance(part, TextPart) else part for part in parts)


async def load_output(log: Log, session_id: str, artifact_id: str) -> Artifact:
    """Load an artifact, or the result of the call with that id.

    A result that was only pruned from the context was never stored as an artifact.
    """
    try:
        return await log.get_artifact(session_id, artifact_id)
    except NotFound:
        for fact in await log.read(session_id):
            if isinstance(fact, events.CallFinished) and fact.call_id == artifact_id:
                return Artifact(artifact_id, "text/plain", fact.output.encode())
        raise


class LogToolServices(ToolServices):
    """The services of one call. Output and progress go to the session's watchers, notes and files to its log.

    A call can outlive its process's claim on the session: it was frozen, or it does not stop. Then it writes nothing.
    """

    def __init__(self, environment: CallEnvironment) -> None:
        setup, lease, log = environment.setup, environment.lease, environment.lease.log
        self.memories, self.helpers, self._redactor = log.memories, setup.helpers, setup.redactor
        self.contents = log.contents
        self._log, self._session_id, self._call_id = log, lease.claim.session_id, environment.ready.call.call.id
        self.claim, self._lease = lease.claim, lease
        self._environment = environment
        self._requests: PermissionRequests | None = None
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._after = log.get_head(self._session_id)
        self._live: RedactedStream | None = None

    def progress(self, message: str, done: float | None = None, total: float | None = None) -> None:
        message = self._redactor.redact_text(message)
        self._publish(
            events.Progress(message=message, call_id=self._call_id, done=done, total=total, after=self._after)
        )

    def output(self, text: str) -> None:
        self._live = self._live or RedactedStream(self._redactor)
        if safe_text := self._live.feed(text):
            self._publish(events.OutputDelta(call_id=self._call_id, text=safe_text, after=self._after))

    def _publish(self, delta: events.AnyDelta) -> None:
        if threading.get_ident() == self._thread:  # at once: otherwise it would arrive after the call has ended
            self._log.publish(self._session_id, delta)
        else:
            self._loop.call_soon_threadsafe(self._log.publish, self._session_id, delta)

    async def save_note(self, name: str, data: Json) -> None:
        fact = events.validate_fact(events.Custom(name=name, data=self._redactor.redact_value(data)))
        await self._lease.post([fact], f"note:{os.urandom(8).hex()}")

    async def record_kept_files(
        self,
        files: Sequence[events.KeptFile],
        *,
        tree: str = "",
        left_out: Sequence[str] = (),
        refs: Sequence[events.KeptRef] = (),
    ) -> None:
        fact = events.FilesKept(
            call_id=self._call_id, files=tuple(files), tree=tree, left_out=tuple(left_out), refs=tuple(refs)
        )
        await self._lease.post([events.validate_fact(fact)], f"files:{os.urandom(8).hex()}")

    async def check_claim(self) -> None:
        await self._lease.renew_if_due(0)

    async def request_permission(self, tool: str, arguments: dict[str, Json], why: str) -> PermissionAnswer:
        self._requests = self._requests or PermissionRequests(self._environment)
        return await self._requests.decide(tool, arguments, why)

    async def read_artifact(self, artifact_id: str) -> bytes:
        return (await load_output(self._log, self._session_id, artifact_id)).data


def build_tool_context(environment: CallEnvironment, notes: Mapping[str, Json]) -> ToolContext:
    """Build the context that the tool receives."""
    setup, ready, services = environment.setup, environment.ready, LogToolServices(environment)
    return ToolContext(
        environment.lease.claim.session_id,
        ready.call.call.id,
        setup.workspace,
        ready.attempt,
        services.progress,
        services.output,
        tier=find_narrowest_tier(setup.grants),
        notes=notes,
        services=services,
        flow_risk=ready.flow_risk,
    )
