"""Requests that create something once for each `Idempotency-Key`, on any node and after any restart."""

from __future__ import annotations

import hashlib
import hmac

from msgspec import Struct

from treadle.errors import NotFound
from treadle.events import Custom
from treadle.log.base import Log
from treadle.server.guard import Refusal
from treadle.server.tokens import Token

REQUEST_NOTE = "treadle.request"
"""The fact of a new session that says with which request it was created."""
_FIRST_FACTS = 4
"""The note is one of so many."""


class KeyedRequest(Struct, frozen=True):
    """A request to create a session. The id of the session follows from the token and the key."""

    session_id: str
    fingerprint: str

    def build_note(self) -> Custom:
        """Build the fact that tells this request from another one with the same key."""
        return Custom(name=REQUEST_NOTE, data=self.fingerprint)

    async def was_done(self, log: Log) -> bool:
        """Whether the session exists. Refuses another request with the same key."""
        try:
            facts = await log.read(self.session_id, limit=_FIRST_FACTS)
        except NotFound:
            return False
        notes = [fact.data for fact in facts if isinstance(fact, Custom) and fact.name == REQUEST_NOTE]
        if notes != [self.fingerprint]:
            raise build_key_reused("session")
        return True


async def identify_request(log: Log, token: Token, key: str, body: bytes) -> KeyedRequest:
    """Identify a request by its key, for one token. Nobody can guess the id of the session."""
    text = f"session|{token.id}|{key}".encode("utf-8", "replace")
    session_id = hmac.new(await log.get_approval_key(), text, hashlib.sha256).hexdigest()[:32]
    return KeyedRequest(session_id, hashlib.sha256(body).hexdigest())


def build_key_reused(what: str) -> Refusal:
    """The refusal of a request whose key belongs to another one."""
    return Refusal(
        409,
        "key_reused",
        f"Idempotency-Key: another {what} has this key already; it is kept, and nothing was added",
        f"send a new {what} with a new key",
        field="Idempotency-Key",
    )
