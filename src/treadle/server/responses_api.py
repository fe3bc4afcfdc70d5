"""OpenAI's Responses: create, look at, rejoin, cancel and delete them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from treadle.dialects.base import encode_frame
from treadle.dialects.responses_events import ResponseEvent
from treadle.dialects.responses_objects import ResponseObject
from treadle.dialects.responses_requests import ENCRYPTED_REASONING, Item, ResponsesBody, check_body, list_items
from treadle.errors import BadInput, NotFound
from treadle.messages import Json
from treadle.server.guard import Refusal
from treadle.server.replies import answer_request, describe_route, encode_error, report_ignored_tools
from treadle.server.response_runs import LiveResponse, build_request
from treadle.server.service import AGENT_PREFIX, CurrentService, Sender, Service, Token, Viewer
from treadle.server.stored_responses import InputRecord, ResponseSession, StoredTurn, draft_session, replay_output
from treadle.server.streams import StreamedResponse, describe_content, encode_frames

router = APIRouter(prefix="/v1", tags=["openai"])
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
    prepared = await _prepare(service, token, body, given)
    if service.resolve_alias(body.model).startswith(AGENT_PREFIX):
        if body.background:
            message = "background: an agent's run goes on without its client anyway; follow its session"
            raise BadInput(message, param="background")
        asked, prepared.record.given["store"] = build_request(prepared.draft, prepared.turn), False
        dialect = prepared.draft.open_dialect(prepared.turn)
        return await answer_request(service, token, body, asked, dialect, request.headers)
    asked, model = build_request(prepared.draft, prepared.turn), service.get_model(body.model)
    service.check_open()
    claimed = None
    if body.is_stored:
        claimed = await service.responses.store.begin(prepared.record, token, prepared.stored, prepared.after)
        prepared.draft.id, prepared.turn.seq = claimed.claim.session_id, claimed.seq
    live = LiveResponse(prepared.draft.open_dialect(prepared.turn))
    service.responses.start(live, model, asked, claimed)
    headers = report_ignored_tools(live.dialect.tools.ignored)
    if body.stream:
        pieces = _send_live(live, waits=not body.background, is_stored=body.is_stored)

        def describe(error: Exception) -> bytes:
            return encode_error(error) if isinstance(error, Refusal) else _encode_events(live.events)

        return StreamedResponse(service.streams, pieces, describe, headers)
    if not body.background:
        await live.wait()
        if live.failure is not None:
            raise live.failure
        if live.dialect.response.status == "in_progress":
            raise Refusal(
                503, "shutting_down", "the server is shutting down; the response goes on later", retry_after=2
            )
        return _send_response(live.dialect.response, headers)
    first = live.events[0].response
    assert isinstance(first, ResponseObject)
    return _send_response(first, headers)


async def _prepare(service: Service, token: Token, body: ResponsesBody, given: dict[str, Json]) -> Prepared:
    """Find what a request continues and the items that it refers to."""
    check_body(body)
    store, stored, after = service.responses.store, None, 0
    if body.previous_response_id:
        stored, turn = await store.find_turn(body.previous_response_id, token)
        after = turn.seq
        if turn.output is None or turn.output.status:
            status = "is in progress" if turn.output is None else f"has {turn.output.status}"
            message = f"previous_response_id: that response {status}; continue one that has an answer"
            raise BadInput(message, param="previous_response_id")
    elif body.conversation_id:
        stored = await store.find_conversation(body.conversation_id, token)
        after = stored.head
    known = {str(item.get("id")): item for item in stored.list_items(after)} if stored is not None else {}
    items: list[Item] = []
    for item in list_items(body.input):
        if item.get("type") == "item_reference" or item.keys() == {"id"}:
            item_id = str(item.get("id"))
            found = known.get(item_id) or await store.find_item(item_id, token)
            if found is None:
                raise NotFound(f"input: there is no stored item {item_id[:100]!r}; send the item itself")
            items.append(found)
        else:
            items.append(item)
    fields = {name: value for name, value in given.items() if name in ResponsesBody.__struct_fields__}
    record = InputRecord(int(time.time()), {**fields, "input": None}, items)
    draft, turn = draft_session(stored, after, record)
    return Prepared(body, record, stored, after, draft, turn)


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


def _send_response(response: ResponseObject, headers: dict[str, str] | None = None) -> Response:
    return Response(encode_frame(response), media_type="application/json", headers=headers)


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
    stored, turn = await service.responses.store.find_turn(response_id, token)
    if stream:
        following = service.responses.follow(stored, turn, starting_after)

        async def send() -> AsyncGenerator[bytes]:
            yield b""  # sends the head, however late the first event comes
            async with aclosing(following) as events:
                async for fresh in events:
                    yield _encode_events(fresh)

        return StreamedResponse(service.streams, send())
    return _send_response(await _read_response(service, stored, turn, include or ()))


async def _read_response(
    service: Service, stored: ResponseSession, turn: StoredTurn, include: Sequence[str] = ()
) -> ResponseObject:
    live = await service.responses.find_live(stored, turn)
    if live is not None:
        return live.dialect.response
    dialect = stored.open_dialect(turn, wants_state=ENCRYPTED_REASONING in include)
    if turn.output is not None:
        replay_output(dialect, turn.output)
    return dialect.response


@router.delete("/responses/{response_id}")
async def delete_response(service: CurrentService, token: Sender, response_id: str) -> DeletedView:
    """Delete a stored response. One that is in progress is cancelled first."""
    store = service.responses.store
    stored, turn = await store.find_turn(response_id, token)
    if turn.output is None:
        await service.responses.cancel(stored, turn)
    await store.delete_response(stored, turn)
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
    _, turn = await service.responses.store.find_turn(response_id, token)
    return build_page(turn.items, order, limit, after)


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
    stored, turn = await service.responses.store.find_turn(response_id, token)
    assert turn.record is not None
    if not turn.record.body.background:
        raise BadInput("only a response with background: true can be cancelled", param="response_id")
    if turn.output is None:
        await service.responses.cancel(stored, turn)
        stored, turn = await service.responses.store.find_turn(response_id, token)
    return _send_response(await _read_response(service, stored, turn))
