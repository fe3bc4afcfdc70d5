"""Links to sessions that another process runs, over a shared store or over the HTTP interface of a server."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from treadle import Answer, ApprovalRequested, InputRequested, Session
from treadle.cli.find_session import MIN_PREFIX
from treadle.errors import BadInput, Conflict, NotFound, TreadleError
from treadle.events import AnyFact, Event, Fact, decode_event, decode_fact

if TYPE_CHECKING:
    import aiohttp

RETRY_SECONDS = 1.0
"""Seconds to wait before reconnecting."""


class ServerUnreachable(TreadleError):
    """The server does not answer, or refuses the request."""


class SessionLink(Protocol):
    """The operations on a session of another process. Closing the link never stops a run.

    The link calls `on_notice` with messages for the user about the connection.
    """

    session_id: str
    on_notice: Callable[[str], None]

    async def read_facts(self) -> list[AnyFact]: ...
    def watch_events(self, after: int) -> AsyncIterator[Event]: ...
    async def send(self, text: str) -> None: ...
    async def answer(self, question: ApprovalRequested | InputRequested, answer: Answer) -> None: ...
    async def cancel(self) -> None: ...


class StoreLink:
    """A link over the store. It delivers every fact. Live text stays in the process that runs the session."""

    def __init__(self, session: Session) -> None:
        self.session_id, self._session = session.id, session
        self.on_notice: Callable[[str], None] = lambda text: None

    async def read_facts(self) -> list[AnyFact]:
        return await self._session.facts()

    async def watch_events(self, after: int) -> AsyncGenerator[Event]:
        watch = self._session.watch(after)
        try:
            async for event in watch:
                yield event
        finally:
            watch.close()

    async def send(self, text: str) -> None:
        await self._session.send(text)

    async def answer(self, question: ApprovalRequested | InputRequested, answer: Answer) -> None:
        if isinstance(question, ApprovalRequested):
            await self._session.approve(question.call_id, answer, digest=question.digest)
        else:
            await self._session.answer(question.call_id, *answer.answers)

    async def cancel(self) -> None:
        await self._session.cancel(why="stopped from an attached terminal")


class HttpLink:
    """A link over a server, with live text. After a lost connection it resumes at the last event."""

    def __init__(self, client: aiohttp.ClientSession, url: str, session_id: str) -> None:
        self.session_id, self._client = session_id, client
        self.on_notice: Callable[[str], None] = lambda text: None
        self._base = f"{url.rstrip('/')}/v1/sessions/{session_id}"
        self._lost = False

    async def read_facts(self) -> list[AnyFact]:
        async with self._client.get(f"{self._base}/events", params={"follow": "false"}) as response:
            await _check(response)
            return [decode_fact(json.dumps(one)) for one in await response.json()]

    async def watch_events(self, after: int) -> AsyncGenerator[Event]:
        import aiohttp

        while True:
            with suppress(aiohttp.ClientError, TimeoutError):
                async for event in self._stream(after):
                    after = event.seq if isinstance(event, Fact) else after
                    yield event
            if not self._lost:
                self._lost = True
                self.on_notice("the server is out of reach; trying again …")
            await asyncio.sleep(RETRY_SECONDS)

    async def _stream(self, after: int) -> AsyncGenerator[Event]:
        async with self._client.get(f"{self._base}/events", params={"after": str(after)}) as response:
            await _check(response)
            if self._lost:
                self._lost = False
                self.on_notice("the server is back")
            async for line in response.content:
                if line.startswith(b"data:"):
                    yield decode_event(line[5:].strip())

    async def send(self, text: str) -> None:
        """Send a message and wait until it is stored. The event stream reports what happens next."""
        await self._post("messages?wait=0", {"content": text})

    async def answer(self, question: ApprovalRequested | InputRequested, answer: Answer) -> None:
        if isinstance(question, InputRequested):
            await self._post(f"answers/{question.call_id}", {"answers": list(answer.answers)})
            return
        body = {"decision": answer.decision, "scope": answer.scope, "comment": answer.comment}
        await self._post(f"approvals/{question.call_id}", {**body, "digest": question.digest})

    async def cancel(self) -> None:
        await self._post("cancel", {})

    async def _post(self, path: str, body: dict[str, Any]) -> None:
        import aiohttp

        try:
            async with self._client.post(f"{self._base}/{path}", json=body) as response:
                await _check(response)
                await response.read()
        except (aiohttp.ClientError, TimeoutError):
            raise ServerUnreachable("the server is out of reach, so it may not have heard this; try again") from None


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status < 400:
        return
    try:
        message = (await response.json())["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = f"the server answered {response.status}"
    kinds: dict[int, type[TreadleError]] = {404: NotFound, 409: Conflict, 400: BadInput, 422: BadInput}
    raise kinds.get(response.status, ServerUnreachable)(str(message))


@asynccontextmanager
async def _client(url: str, token_file: str) -> AsyncGenerator[aiohttp.ClientSession]:
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
    headers = {"authorization": f"Bearer {token}"} if (token := _token(token_file)) else {}
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as client:
        try:
            yield client
        except aiohttp.ClientConnectorError as error:
            why = f"{error.strerror or 'nothing answers'}; is `treadle serve` running there?"
            raise ServerUnreachable(f"{url} cannot be reached: {why}") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ServerUnreachable(f"{url} cannot be reached: {error}") from None


async def post_json(url: str, path: str, body: dict[str, Any], token_file: str) -> Any:
    """Post one request to a server and return its response."""
    async with _client(url, token_file) as client, client.post(f"{url.rstrip('/')}{path}", json=body) as response:
        await _check(response)
        return await response.json()


async def _find_session_ids(client: aiohttp.ClientSession, url: str, reference: str) -> list[str]:
    """Find the ids of the sessions that match a reference."""
    found: list[str] = []
    asked = {"limit": "200"}
    while True:
        async with client.get(f"{url.rstrip('/')}/v1/sessions", params=asked) as response:
            await _check(response)
            page = await response.json()
        for one in page["sessions"]:
            if one["id"] == reference:
                return [reference]
            if one.get("name") == reference or (len(reference) >= MIN_PREFIX and one["id"].startswith(reference)):
                found.append(one["id"])
        if not page.get("cursor"):
            return found
        asked["cursor"] = page["cursor"]


@asynccontextmanager
async def open_http_link(url: str, reference: str, token_file: str) -> AsyncGenerator[HttpLink]:
    """Open a link to a session of a server. `reference` is its id, the start of its id, or its name."""
    async with _client(url, token_file) as client:
        found = await _find_session_ids(client, url, reference)
        if len(found) > 1:
            raise BadInput(f"{reference!r} could be {len(found)} sessions; write more of an id")
        yield HttpLink(client, url, found[0] if found else reference)


def _token(name: str) -> str:
    """Read the server's token from the environment, or from the file that the server created."""
    file = Path(name).expanduser()
    if value := os.environ.get("TREADLE_TOKEN", "").strip():
        return value
    try:
        text = file.read_text("utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file} cannot be read: {error}") from None
    return str(json.loads(text)[0]["value"]) if text.startswith("[") else text
