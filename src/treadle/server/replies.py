"""How a model or an agent answers a request in another program's format, streamed or whole.

A request to a model gets the model's reply, and the client runs its own tools. A request to `agent:NAME` runs an agent
in a new session, or in the session that the request names. The agent's tools run here, and the client's at the client.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import lru_cache
from typing import Any

import msgspec
from fastapi import Response
from msgspec import Struct

from treadle import Agent, CallFinished, CallStarted, ModelReplied, RunFinished, Session
from treadle.dialects.base import Activity, ReplyFormat, build_client_call_id, encode_frame, parse_client_call_id
from treadle.dialects.openai_chat import describe_failed_run
from treadle.dialects.request_content import AgentMessage, ReplyBody, build_agent_message
from treadle.engine.state import State
from treadle.errors import ModelError, NotFound
from treadle.events import AnyFact, Delta, Event, SessionConfigured, validate_fact
from treadle.messages import Reply, Sampling, SignedReasoning, TextPart
from treadle.messages import Request as ModelRequest
from treadle.models.base import Model
from treadle.server.agent_runs import PostedFact, ReplyEvent, follow_run
from treadle.server.guard import Refusal, build_error_body
from treadle.server.problems import build_field_error, build_refusal
from treadle.server.service import AGENT_PREFIX, Service, Token
from treadle.server.streams import PieceStream, describe_content, encode_frames

_logger = logging.getLogger("treadle.server")
MOST_NAMED_TOOLS = 40
"""How many ignored tools a header names. Clients refuse headers that are too long."""
SESSION_HEADER = "x-treadle-session"
"""Names the session of an agent in requests and responses."""


def describe_route(kind: type[Struct]) -> dict[str, Any]:
    """How OpenAPI describes a route that has a body for msgspec, and answers whole or with a stream."""
    answers = describe_content("whole, or a stream", "application/json", "text/event-stream")
    return {"response_class": Response, "responses": answers, **describe_body(kind)}


def describe_body(kind: type[Struct]) -> dict[str, Any]:
    """How OpenAPI describes a route that has a body for msgspec."""
    (schema,), components = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    body = {"required": True, "content": {"application/json": {"schema": _inline_references(schema, components)}}}
    return {"openapi_extra": {"requestBody": body}}


def _inline_references(schema: Any, components: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inline_references(piece, components) for piece in schema]  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(schema, dict):
        return schema
    reference = schema.get("$ref")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if isinstance(reference, str):
        return _inline_references(components[reference.rpartition("/")[2]], components)
    return {key: _inline_references(value, components) for key, value in schema.items()}  # pyright: ignore[reportUnknownVariableType]


def make_id(prefix: str) -> str:
    """Make a random id that starts with `prefix`."""
    return f"{prefix}{os.urandom(12).hex()}"


async def answer_request(
    service: Service,
    token: Token,
    body: ReplyBody,
    asked: ModelRequest,
    dialect: ReplyFormat,
    headers: Mapping[str, str],
) -> Response:
    """Have a model or an agent answer, and send the reply streamed or whole. `headers` are those of the request."""
    model = service.resolve_alias(body.model)
    if model.startswith(AGENT_PREFIX):
        wanted = AgentRequest(model.removeprefix(AGENT_PREFIX), asked, read_session_id(body, headers))
        session, posted = await ask_agent(service, token, wanted)
        return await send_run(service, session, posted, dialect, is_streamed=bool(body.stream))
    events = _ask_again_if_refused(service.get_model(model), asked, dialect)
    return await _send_reply(service, events, dialect, is_streamed=bool(body.stream))


async def send_run(
    service: Service, session: Session, posted: PostedFact, dialect: ReplyFormat, *, is_streamed: bool
) -> Response:
    """Send what an agent says to a message or a result, streamed or whole."""
    dialect.session_id = session.id
    events = follow_run(session, session.follow(posted), posted, service.detach_at_shutdown)
    return await _send_reply(service, events, dialect, is_streamed=is_streamed)


async def _send_reply(
    service: Service, events: AsyncGenerator[ReplyEvent], dialect: ReplyFormat, *, is_streamed: bool
) -> Response:
    added = {SESSION_HEADER: dialect.session_id} if dialect.session_id else {}
    added |= report_ignored_tools(dialect.ignored_tools)
    write = ReplyWriter(dialect)
    if not is_streamed:
        completing = _complete_run(events, write) if dialect.session_id else _complete_reply(events, write)
        return send_json(await completing, added)
    return PieceStream(
        service.streams, write.relay(events), lambda error: write.encode_error(build_refusal(error)), added
    )


def report_ignored_tools(names: Sequence[str]) -> dict[str, str]:
    """Log the tools of a request that cannot be served. Returns the header that names them to the client."""
    cleaned = dict.fromkeys(re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:100] or "_" for name in names)
    if not cleaned:
        return {}
    listed = ", ".join([*cleaned][:MOST_NAMED_TOOLS])
    _log_ignored_tools(listed)
    return {"x-treadle-ignored-tools": listed}


@lru_cache(maxsize=100)  # a program sends the same tools with every request, and one line is enough
def _log_ignored_tools(listed: str) -> None:
    _logger.warning("requests offer tools that cannot be served, and these are left out: %s", listed)


def read_session_id(body: ReplyBody, headers: Mapping[str, str]) -> str:
    """The session that a request to an agent names, in its body or its headers."""
    return body.session_id or (body.treadle and body.treadle.session_id) or headers.get(SESSION_HEADER, "")


# ── a model ──────────────────────────────────────────────────────────────────────────────────────────


async def ask_model(model: Model, asked: ModelRequest) -> AsyncGenerator[ReplyEvent]:
    """Stream a model's reply. Raises when the stream ends without one."""
    has_replied = False
    async with aclosing(model.stream(asked)) as events:
        async for event in events:
            has_replied = has_replied or isinstance(event, Reply)
            yield event
    if not has_replied:
        raise ModelError(f"{model.name} ended its stream without a reply", kind="network", retryable=True)


