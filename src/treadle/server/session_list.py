"""The list of sessions: its pages, search in all transcripts, and a stream of its changes."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from treadle.errors import NotFound
from treadle.log.base import RESPONSES_AGENT, SessionInfo, SessionQuery, Status
from treadle.log.full_text import mark_words
from treadle.server.list_changes import ListChanges
from treadle.server.service import CurrentService, Service, Viewer
from treadle.server.session_views import SessionPageView, SessionView
from treadle.server.streams import SSE_RESPONSES, PieceStream

router = APIRouter(prefix="/v1", tags=["sessions"])
ARCHIVED: dict[str, bool | None] = {"true": True, "false": False, "all": None}


class SessionFilter(BaseModel):
    """Which sessions to list. Empty fields match every session."""

    status: Status | None = None
    q: str = Field("", max_length=500)
    agent: str = Field("", max_length=200)
    workspace: str = Field("", max_length=4000)
    parent: str = Field("", max_length=64)
    archived: Literal["true", "false", "all"] = "all"
    limit: int = Field(50, ge=1, le=200)
    cursor: str = Field("", max_length=500)


class SearchHitView(BaseModel):
    """A place in a transcript. In the `snippet` U+0002 and U+0003 stand around each word that was found."""

    session_id: str
    name: str
    seq: int
    snippet: str


@router.get("/sessions")
async def list_sessions(
    service: CurrentService, token: Viewer, wanted: Annotated[SessionFilter, Query()]
) -> SessionPageView:
    """List the sessions, the last changed first. `cursor` fetches the next page."""
    query = SessionQuery(
        status=wanted.status,
        agent=wanted.agent,
        workspace=wanted.workspace,
        text=wanted.q,
        parent=wanted.parent,
        archived=ARCHIVED[wanted.archived],
        limit=wanted.limit,
        cursor=wanted.cursor,
    )
    page = await service.runtime.sessions(query)
    views = [await build_entry(service, info) for info in page.sessions]
    return SessionPageView(sessions=views, cursor=page.cursor)


async def build_entry(service: Service, info: SessionInfo) -> SessionView:
    """Build the entry of a session in a list."""
    asks, words = list[Any](), ""
    with suppress(NotFound):  # it was deleted meanwhile
        asks = await service.open_questions.find(service.runtime.log, info)
        words = await service.first_words.find(service.runtime.log, info)
    return SessionView.from_info(info, asks=len(asks), first_words=words)


@router.get("/search")
async def search_sessions(
    service: CurrentService,
    token: Viewer,
    q: Annotated[str, Query(min_length=1, max_length=500)],
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> list[SearchHitView]:
    """Find the messages, replies and outputs of all sessions that have all words of `q`, the best first."""
    views: list[SearchHitView] = []
    for hit in await service.runtime.search(q, limit):
        with suppress(NotFound):  # it was deleted meanwhile
            info = await service.runtime.log.get_info(hit.session_id)
            if info.agent != RESPONSES_AGENT:
                snippet = mark_words(hit.snippet, q)
                views.append(SearchHitView(session_id=info.id, name=info.name, seq=hit.seq, snippet=snippet))
    return views


@router.get("/sessions/stream", response_class=Response, responses=SSE_RESPONSES)
async def stream_sessions(service: CurrentService, token: Viewer) -> Any:
    """Stream each change of the list: `session`, `removed` and `questions`. Nothing is sent again after a break."""
    return SessionListStream(service)


class SessionListStream(PieceStream):
    """Sends what changes in the list of sessions."""

    def __init__(self, service: Service) -> None:
        self._changes = ListChanges(service.runtime, service.open_questions, service.first_words)
        self._listeners = service.list_streams
        super().__init__(service.streams, self._changes.render())

    async def _send_pieces(self) -> None:
        self._listeners.add(self._changes)
        try:
            await super()._send_pieces()
        finally:
            self._listeners.discard(self._changes)

    def stop(self) -> None:
        """End the stream."""
        self._changes.close()
