"""What changes in the list of sessions, as server-sent events. A client that reads slowly costs a set of ids."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import msgspec

from treadle import Runtime
from treadle.errors import NotFound
from treadle.events import ApprovalAnswered, ApprovalRequested, InputAnswered, InputRequested, RunFinished
from treadle.log.base import RESPONSES_AGENT, StoredFact
from treadle.server.first_words import FirstWords
from treadle.server.open_questions import OpenQuestions
from treadle.server.session_views import PendingQuestion, SessionView
from treadle.server.streams import SHUTDOWN_COMMENT, is_response_fact

STEP_SECONDS = 0.1
"""The least time between two events of one session."""
SECOND_LOOK_SECONDS = 0.5
"""After this time a running session is looked at again: that it waits, or is parked, is no fact."""
MAX_KNOWN = 10_000
"""Of how many sessions it is known which questions the client has."""
_ABOUT_QUESTIONS = (ApprovalRequested, ApprovalAnswered, InputRequested, InputAnswered, RunFinished)


class ListChanges:
    """Follows the facts of all sessions for one client, and renders the entries of those that changed."""

    def __init__(self, runtime: Runtime, questions: OpenQuestions, first_words: FirstWords) -> None:
        self._runtime, self._questions, self._first_words = runtime, questions, first_words
        self._watch = runtime.watch()
        self._changed: dict[str, bool] = {}  # with whether a fact was about questions
        self._removed: list[str] = []
        self._looks: dict[str, tuple[float, bytes]] = {}  # when to look again, and what was sent
        self._known: dict[str, tuple[str, ...]] = {}  # the questions that the client has
        self._woken = asyncio.Event()
        self._is_closed = False

    def close(self) -> None:
        """End the events."""
        self._is_closed = True
        self._watch.close()
        self._woken.set()

    def note_removed(self, session_id: str) -> None:
        """Tell the client that a session was deleted."""
        self._removed.append(session_id)
        self._woken.set()

    async def render(self) -> AsyncGenerator[bytes]:
        """Yield server-sent events until they are closed."""
        following = asyncio.create_task(self._follow())
        try:
            yield b""  # the status is sent before the first change
            while not self._is_closed:
                await self._wait()
                if data := await self._render_changes():
                    yield data
                await asyncio.sleep(STEP_SECONDS)
            yield SHUTDOWN_COMMENT
        finally:
            self.close()
            following.cancel()

    async def _follow(self) -> None:
        try:
            async for stored in self._watch:
                for one in (stored, *self._watch.ready()):
                    self._note(one)
                self._woken.set()
        finally:  # the store may have failed: the client connects again
            self.close()

    def _note(self, stored: StoredFact) -> None:
        if not is_response_fact(stored.fact):
            is_about = isinstance(stored.fact, _ABOUT_QUESTIONS)
            self._changed[stored.session_id] = is_about or self._changed.get(stored.session_id, False)

    async def _wait(self) -> None:
        """Wait for a change, or until it is time to look at a session again."""
        due = min((at for at, _ in self._looks.values()), default=None)
        with suppress(TimeoutError):
            async with asyncio.timeout(None if due is None else max(0.0, due - time.monotonic())):
                await self._woken.wait()
        self._woken.clear()

    async def _render_changes(self) -> bytes:
        removed, self._removed = self._removed, []
        changed, self._changed = self._changed, {}
        now = time.monotonic()
        again = {session_id: sent for session_id, (at, sent) in self._looks.items() if at <= now}
        for session_id in (*again, *changed):
            self._looks.pop(session_id, None)
        lines = [_encode("removed", {"id": session_id}) for session_id in removed]
        for session_id in {**again, **changed}:
            lines.append(await self._render_session(session_id, changed.get(session_id), again.get(session_id)))
        return b"".join(lines)

    async def _render_session(self, session_id: str, is_about: bool | None, sent: bytes | None) -> bytes:
        """Render a session that changed, or that is looked at again: then `sent` is what the client has."""
        try:
            info = await self._runtime.log.get_info(session_id)
            open_now = await self._questions.find(self._runtime.log, info)
            words = await self._first_words.find(self._runtime.log, info)
        except NotFound:
            self._known.pop(session_id, None)
            return b""
        if info.agent == RESPONSES_AGENT:
            return b""
        view = SessionView.from_info(info, asks=len(open_now), first_words=words).model_dump_json().encode()
        data = b"" if view == sent else b"event: session\ndata: %b\n\n" % view
        if info.status == "running" and is_about is not None:
            self._looks[session_id] = (time.monotonic() + SECOND_LOOK_SECONDS, view)
        ids, known = tuple(question.call_id for question in open_now), self._known.get(session_id)
        if ids != known and (is_about or known or ids):
            self._known[session_id] = ids
            if len(self._known) > MAX_KNOWN:
                del self._known[next(iter(self._known))]
            questions = [PendingQuestion.from_fact(session_id, question).model_dump() for question in open_now]
            data += _encode("questions", {"session_id": session_id, "questions": questions})
        return data


def _encode(event: str, data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.encode(), msgspec.json.encode(data))
