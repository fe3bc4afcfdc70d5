"""Responses that are being written: one task asks the model, and any number of clients follow the events.

A stored response belongs to the server: its task goes on when all clients leave, and the next start asks again for
what a crash left unfinished. A response that is not stored ends with its client.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress

from msgspec import Struct
from msgspec.structs import replace

from treadle import Runtime
from treadle.dialects.responses_events import ResponseEvent, ResponsesDialect
from treadle.dialects.responses_objects import ResponseObject
from treadle.dialects.responses_requests import (
    ENCRYPTED_REASONING,
    ConversationReader,
    Item,
    build_responses_request,
    read_tool_table,
)
from treadle.errors import ClaimLost, ModelError, NotFound, StoreError, TreadleError
from treadle.events import Custom, ReasoningDelta, TextDelta
from treadle.messages import Reply, Request
from treadle.models.base import Model
from treadle.server.agent_responses import AgentResponse, AgentResponses
from treadle.server.event_feed import EventFeed
from treadle.server.stored_responses import (
    OUTPUT,
    ClaimedTurn,
    OutputRecord,
    Piece,
    ResponseSession,
    ResponseStore,
    StoredTurn,
    build_fact,
    end_output,
    format_id,
    replay_output,
)
from treadle.server.tokens import Token

_logger = logging.getLogger("treadle.server")
RECOVER_SECONDS = 2.0
_ERROR_CODES = {
    "overloaded": "rate_limit_exceeded",
    "quota": "insufficient_quota",
    "too_long": "context_length_exceeded",
    "bad_request": "invalid_prompt",
    "content_filter": "content_filter",
}


class LiveResponse(EventFeed):
    """A bare model's response that is being written, with all its events so far."""

    def __init__(self, dialect: ResponsesDialect) -> None:
        super().__init__(dialect)
        self.opening = len(self.events)
        """How many events come before the model says anything."""
        self.pieces: list[Piece] = []
        self.is_frozen = self.is_cancelled_here = False
        self.task: asyncio.Task[None] | None = None

    def add_delta(self, event: ReasoningDelta | TextDelta) -> None:
        """Show a piece of the reply, unless its end is being stored."""
        if self.is_frozen:
            return
        self.pieces.append(("text" if isinstance(event, TextDelta) else "reasoning", len(event.text)))
        self.add(self.dialect.feed(event))

    def build_partial(self) -> Reply:
        """What was shown of the reply so far."""
        reasoning, text = self.dialect.read_shown()
        return Reply(text, reasoning)

    def end(self, output: OutputRecord | None) -> None:
        """Show the end. Without an output the response goes on elsewhere, and only this stream ends."""
        if not self.is_over:
            self.is_over = True
            self.add(end_output(self.dialect, output) if output is not None else ())

    async def wait_for_reply(self) -> None:
        """Wait until the model says something, or until the end."""
        while not self.is_over and len(self.events) == self.opening:
            await self.wait_for_change()


class BareResponse(Struct):
    """A stored response of a bare model."""

    runs: ResponseRuns
    stored: ResponseSession
    turn: StoredTurn

    @property
    def items(self) -> list[Item]:
        return self.turn.items

    @property
    def is_background(self) -> bool:
        return self.turn.record is not None and bool(self.turn.record.body.background)

    async def read(self, include: Sequence[str] = ()) -> ResponseObject:
        live = await self.runs.find_live(self.stored, self.turn)
        if live is not None:
            return live.response
        dialect = self.stored.open_dialect(self.turn, wants_state=ENCRYPTED_REASONING in include)
        if self.turn.output is not None:
            replay_output(dialect, self.turn.output)
        return dialect.response

    def follow(self, after: int) -> AsyncGenerator[list[ResponseEvent]]:
        return self.runs.follow(self.stored, self.turn, after)

    async def cancel(self, by: str) -> None:
        if self.turn.output is None:
            await self.runs.cancel(self.stored, self.turn)

    async def delete(self, by: str) -> None:
        await self.cancel(by)
        await self.runs.store.delete_response(self.stored, self.turn)


