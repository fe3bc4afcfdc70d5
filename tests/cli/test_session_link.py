"""A terminal attached to a server that comes and goes."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from tests.kit.terminal import Place, wait_until
from treadle import ApprovalRequested
from treadle.events import (
    AnyFact,
    CallFinished,
    Limits,
    ModelFailed,
    RunStarted,
    SessionCreated,
    TextDelta,
    serialize_event,
)

SESSION = "5" * 32


class Wobbly:
    """Just enough of a server for one session. While it is down, every connection breaks."""

    def __init__(self, *facts: AnyFact) -> None:
        self.facts, self.posted = list(facts), list[tuple[str, dict[str, object]]]()
        self.changed = asyncio.Event()
        self.down = False
        self.live_text = ""
        self._streams = list[web.Request]()

    def fail(self) -> None:
        """Go down: no connection is left, and none is answered."""
        self.down = True
        for request in self._streams:
            self._abort(request)

    def _abort(self, request: web.Request) -> None:
        if request.transport is not None:
            request.transport.abort()

    def add(self, fact: AnyFact) -> None:
        self.facts.append(fact)
        self.changed.set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.down:
            self._abort(request)
            return web.Response()
        if request.method == "POST":
            self.posted.append((request.path.rpartition(SESSION + "/")[2], await request.json()))
            return web.json_response({})
        if request.path == "/v1/sessions":
            return web.json_response({"sessions": [{"id": SESSION, "name": "job"}], "cursor": ""})
        if "follow" in request.query:
            return web.json_response([json.loads(serialize_event(fact)) for fact in self.facts])
        return await self._stream(request, int(request.query["after"]))

    async def _stream(self, request: web.Request, after: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        self._streams.append(request)
        try:
            while True:
                self.changed.clear()
                for fact in [fact for fact in self.facts if fact.seq > after]:
                    await response.write(b"data: " + serialize_event(fact) + b"\n\n")
                    after = fact.seq
                if self.live_text:
                    await response.write(b"data: " + serialize_event(TextDelta(text=self.live_text)) + b"\n\n")
                await self.changed.wait()
        finally:
            self._streams.remove(request)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        runner = web.ServerRunner(web.Server(self.handle), handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


async def test_a_server_that_goes_down_gives_a_note_and_nothing_typed_is_lost(place: Place) -> None:
    server = Wobbly(SessionCreated(seq=1, session_id=SESSION))
    async with server.serve() as url, place.screen("attach", "job", "--url", url) as screen:
        await screen.until("›")
        server.fail()
        await screen.until("the server is unreachable; trying again …")
        screen.type("are you there?\r")
        await screen.until("may not have received this")
        await screen.until("› are you there?")
        server.down = False
        await screen.until("the server is reachable again")
        screen.type("\r")
        await wait_until(lambda: bool(server.posted), "the message is sent")
        assert await screen.leave() == 0
    assert server.posted == [("messages", {"content": "are you there?"})]


async def test_an_answer_that_did_not_arrive_is_asked_for_again(place: Place) -> None:
    asked = ApprovalRequested(
        seq=2, call_id="c", tool="shell", arguments={"command": "make"}, safety="caution", why="so"
    )
    server = Wobbly(SessionCreated(seq=1, session_id=SESSION, workspace=str(place.work)), asked)
    async with server.serve() as url, place.screen("attach", "job", "--url", url) as screen:
        await screen.until("Ctrl-C leaves")
        server.fail()
        screen.type("nnot now\r")
        await screen.until("may not have received this")
        server.down = False
        await screen.until("the server is reachable again")
        await screen.until("Ctrl-C leaves")
        screen.type("nnever\r")
        await wait_until(lambda: bool(server.posted), "the answer is sent")
        server.add(CallFinished(seq=3, call_id="c", tool="shell", status="denied", output="Denied."))
        await screen.until("· denied")
        assert await screen.leave() == 0
    body = {"decision": "deny", "scope": "call", "comment": "never", "digest": asked.digest}
    assert server.posted == [("approvals/c", body)]


async def test_the_note_of_leaving_stands_below_an_unfinished_reply(place: Place) -> None:
    server = Wobbly(SessionCreated(seq=1, session_id=SESSION))
    server.live_text = "half a sen"
    async with server.serve() as url, place.screen("attach", "job", "--url", url) as screen:
        await screen.until("half a sen")
        assert await screen.leave() == 0
    assert screen.text.endswith(f"half a sen\n\ndetached; session {SESSION[:12]}")


async def test_enter_ends_the_wait_for_a_provider_over_a_server(place: Place) -> None:
    failed = ModelFailed(seq=3, at=time.time(), kind="overloaded", message="busy", retryable=True, wait=300, status=429)
    run = RunStarted(seq=2, at=time.time(), run_id="run_1", limits=Limits())
    server = Wobbly(SessionCreated(seq=1, session_id=SESSION), run, failed)
    async with server.serve() as url, place.screen("attach", "job", "--url", url) as screen:
        await screen.until("Enter: now, /stop: stop")
        screen.type("\r")
        await wait_until(lambda: bool(server.posted), "the retry is asked for")
        assert await screen.leave() == 0
    assert server.posted == [("retry", {})]
