"""Sessions that another process runs, over the HTTP interface of a server. A shared store needs no link."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from treadle import Answer
from treadle.app.settings import data_folder
from treadle.cli.find_session import MIN_PREFIX
from treadle.errors import BadInput, Conflict, NotFound, TreadleError
from treadle.events import AnyFact, Event, Fact, decode_event, decode_fact
from treadle.log.base import LAST

if TYPE_CHECKING:
    import aiohttp

RETRY_SECONDS = 1.0
"""Seconds to wait before reconnecting."""
POLL_SECONDS = 0.2
"""Seconds between two questions for the state of a model."""


class ServerUnreachable(TreadleError):
    """The server does not answer, or refuses the request."""


class SessionLink(Protocol):
    """What a terminal needs of a session of another process. A `Session` on a shared store has it too.

    Over the store it delivers every fact. Live text stays in the process that runs the session.
    """

    id: str

    async def facts(self) -> list[AnyFact]: ...
    def watch(self, after: int) -> AsyncIterator[Event]: ...
    async def send(self, content: str) -> object: ...
    async def approve(self, call_id: str, answer: Answer, *, digest: str) -> None: ...
    async def answer(self, call_id: str, *answers: str) -> None: ...
    async def cancel(self, *, why: str) -> object: ...
    async def retry_now(self) -> None: ...


class HttpSession:
    """A session of a server, with live text. After a lost connection it resumes at the last event.

    It calls `on_notice` with messages for the user about the connection.
    """

    def __init__(self, client: aiohttp.ClientSession, url: str, session_id: str) -> None:
        self.id, self._client = session_id, client
        self.on_notice: Callable[[str], None] = lambda text: None
        self._base = f"{url.rstrip('/')}/v1/sessions/{session_id}"
        self._is_lost = False

    async def facts(self) -> list[AnyFact]:
        async with self._client.get(f"{self._base}/events", params={"follow": "false"}) as response:
            await _check_response(response)
            return [decode_fact(json.dumps(one)) for one in await response.json()]

    async def watch(self, after: int) -> AsyncGenerator[Event]:
        import aiohttp

        while True:
            with suppress(aiohttp.ClientError, TimeoutError):
                async for event in self._stream(after):
                    after = event.seq if isinstance(event, Fact) else after
                    yield event
            if not self._is_lost:
                self._is_lost = True
                self.on_notice("the server is unreachable; trying again …")
            await asyncio.sleep(RETRY_SECONDS)

    async def _stream(self, after: int) -> AsyncGenerator[Event]:
        async with self._client.get(f"{self._base}/events", params={"after": str(after)}) as response:
            await _check_response(response)
            if self._is_lost:
                self._is_lost = False
                self.on_notice("the server is reachable again")
            async for line in response.content:
                if line.startswith(b"data:"):
                    yield decode_event(line[5:].strip())

    async def send(self, content: str) -> None:
        """Send a message and wait until it is stored. The event stream reports what happens next."""
        await self._post("messages?wait=0", {"content": content})

    async def approve(self, call_id: str, answer: Answer, *, digest: str) -> None:
        body = {"decision": answer.decision, "scope": answer.scope, "comment": answer.comment, "digest": digest}
        await self._post(f"approvals/{call_id}", body)

    async def answer(self, call_id: str, *answers: str) -> None:
        await self._post(f"answers/{call_id}", {"answers": list(answers)})

    async def cancel(self, *, why: str) -> None:
        await self._post("cancel", {})

    async def retry_now(self) -> None:
        await self._post("retry", {})

    async def _post(self, path: str, body: dict[str, Any]) -> None:
        import aiohttp

        try:
            async with self._client.post(f"{self._base}/{path}", json=body) as response:
                await _check_response(response)
                await response.read()
        except (aiohttp.ClientError, TimeoutError):
            raise ServerUnreachable("the server is unreachable and may not have received this; try again") from None


async def _check_response(response: aiohttp.ClientResponse) -> None:
    if response.status < 400:
        return
    try:
        message = (await response.json())["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = f"the server answered with status {response.status}"
    kinds: dict[int, type[TreadleError]] = {404: NotFound, 409: Conflict, 400: BadInput, 422: BadInput}
    raise kinds.get(response.status, ServerUnreachable)(str(message))


def _read_token(token_file: str) -> str:
    """Read the token from the file that the server created."""
    file = Path(token_file).expanduser() if token_file else data_folder() / "tokens.json"
    try:
        text = file.read_text("utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file} cannot be read: {error}") from None
    return str(json.loads(text)[0]["value"]) if text.startswith("[") else text


@asynccontextmanager
async def _connect(url: str, token_file: str) -> AsyncGenerator[aiohttp.ClientSession]:
    import aiohttp

    token = os.environ.get("TREADLE_TOKEN", "").strip() or _read_token(token_file)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as client:
        try:
            yield client
        except aiohttp.ClientConnectorError as error:
            why = f"{error.strerror or 'no server answers'}; is `treadle serve` running there?"
            raise ServerUnreachable(f"{url} cannot be reached: {why}") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ServerUnreachable(f"{url} cannot be reached: {error}") from None


async def change_model(url: str, action: str, name: str, token_file: str) -> Any:
    """Load or unload a model on a server, and wait until that is done. Return its last state."""
    base = f"{url.rstrip('/')}/v1/models"
    async with _connect(url, token_file) as client:
        async with client.post(f"{base}/{action}", json={"model": name}) as response:
            await _check_response(response)
            model = await response.json()
        while model["state"] == "loading":
            await asyncio.sleep(POLL_SECONDS)
            async with client.get(f"{base}/{quote(model['id'])}") as response:
                await _check_response(response)
                model = await response.json()
        return model


@asynccontextmanager
async def open_http_session(url: str, reference: str, token_file: str) -> AsyncGenerator[HttpSession]:
    """Open a session of a server. `reference` is its id, the start of its id, its name, or `last`."""
    async with _connect(url, token_file) as client:
        found: list[str] = []
        params = {"limit": "200"}
        while reference not in found:
            async with client.get(f"{url.rstrip('/')}/v1/sessions", params=params) as response:
                await _check_response(response)
                page = await response.json()
            for one in page["sessions"]:
                is_prefix = len(reference) >= MIN_PREFIX and one["id"].startswith(reference)
                if is_prefix or reference in (one["id"], one.get("name")):
                    found.append(one["id"])
            if reference == LAST:  # the first in the list that no other session started
                found = [one["id"] for one in page["sessions"] if not one.get("parent")][:1]
            if not page.get("cursor") or (reference == LAST and found):
                break
            params["cursor"] = page["cursor"]
        if len(found) > 1 and reference not in found:
            raise BadInput(f"{reference!r} matches {len(found)} sessions; write more of the id")
        yield HttpSession(client, url, reference if reference in found or not found else found[0])