class ResponseRuns:
    """The responses that this process writes."""

    def __init__(self, runtime: Runtime, find_model: Callable[[str], Model], agents: AgentResponses) -> None:
        self.store, self.agents = ResponseStore(runtime), agents
        self._runtime, self._find_model = runtime, find_model
        self._live: dict[str, LiveResponse] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def find(self, response_id: str, token: Token) -> BareResponse | AgentResponse:
        """Find a stored response by its id. Raises `NotFound`."""
        try:
            return BareResponse(self, *await self.store.find_turn(response_id, token))
        except NotFound:
            found = await self.agents.find(response_id, token) if response_id.startswith("resp_") else None
            if found is None:
                raise
            return found

    def start(self, live: LiveResponse, model: Model, request: Request, claimed: ClaimedTurn | None) -> None:
        """Ask a model for a response. With a claim, its end is stored before anyone sees it."""
        if claimed is not None:
            self._live[live.dialect.response.id] = live
        live.task = asyncio.create_task(self._write(live, model, request, claimed))
        self._keep(live.task)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def recover(self) -> None:
        """Ask again for every response whose process has gone."""
        with suppress(StoreError):
            while (claim := await self.store.claim()) is not None:
                stored = await self.store.load_session(claim.session_id)
                if (turn := stored.unfinished) is None:
                    await self._runtime.log.release(claim, None)
                else:
                    await self._restart(stored, turn, ClaimedTurn(claim, turn.seq))

    def recover_later(self) -> None:
        """Start to recover, without waiting for it. On a shared store this goes on, because other nodes may die."""
        self._keep(asyncio.create_task(self._keep_recovering()))

    async def _keep_recovering(self) -> None:
        await self.recover()
        while self._runtime.log.is_shared:
            await asyncio.sleep(RECOVER_SECONDS)
            if not self._runtime.coordinator.is_closed:
                await self.recover()

    async def find_live(self, stored: ResponseSession, turn: StoredTurn) -> LiveResponse | None:
        """The response if this process writes it, or can take it over. None if it ended, or another process has it."""
        live = self._live.get(format_id("resp", stored.id, turn.seq))
        if live is not None or turn.output is not None:
            return live
        claim = await self.store.claim(stored.id)
        if claim is None:
            return None
        fresh = await self.store.load_session(stored.id)
        turn.output = fresh.turns[turn.seq].output
        if turn.output is not None:  # it ended after the caller read it
            await self._runtime.log.release(claim, None)
            return None
        return await self._restart(fresh, turn, ClaimedTurn(claim, turn.seq))

    async def _restart(self, stored: ResponseSession, turn: StoredTurn, claimed: ClaimedTurn) -> LiveResponse:
        live = LiveResponse(stored.open_dialect(turn))
        try:
            request = build_request(stored, turn)
            self.start(live, self._find_model(live.dialect.response.model), request, claimed)
        except TreadleError as error:
            live.failure = error
            await self._finish(live, self._describe_failure(live, claimed, error), claimed)
        return live

    async def follow(
        self, stored: ResponseSession, turn: StoredTurn, after: int
    ) -> AsyncGenerator[list[ResponseEvent]]:
        """Yield the events of a stored response after a number, up to its end, whoever writes it."""
        live = await self.find_live(stored, turn)
        if live is not None:
            async with aclosing(live.follow(after)) as events:
                async for fresh in events:
                    yield fresh
            return
        if turn.output is None:
            turn = await self._wait_elsewhere(stored, turn)
        if turn.output is not None:
            yield replay_output(stored.open_dialect(turn), turn.output)[after + 1 :]

    async def _wait_elsewhere(self, stored: ResponseSession, turn: StoredTurn) -> StoredTurn:
        """Wait until another process has stored the end of a response."""
        watch = self._runtime.log.watch(stored.id, stored.head)
        try:
            async for fact in watch:
                if isinstance(fact, Custom) and fact.name == OUTPUT:
                    break
        finally:
            watch.close()
        return (await self.store.load_session(stored.id)).turns[turn.seq]

    async def cancel(self, stored: ResponseSession, turn: StoredTurn) -> None:
        """End a response now. The first end that is stored counts."""
        live = self._live.get(format_id("resp", stored.id, turn.seq))
        output = OutputRecord(turn.seq, int(time.time()), status="cancelled")
        if live is not None:
            live.is_frozen = live.is_cancelled_here = True
            output = replace(output, reply=live.build_partial(), pieces=live.pieces)
        try:
            await self.store.add_facts(stored, build_fact(OUTPUT, output))
        finally:
            if live is not None:
                live.is_frozen = False
        if live is not None and live.task is not None:
            live.task.cancel()
            await asyncio.wait([live.task])

    async def close(self) -> None:
        """Stop all tasks. What is unfinished is asked again at the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.agents.close()

    # ── writing one response ─────────────────────────────────────────────────────────────────────────

    async def _write(self, live: LiveResponse, model: Model, request: Request, claimed: ClaimedTurn | None) -> None:
        renewing = asyncio.create_task(self._renew(claimed)) if claimed is not None else None
        watching: asyncio.Task[None] | None = None
        if claimed is not None and self._runtime.log.is_shared:
            watching = asyncio.create_task(self._follow_cancel(live, claimed))
        try:
            output = await self._ask(live, model, request, claimed)
            if watching is not None:
                watching.cancel()
            await self._finish(live, output, claimed)
        except asyncio.CancelledError:
            await self._leave(live, claimed)
            raise
        except (ClaimLost, NotFound):  # another process goes on with it, or it was deleted
            self._drop(live)
            live.end(None)
        finally:
            for helper in filter(None, (renewing, watching)):
                helper.cancel()

    async def _follow_cancel(self, live: LiveResponse, claimed: ClaimedTurn) -> None:
        """Stop the model when another node has stored that the response is cancelled."""
        watch = self._runtime.log.watch(claimed.claim.session_id, claimed.seq)
        try:
            async for fact in watch:
                is_end = isinstance(fact, Custom) and fact.name == OUTPUT
                if is_end and live.task is not None and not live.is_cancelled_here:
                    live.task.cancel()
                    return
        finally:
            watch.close()

    async def _ask(
        self, live: LiveResponse, model: Model, request: Request, claimed: ClaimedTurn | None
    ) -> OutputRecord:
        try:
            async with aclosing(model.stream(request)) as events:
                async for event in events:
                    if isinstance(event, ReasoningDelta | TextDelta):
                        live.add_delta(event)
                    elif isinstance(event, Reply):
                        return self._build_output(live, event, claimed)
            raise ModelError(f"{model.name} ended its stream without a reply", kind="network", retryable=True)
        except TreadleError as error:
            live.failure = error
            return self._describe_failure(live, claimed, error)
        except Exception as error:  # nobody else would end the response
            _logger.exception("a response failed with an internal error")
            live.failure = ModelError("an internal error; nothing that was recorded is lost")
            return self._describe_failure(live, claimed, live.failure or error)

    def _build_output(self, live: LiveResponse, reply: Reply, claimed: ClaimedTurn | None) -> OutputRecord:
        """The end of a response with a reply. It keeps the text that was shown, so that the lengths fit."""
        shown, seq = live.build_partial(), claimed.seq if claimed is not None else 0
        if not reply.text.startswith(shown.text):
            reply = replace(reply, text=shown.text)
        if not reply.reasoning.startswith(shown.reasoning):
            reply = replace(reply, reasoning=shown.reasoning)
        return OutputRecord(seq, int(time.time()), reply, live.pieces)

    def _describe_failure(self, live: LiveResponse, claimed: ClaimedTurn | None, error: Exception) -> OutputRecord:
        code = _ERROR_CODES.get(error.kind, "server_error") if isinstance(error, ModelError) else "server_error"
        seq = claimed.seq if claimed is not None else 0
        return OutputRecord(seq, int(time.time()), live.build_partial(), live.pieces, "failed", code, str(error))

    async def _finish(self, live: LiveResponse, output: OutputRecord, claimed: ClaimedTurn | None) -> None:
        """Store the end, and then show it."""
        if claimed is not None:
            output = await self.store.record_output(claimed, output)
            await self._runtime.log.release(claimed.claim, None)
            self._drop(live)
        live.end(output)

    async def _leave(self, live: LiveResponse, claimed: ClaimedTurn | None) -> None:
        """Stop writing: the response was cancelled, the server stops, or the only client has left."""
        output: OutputRecord | None = None
        if claimed is not None:
            with suppress(TreadleError):
                stored = await self.store.load_session(claimed.claim.session_id)
                output = stored.turns[claimed.seq].output
                wake_at = self._runtime.log.now() if output is None else None
                await self._runtime.log.release(claimed.claim, None, wake_at)
        self._drop(live)
        live.end(output)

    def _drop(self, live: LiveResponse) -> None:
        self._live.pop(live.dialect.response.id, None)

    async def _renew(self, claimed: ClaimedTurn) -> None:
        while True:
            await asyncio.sleep(claimed.claim.ttl / 3)
            try:
                await self._runtime.log.renew(claimed.claim)
            except StoreError as error:  # the store may work again next time
                _logger.warning("a claim could not be renewed: %s", error)
            except (ClaimLost, NotFound):
                return


def build_request(stored: ResponseSession, turn: StoredTurn) -> Request:
    """Build the model call of a stored request, with everything before it in its session."""
    record = turn.record
    assert record is not None
    turns = stored.select_turns(turn.seq)
    tools = read_tool_table(record.body, [item for one in turns for item in one.items])
    conversation = ConversationReader(tools)
    stored.read_into(conversation, turn.seq)
    return build_responses_request(record.body, conversation, tools)