async def _ask_again_if_refused(model: Model, asked: ModelRequest, dialect: ReplyFormat) -> AsyncGenerator[ReplyEvent]:
    """Stream a model's reply. A provider that refuses the request gets the simpler one of the format, if it has one."""
    has_begun = False
    try:
        async with aclosing(ask_model(model, asked)) as events:
            async for event in events:
                has_begun = True
                yield event
        return
    except (ModelError, msgspec.DecodeError) as error:
        is_refusal = not isinstance(error, ModelError) or (error.kind == "bad_request" and not error.param)
        simpler = dialect.simplify_request(asked) if is_refusal and not has_begun else None
        if simpler is None:
            raise
    async with aclosing(ask_model(model, simpler)) as events:
        async for event in events:
            yield event


async def _complete_reply(events: AsyncGenerator[ReplyEvent], write: ReplyWriter) -> Struct:
    """Wait for a model's reply. Returns the whole document."""
    async for event in events:
        if isinstance(event, Reply):
            return write.dialect.complete_reply(event)
        write.feed(event)
    raise AssertionError("a model's events end with its reply")


# ── an agent ─────────────────────────────────────────────────────────────────────────────────────────


class AgentRequest(Struct, frozen=True):
    """A request to an agent, and the session that it names."""

    agent: str
    request: ModelRequest
    session_id: str


async def ask_agent(service: Service, token: Token, asked: AgentRequest) -> tuple[Session, PostedFact]:
    """Give an agent the new message or the results of its calls. Returns its session and what was stored last."""
    agent = service.runtime.agents.get(asked.agent)
    if agent is None:
        raise NotFound(f"there is no agent {asked.agent[:200]!r}; GET /v1/models lists them")
    service.check_open()
    await service.check_model(agent)
    _check_options(agent, asked.request)
    given = build_agent_message(asked.request.messages)  # it may raise, and then no session is made
    if given.session_id and asked.session_id not in ("", given.session_id):
        raise build_field_error("session_id", f"the results belong to calls of session {given.session_id}")
    session_id = asked.session_id or given.session_id
    if not session_id:
        configured = build_configuration(agent, asked.request, None, token.name)
        session = await service.create_session(token, agent=asked.agent, configured=configured)
        return session, await session.post(given.parts, history=given.history)
    session = await service.open_for_run(session_id, token)
    state = await session.state()
    if state.agent != asked.agent:
        own = state.agent
        raise build_field_error("model", f"session {session_id} belongs to the agent {own!r}; ask agent:{own}")
    if state.client_calls and not given.results:
        names = ", ".join(f"{call.tool} ({build_client_call_id(session_id, call)})" for call in state.client_calls)
        message = f"session {session_id} waits for the client's results of {names}"
        raise Refusal(409, "waits_for_results", message, "send the results with these ids, or cancel the run")
    if (configured := build_configuration(agent, asked.request, state, token.name)) is not None:
        await session.log.post(session_id, [validate_fact(configured)], wake=False)
    if not given.results:
        return session, await session.post(given.news or given.parts)
    return session, await _send_results(session, given)


async def _send_results(session: Session, given: AgentMessage) -> CallFinished:
    """Send the results of calls that the client ran. A repeat of the request changes nothing."""
    sent: list[CallFinished] = []
    for number, result in enumerate(given.results, 1):
        if number == len(given.results) and any(not isinstance(p, TextPart) or p.text.strip() for p in given.news):
            await session.post(given.news, key=f"with:{result.call_id}")  # first, so that the next turn has it
        _, seq = parse_client_call_id(result.call_id) or ("", 0)
        fact = next(iter(await session.log.read(session.id, after=seq - 1, limit=1)), None) if seq else None
        if not isinstance(fact, CallStarted):
            raise NotFound(f"session {session.id} made no call {result.call_id!r}")
        sent.append(await session.finish_call(fact.call_id, result.text, parts=result.parts, ok=result.ok))
    return max(sent, key=lambda fact: fact.seq)


