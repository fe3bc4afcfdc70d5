"""Change and take back messages that no run has taken yet."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field

from treadle.server.attachments import Attachment
from treadle.server.service import CurrentService, Sender, StrictBody
from treadle.server.sessions import NewMessage

router = APIRouter(prefix="/v1/sessions/{session_id}/messages/{message_id}", tags=["sessions"])


class EditedMessage(StrictBody):
    """What a queued message is replaced by."""

    content: str = ""
    attachments: list[Attachment] = Field(default_factory=list[Attachment], max_length=100)


@router.put("", status_code=204)
async def edit_message(
    service: CurrentService, token: Sender, session_id: str, message_id: str, body: EditedMessage
) -> None:
    """Change a message that no run has taken yet. 409 when one has."""
    parts = NewMessage(content=body.content, attachments=body.attachments).build_parts()
    session = await service.open_for_use(session_id, token)
    await session.edit_message(message_id, parts, by=token.name)


@router.delete("", status_code=204)
async def withdraw_message(service: CurrentService, token: Sender, session_id: str, message_id: str) -> None:
    """Take back a message that no run has taken yet. 409 when one has."""
    session = await service.open_for_use(session_id, token)
    await session.withdraw_message(message_id, by=token.name)
