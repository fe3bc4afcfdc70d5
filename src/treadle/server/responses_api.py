"""OpenAI's Responses: create, look at, rejoin, cancel and delete them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, nullcontext
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from treadle.dialects.request_content import build_agent_message
from treadle.dialects.responses_events import ResponseEvent, ResponsesDialect
from treadle.dialects.responses_objects import ResponseObject, build_response
from treadle.dialects.responses_requests import (
    ConversationReader,
    Item,
    ResponsesBody,
    build_responses_request,
    check_body,
    list_items,
    read_tool_table,
)
from treadle.errors import BadInput, NotFound
from treadle.messages import Json
from treadle.messages import Request as ModelRequest
from treadle.server.agent_responses import AgentResponse
from treadle.server.guard import Refusal, build_shutdown_refusal
from treadle.server.problems import build_refusal
from treadle.server.replies import (
    SESSION_HEADER,
    AgentRequest,
    ask_agent,
    describe_route,
    encode_error,
    make_id,
    read_session_id,
    report_ignored_tools,
    send_json,
    send_run,
)
from treadle.server.response_runs import LiveResponse, build_request
from treadle.server.service import AGENT_PREFIX, CurrentService, Sender, Service, Token, Viewer
from treadle.server.stored_responses import InputRecord, ResponseSession, StoredTurn, draft_session
from treadle.server.streams import PieceStream, describe_content, encode_frames

router = APIRouter(prefix="/v1", tags=["openai"])
CONTINUE_SECONDS = 60.0
"""For how long it is remembered that a node continues a response. Then its session has the message."""
Order = Literal["asc", "desc"]
Included = Annotated[list[str] | None, Query(alias="include[]")]
_RESPONSE = describe_content("the response, or a stream of its events", "application/json", "text/event-stream")
_DOCUMENT = describe_content("the response", "application/json")


class ItemList(BaseModel):
    """A page of items. `last_id` as `after` fetches the next page."""

    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class DeletedView(BaseModel):
    id: str
    object: str
    deleted: bool = True


class Prepared(msgspec.Struct):
    """A request that can be answered: where it belongs, and what the model gets."""

    body: ResponsesBody
    record: InputRecord
    stored: ResponseSession | None
    after: int
    draft: ResponseSession
    turn: StoredTurn


@router.post("/responses", **describe_route(ResponsesBody))
async def create_response(service: CurrentService, token: Sender, request: Request) -> Any:
    """Answer in the format of Responses: streamed, whole, or in the background.

    A response is stored unless `store` is false. It goes on when its client leaves.
    """
    data = await request.body()
    body, given = msgspec.json.decode(data, type=ResponsesBody), msgspec.json.decode(data)
    check_body(body)
    if service.resolve_alias(body.model).startswith(AGENT_PREFIX):
        return await _ask_agent(service, token, body, given, read_session_id(body, request.headers))
    prepared = await _prepare(service, token, body, given)
    asked, model = build_request(prepared.draft, prepared.turn), service.get_model(body.model)
    service.check_open()
    claimed = None
    if body.is_stored:
        claimed = await service.responses.store.begin(prepared.record, token, prepared.stored, prepared.after)
        prepared.draft.id, prepared.turn.seq = claimed.claim.session_id, claimed.seq
    live = LiveResponse(prepared.draft.open_dialect(prepared.turn))
    service.responses.start(live, model, asked, claimed)
    headers = report_ignored_tools(live.dialect.ignored_tools)
    if body.stream:
        pieces = _send_live(live, waits=not body.background, is_stored=body.is_stored)

        def describe(error: Exception) -> bytes:
            return encode_error(error) if isinstance(error, Refusal) else _encode_events(live.events)

        return PieceStream(service.streams, pieces, describe, headers)
    if not body.background:
        await live.wait()
        if live.failure is not None:
            raise live.failure
        if live.response.status == "in_progress":
            raise build_shutdown_refusal()
        return send_json(live.response, headers)
    first = live.events[0].response
    assert isinstance(first, ResponseObject)
    return send_json(first, headers)


async def _ask_agent(
    service: Service, token: Token, body: ResponsesBody, given: dict[str, Json], session_id: str
) -> Response:
    """Have an agent answer. Its session keeps what it says, and the response if that is stored."""
    if body.conversation_id:
        message = "conversation: an agent keeps its conversation in its session; use previous_response_id"
        raise BadInput(message, param="conversation")
    agents = service.responses.agents
    async with agents.continuing if body.previous_response_id else nullcontext():
        asked, record = await _prepare_for_agent(service, token, body, given, session_id)
        session, posted = await ask_agent(service, token, asked)
        if not body.is_stored:
            response = build_response(make_id("resp_"), record.created_at, body, record.given)
            dialect = ResponsesDialect(response, read_tool_table(body, record.items))
            return await send_run(service, session, posted, dialect, is_streamed=bool(body.stream))
        run = session.follow(posted)  # before anything is said
        found = await agents.begin(session, posted, run, record)
    dialect = found.open_dialect()
    headers = {SESSION_HEADER: session.id, **report_ignored_tools(dialect.ignored_tools)}
    if body.stream:
        return PieceStream(service.streams, _send_events(found.follow(-1)), _describe_error, headers)
    if not body.background:
        return send_json(await found.wait(), headers)
    first = dialect.begin()[0].response
    assert isinstance(first, ResponseObject)
    return send_json(first, headers)


async def _prepare_for_agent(
    service: Service, token: Token, body: ResponsesBody, given: dict[str, Json], session_id: str
) -> tuple[AgentRequest, InputRecord]:
    """Find the session that a request continues, or a copy of it if it went on since. Read what the agent gets."""
    agent = service.resolve_alias(body.model).removeprefix(AGENT_PREFIX)
    previous = None
    if body.previous_response_id:
        previous = await service.responses.find(body.previous_response_id, token)
    if not isinstance(previous, AgentResponse):
        prepared = await _prepare(service, token, body, given)
        return AgentRequest(agent, build_request(prepared.draft, prepared.turn), session_id), prepared.record
    own = (await previous.session.state()).agent
    if own != agent:
        raise BadInput(f"model: the agent {own!r} wrote that response; ask agent:{own}", param="model")
    if session_id not in ("", previous.session.id):
        message = f"session_id: that response belongs to session {previous.session.id}; leave this out"
        raise BadInput(message, param="session_id")
    record = _build_record(given, await _read_input(service, token, body, {}))
    written = await previous.list_output()
    went_on, target = await previous.find_next_fact(), previous.session.id
    request = _read_new_items(body, written, record.items)
    has_results = bool(build_agent_message(request.messages).results)
    end = went_on.seq - 1 if went_on is not None else None
    if end is None and not has_results and not await _is_first_to_continue(service, previous):
        end = len(previous.facts)
    if end is not None and not (has_results and previous.was_continued_with(record.items)):
        service.check_open()
        target = (await previous.session.fork(end)).id
        moved = [
            {**item, "call_id": str(item["call_id"]).replace(previous.session.id, target)}
            if "call_id" in item
            else item
            for item in (*written, *record.items)
        ]
        request = _read_new_items(body, moved[: len(written)], moved[len(written) :])
    return AgentRequest(agent, request, target), record


async def _is_first_to_continue(service: Service, previous: AgentResponse) -> bool:
    """Whether no other node continues this response just now. Inside one process a lock takes care of that."""
    log = service.runtime.log
    return not log.is_shared or await log.shared.count(f"continue:{previous.id}", CONTINUE_SECONDS) == 1


def _read_new_items(body: ResponsesBody, written: Sequence[Item], items: Sequence[Item]) -> ModelRequest:
    """What an agent gets after a response of its own: the new items, which may answer calls of that response."""
    tools = read_tool_table(body, items)
    conversation = ConversationReader(tools)
    conversation.add_items([item for item in written if "call_id" in item])
    conversation.add_items(items)
    return build_responses_request(body, conversation, tools)


async def _prepare(service: Service, token: Token, body: ResponsesBody, given: dict[str, Json]) -> Prepared:
    """Find what a request continues and the items that it refers to."""
    store, stored, after = service.responses.store, None, 0
    if body.previous_response_id:
        found = await service.responses.find(body.previous_response_id, token)
        if isinstance(found, AgentResponse):
            message = "previous_response_id: an agent wrote that response; ask the same agent"
            raise BadInput(message, param="previous_response_id")
        stored, turn = found.stored, found.turn
        after = turn.seq
        if turn.output is None or turn.output.status:
            status = "is in progress" if turn.output is None else f"has {turn.output.status}"
            message = f"previous_response_id: that response {status}; continue one that has an answer"
            raise BadInput(message, param="previous_response_id")
    elif body.conversation_id:
        stored = await store.find_conversation(body.conversation_id, token)
        after = stored.head
    known = {str(item.get("id")): item for item in stored.list_items(after)} if stored is not None else {}
    record = _build_record(given, await _read_input(service, token, body, known))
    draft, turn = draft_session(stored, after, record)
    return Prepared(body, record, stored, after, draft, turn)


async def _read_input(service: Service, token: Token, body: ResponsesBody, known: dict[str, Item]) -> list[Item]:
    """The input items, with stored items in place of references to them."""
    responses, items = service.responses, list[Item]()
    for item in list_items(body.input):
        if item.get("type") == "item_reference" or item.keys() == {"id"}:
            item_id = str(item.get("id"))
            found = known.get(item_id) or await responses.store.find_item(item_id, token)
            found = found or await responses.agents.find_item(item_id, token)
            if found is None:
                raise NotFound(f"input: there is no stored item {item_id[:100]!r}; send the item itself")
            items.append(found)
        else:
            items.append(item)
    return items


def _build_record(given: dict[str, Json], items: list[Item]) -> InputRecord:
    fields = {name: value for name, value in given.items() if name in ResponsesBody.__struct_fields__}
    return InputRecord(int(time.time()), {**fields, "input": None}, items)


async def _send_live(live: LiveResponse, *, waits: bool, is_stored: bool) -> AsyncGenerator[bytes]:
    try:
        if waits:
            await live.wait_for_reply()
            if live.failure is not None and not live.pieces:  # an early failure has a status of its own
                raise live.failure
        async with aclosing(live.follow()) as events:
            async for fresh in events:
                yield _encode_events(fresh)
    finally:
        if not is_stored and live.task is not None:
            live.task.cancel()


def _encode_events(events: Sequence[ResponseEvent]) -> bytes:
    return encode_frames(events, name_field="type")


def _describe_error(error: Exception) -> bytes:
    return encode_error(build_refusal(error))


async def _send_events(following: AsyncGenerator[list[ResponseEvent]]) -> AsyncGenerator[bytes]:
    yield b""  # sends the head, however late the first event comes
    async with aclosing(following) as events:
        async for fresh in events:
            yield _encode_events(fresh)


@router.get("/responses/{response_id}", response_class=Response, responses=_RESPONSE)
async def get_response(
    service: CurrentService,
    token: Viewer,
    response_id: str,
    stream: bool = False,
    starting_after: Annotated[int, Query(ge=-1, le=2**53)] = -1,
    include: Included = None,
) -> Response:
    """Show a stored response. With `stream` its events follow, from after number `starting_after` on."""
    found = await service.responses.find(response_id, token)
    if stream:
        return PieceStream(service.streams, _send_events(found.follow(starting_after)), _describe_error)
    return send_json(await found.read(include or ()))


@router.delete("/responses/{response_id}")
async def delete_response(service: CurrentService, token: Sender, response_id: str) -> DeletedView:
    """Delete a stored response. One that is in progress is cancelled first. The session of an agent stays."""
    await (await service.responses.find(response_id, token)).delete(token.name)
    return DeletedView(id=response_id, object="response.deleted")


@router.get("/responses/{response_id}/input_items")
async def list_input_items(
    service: CurrentService,
    token: Viewer,
    response_id: str,
    order: Order = "desc",
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: str = "",
) -> ItemList:
    """List the items that a response was asked with."""
    return build_page((await service.responses.find(response_id, token)).items, order, limit, after)


def build_page(items: Sequence[Item], order: Order, limit: int, after: str) -> ItemList:
    """A page of items. `after` is the id of the item that the page before ended with."""
    ordered = list(items) if order == "asc" else list(reversed(items))
    if after:
        places = [place for place, item in enumerate(ordered) if item.get("id") == after]
        if not places:
            raise BadInput(f"after: there is no item {after[:100]!r} in this list", param="after")
        ordered = ordered[places[0] + 1 :]
    page = ordered[:limit]
    ids = [str(item.get("id")) for item in page] or [None]
    return ItemList(data=page, first_id=ids[0], last_id=ids[-1], has_more=len(ordered) > limit)


@router.post("/responses/{response_id}/cancel", response_class=Response, responses=_DOCUMENT)
async def cancel_response(service: CurrentService, token: Sender, response_id: str) -> Response:
    """Stop a response that runs in the background. One that has ended stays as it is."""
    found = await service.responses.find(response_id, token)
    if not found.is_background:
        raise BadInput("only a response with background: true can be cancelled", param="response_id")
    await found.cancel(token.name)
    return send_json(await (await service.responses.find(response_id, token)).read())