def _check_options(agent: Agent, request: ModelRequest) -> None:
    """Raise for what an agent cannot do in a model's place."""
    taken = [spec.name for spec in request.tools if spec.name in agent.toolbox]
    taken += [spec.name for spec in request.tools for tool in agent.toolbox.values() if spec.name in tool.aliases]
    if taken:
        raise build_field_error("tools", f"the agent has a tool named {taken[0]!r} itself; give yours another name")
    if request.tool_choice == "required":
        raise build_field_error("tool_choice", "an agent decides itself which tools it calls; use auto or none")
    if request.output_schema is not None and agent.output is not None:
        raise build_field_error("response_format", "the agent has its own form of answers; leave this out")
    for name in ("n", "logprobs", "top_logprobs"):
        if request.sampling.extra.get(name) not in (None, False, 1):
            raise build_field_error(name, "an agent gives one answer, without probabilities; ask its model for them")


def build_configuration(agent: Agent, request: ModelRequest, state: State | None, by: str) -> SessionConfigured | None:
    """Build the configuration that a request asks for, as far as it differs from that of the session."""
    now = (state.configured if state is not None else None) or SessionConfigured()
    instructions = f"{agent.instructions}\n\n{request.system}".strip() if request.system else ""
    tools = request.tools if request.tool_choice != "none" else ()
    schema, limits = request.output_schema or {}, None
    if request.max_tokens is not None:
        limits = now.limits or agent.limits
        limits = msgspec.structs.replace(limits, tokens=min(limits.tokens or request.max_tokens, request.max_tokens))
    configured = SessionConfigured(
        instructions=instructions if instructions != now.instructions else "",
        limits=limits if limits != now.limits else None,
        sampling=request.sampling if request.sampling not in (Sampling(), now.sampling) else None,
        output_schema=schema if schema != (now.output_schema or {}) else None,
        client_tools=tools if tools != (now.client_tools or ()) else None,
        by=by,
    )
    return configured if configured != SessionConfigured(by=by) else None


async def _complete_run(events: AsyncGenerator[ReplyEvent], write: ReplyWriter) -> Struct:
    """Wait for the end of a run. Returns what its stream adds up to, without the text of failed attempts."""
    activity: list[AnyFact] = []
    deltas: list[Event] = []
    ending: RunFinished | Reply | None = None
    dialect = write.dialect
    async for event in events:
        if isinstance(event, Activity):
            activity.append(event)
        if isinstance(event, Delta):
            deltas.append(event)
        elif isinstance(event, RunFinished | Reply):
            ending = event
        else:
            for delta in deltas if isinstance(event, ModelReplied) else ():
                write.feed(delta)
            deltas.clear()
            write.feed(event)
    assert ending is not None
    failure = describe_failed_run(ending) if isinstance(ending, RunFinished) else None
    if failure is not None and not dialect.can_report_failure:
        status = 502 if failure.type == "run_failed" else 409
        raise Refusal(status, failure.type, f"session {dialect.session_id}: {failure.message}")
    return dialect.complete_run(ending, activity)


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────


class ReplyWriter:
    """Writes a reply as server-sent events. What the stream begins with goes before the first of them."""

    def __init__(self, dialect: ReplyFormat) -> None:
        self.dialect, self._beginning = dialect, list(dialect.begin())
        self._end = b"data: %b\n\n" % dialect.end_mark if dialect.end_mark else b""

    def feed(self, event: ReplyEvent) -> Sequence[Struct]:
        """The frames of one event."""
        return self.dialect.feed_block(event) if isinstance(event, SignedReasoning) else self.dialect.feed(event)

    def _encode(self, frames: Sequence[Struct]) -> bytes:
        data = encode_frames([*self._beginning, *frames], name_field="type")
        self._beginning.clear()
        return data

    async def relay(self, events: AsyncGenerator[ReplyEvent]) -> AsyncGenerator[bytes]:
        """Write all events of a model or of an agent's run, and the end."""
        if self.dialect.session_id:  # a run may take long before its first event
            yield self._encode(())
        async with aclosing(events):
            async for event in events:
                if data := self._encode(self.feed(event)):
                    yield data
        yield self._end

    def encode_error(self, refusal: Refusal) -> bytes:
        """Write an error and the end of the stream."""
        return encode_error(refusal, is_named=self.dialect.has_error_events) + self._end


def encode_error(refusal: Refusal, *, is_named: bool = False) -> bytes:
    """An error in a stream. Anthropic's form has an event of its own for it."""
    name = b"event: error\n" if is_named else b""
    return name + b"data: %b\n\n" % msgspec.json.encode(build_error_body(refusal, anthropic=is_named))


def send_json(document: Struct, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode_frame(document), media_type="application/json", headers=dict(headers or {}))
