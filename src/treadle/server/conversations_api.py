"""OpenAI's conversations: lists of items that responses are added to."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from treadle.dialects.responses_requests import ConversationReader, Item, list_items
from treadle.dialects.responses_tools import ToolTable
from treadle.errors import Conflict, NotFound
from treadle.server.responses_api import DeletedView, ItemList, Order, build_page
from treadle.server.service import CurrentService, LenientBody, Sender, Viewer
from treadle.server.stored_responses import (
    CONVERSATION,
    ITEM_DELETED,
    ITEMS,
    ResponseSession,
    build_fact,
    list_grants,
    name_items,
)
from treadle.session import generate_session_id

router = APIRouter(prefix="/v1/conversations", tags=["openai"])
Metadata = Annotated[dict[str, str], Field(max_length=16)]


class NewItems(LenientBody):
    """Items to add to a conversation."""

    items: list[dict[str, Any]] = Field(max_length=1000)


class NewConversation(LenientBody):
    """A conversation to create, with its first items."""

    items: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]], max_length=1000)
    metadata: Metadata = Field(default_factory=dict[str, str])


class ChangeConversation(LenientBody):
    """New metadata in place of all that there was."""

    metadata: Metadata = Field(default_factory=dict[str, str])


class ConversationView(BaseModel):
    id: str
    created_at: int
    metadata: dict[str, Any]
    object: str = "conversation"

    @classmethod
    def from_session(cls, stored: ResponseSession) -> ConversationView:
        created_at = int(stored.facts[0].at)
        return cls(id=f"conv_{stored.id}", created_at=created_at, metadata=stored.metadata or {})


def _read_items(given: list[Item]) -> list[Item]:
    """Items as they are stored. Raises for one that no model could read."""
    items = list_items(given)
    ConversationReader(ToolTable()).add_items(items)
    return items


@router.post("")
async def create_conversation(service: CurrentService, token: Sender, body: NewConversation) -> ConversationView:
    """Create a conversation for `conversation` in requests to /v1/responses."""
    service.check_open()
    session_id, items = generate_session_id(), _read_items(body.items)
    facts = [build_fact(CONVERSATION, body.metadata)]
    if items:
        facts.append(build_fact(ITEMS, name_items(items, session_id, 3)))
    await service.responses.store.create_session(session_id, list_grants(token), facts)
    return ConversationView.from_session(await service.responses.store.load_session(session_id))


@router.get("/{conversation_id}")
async def get_conversation(service: CurrentService, token: Viewer, conversation_id: str) -> ConversationView:
    """Show a conversation."""
    return ConversationView.from_session(await service.responses.store.find_conversation(conversation_id, token))


@router.post("/{conversation_id}")
async def update_conversation(
    service: CurrentService, token: Sender, conversation_id: str, body: ChangeConversation
) -> ConversationView:
    """Replace the metadata of a conversation."""
    stored = await service.responses.store.find_conversation(conversation_id, token)
    await service.responses.store.add_facts(stored, build_fact(CONVERSATION, body.metadata))
    stored.metadata = dict(body.metadata)
    return ConversationView.from_session(stored)


@router.delete("/{conversation_id}")
async def delete_conversation(service: CurrentService, token: Sender, conversation_id: str) -> DeletedView:
    """Delete a conversation with its items and the responses in it."""
    stored = await service.responses.store.find_conversation(conversation_id, token)
    await service.responses.store.delete_session(stored)
    return DeletedView(id=conversation_id, object="conversation.deleted")


@router.get("/{conversation_id}/items")
async def list_conversation_items(
    service: CurrentService,
    token: Viewer,
    conversation_id: str,
    order: Order = "desc",
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: str = "",
) -> ItemList:
    """List the items of a conversation."""
    stored = await service.responses.store.find_conversation(conversation_id, token)
    return build_page(stored.list_items(stored.head), order, limit, after)


@router.post("/{conversation_id}/items")
async def add_conversation_items(
    service: CurrentService, token: Sender, conversation_id: str, body: NewItems
) -> ItemList:
    """Add items to the end of a conversation."""
    store = service.responses.store
    stored = await store.find_conversation(conversation_id, token)
    if stored.unfinished is not None:
        raise Conflict("a response of this conversation is in progress; wait for it")
    items = name_items(_read_items(body.items), stored.id, stored.head + 1)
    await store.add_facts(stored, build_fact(ITEMS, items))
    return build_page(items, "asc", max(1, len(items)), "")


@router.get("/{conversation_id}/items/{item_id}")
async def get_conversation_item(
    service: CurrentService, token: Viewer, conversation_id: str, item_id: str
) -> dict[str, Any]:
    """Show one item of a conversation."""
    stored = await service.responses.store.find_conversation(conversation_id, token)
    return _find_item(stored, item_id)


@router.delete("/{conversation_id}/items/{item_id}")
async def delete_conversation_item(
    service: CurrentService, token: Sender, conversation_id: str, item_id: str
) -> ConversationView:
    """Take one item out of a conversation."""
    stored = await service.responses.store.find_conversation(conversation_id, token)
    _find_item(stored, item_id)
    await service.responses.store.add_facts(stored, build_fact(ITEM_DELETED, item_id))
    return ConversationView.from_session(stored)


def _find_item(stored: ResponseSession, item_id: str) -> Item:
    found = [item for item in stored.list_items(stored.head) if item.get("id") == item_id]
    if not found:
        raise NotFound(f"there is no item {item_id[:100]!r} in this conversation")
    return found[0]
