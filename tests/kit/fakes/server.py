"""The base of the strict fakes: a small HTTP server over real sockets that can misbehave on purpose."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from treadle.messages import Reply

FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
Script = Sequence["Reply | Odd"] | Callable[[dict[str, Any]], "Reply | Odd"]


@dataclass
class Odd:
    """A reply that arrives in an odd way, or an answer that is none.

    `raw` is the exact body instead of `reply`'s. After `stall_after` bytes of the body nothing comes any more,
    after `reset_after` the connection is reset, after `end_after` it is closed without an error. The bytes
    after `held_after` wait until `held` is set; at 0 the whole response waits.
    """

    reply: Reply = field(default_factory=lambda: Reply(text="done"))
    raw: bytes | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "text/event-stream"
    headers_late: float = 0.0
    split: int = 0
    pause: float = 0.0
    stall_after: int | None = None
    reset_after: int | None = None
    end_after: int | None = None
    end_late: float = 0.0
    held: asyncio.Event | None = None
    held_after: int = 0


def status(code: int, message: str = "no", **headers: str) -> Odd:
    """An error answer with a provider-like body; `retry_after="2"` becomes the header Retry-After."""
    body = json.dumps({"error": {"message": message, "type": "error", "code": None}}).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Odd(raw=body, status=code, headers=named, content_type="application/json")


@dataclass
class Seen:
    """One request as it came in."""

    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.raw)


class Strict:
    """A fake provider: answers from a script, and with 400 whatever the real one would not accept.

    A script is a list (the last entry goes on for ever) or a function of the request's body. `rejected` tells
    what was refused and why, `seen` all requests, `hung_up` is set when a client leaves in mid-reply.
    """

    path: ClassVar[str]
    prefix: ClassVar[str] = "/v1"

    def __init__(self, script: Script = (), *, key: str = "sk-test") -> None:
        self._script = script
        self._key = key
        self._next = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.seen: list[Seen] = []
        self.rejected: list[str] = []
        self.connections = 0
        self.hung_up = asyncio.Event()

    async def __aenter__(self) -> Strict:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        assert self._server is not None
        return self._server.sockets[0].getsockname()[1]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.prefix}"

    # --- what each protocol brings

    def problems(self, body: dict[str, Any]) -> list[str]:
        """Why the real provider would answer 400, or nothing."""
        raise NotImplementedError

    def render(self, reply: Reply, body: dict[str, Any]) -> bytes:
        """The response's body for a reply."""
        raise NotImplementedError

    def refusal(self, code: int, message: str) -> bytes:
        return json.dumps({"error": {"message": message, "type": "invalid_request_error"}}).encode()

    def is_authorised(self, headers: dict[str, str]) -> bool:
        return headers.get("authorization") == f"Bearer {self._key}"

    def document(self, method: str, path: str) -> Any:
        """The document at another address, or None for 404."""
        return None

    # --- the server

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                first, *rest = head.decode("latin-1").split("\r\n")
                method, path, _ = first.split(" ", 2)
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in rest) if k}
                raw = await reader.readexactly(int(headers.get("content-length", 0)))
                self.seen.append(Seen(path, headers, raw))
                answer = self._answer(method, path, headers, raw)
                if not await self._send(answer, reader, writer):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _answer(self, method: str, path: str, headers: dict[str, str], raw: bytes) -> Odd:
        def refuse(code: int, message: str) -> Odd:
            self.rejected.append(message)
            return Odd(raw=self.refusal(code, message), status=code, content_type="application/json")

        if path != self.prefix + self.path:
            found = self.document(method, path)
            if found is not None:
                return Odd(raw=json.dumps(found).encode(), content_type="application/json")
            return refuse(404, f"no such address: {path}")
        if not self.is_authorised(headers):
            return refuse(401, "wrong or no key")
        try:
            body = json.loads(raw)
        except ValueError as error:
            return refuse(400, f"not JSON: {error}")
        if wrong := self.problems(body):
            return refuse(400, "; ".join(wrong))
        item = self._pick(body)
        odd = item if isinstance(item, Odd) else Odd(item)
        if odd.raw is None:
            odd = Odd(**{**odd.__dict__, "raw": self.render(odd.reply, body)})
        return odd

    def _pick(self, body: dict[str, Any]) -> Reply | Odd:
        if callable(self._script):
            return self._script(body)
        if not self._script:
            return Reply(text="done")
        item = self._script[min(self._next, len(self._script) - 1)]
        self._next += 1
        return item

    async def _send(self, odd: Odd, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Send one answer; whether the connection can be used again."""
        body = odd.raw or b""
        if odd.headers_late:
            await asyncio.sleep(odd.headers_late)
        if odd.held is not None and not odd.held_after:
            await odd.held.wait()
        head = [f"HTTP/1.1 {odd.status} X", f"content-type: {odd.content_type}", "transfer-encoding: chunked"]
        head += [f"{name}: {value}" for name, value in odd.headers.items()]
        writer.write("\r\n".join([*head, "", ""]).encode())
        stops = [at for at in (odd.stall_after, odd.reset_after, odd.end_after) if at is not None]
        body = body[: min(stops)] if stops else body
        size = odd.split or max(len(body), 1)
        for start in range(0, len(body), size):
            piece = body[start : start + size]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            if odd.split or odd.pause:
                await writer.drain()
                await asyncio.sleep(odd.pause)
            if odd.held is not None and start < odd.held_after <= start + size:
                await odd.held.wait()
        if odd.stall_after is not None:
            await writer.drain()
            await reader.read()
            self.hung_up.set()
            return False
        if odd.reset_after is not None:
            await writer.drain()
            await asyncio.sleep(0.02)  # let the bytes leave: a reset overtakes them
            _reset(writer)
            return False
        if odd.end_after is not None:
            await writer.drain()
            return False
        if odd.end_late:
            await writer.drain()
            await asyncio.sleep(odd.end_late)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


def _reset(writer: asyncio.StreamWriter) -> None:
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def events(*items: Any, named: bool = False) -> bytes:
    """Server-sent events with JSON data; `named` gives each the `event:` line of its type."""
    out: list[str] = []
    for item in items:
        data = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False, separators=(",", ":"))
        name = f"event: {item['type']}\n" if named and isinstance(item, dict) else ""
        out.append(f"{name}data: {data}\n\n")
    return "".join(out).encode()


def pieces(text: str, size: int = 7) -> list[str]:
    """Text as a model would stream it."""
    return [text[start : start + size] for start in range(0, len(text), size)]


def unknown(where: str, value: dict[str, Any], allowed: set[str], required: set[str] = frozenset()) -> list[str]:  # type: ignore[assignment]
    """Complaints about fields that do not belong, or are missing."""
    wrong = [f"{where}: unknown field {name!r}" for name in value if name not in allowed]
    return wrong + [f"{where}: missing {name!r}" for name in required if value.get(name) is None]


def tool_problems(body: dict[str, Any], tools: list[dict[str, Any]] | None) -> list[str]:
    """The faults that OpenAI would refuse in the tools of a request. `tools` has the flat form of Responses."""
    if tools is None:
        return [f"{name}: only allowed with tools" for name in ("tool_choice", "parallel_tool_calls") if name in body]
    wrong = [] if tools else ["tools: must not be empty"]
    for tool in tools:
        wrong += unknown("tools", tool, {"type", "name", "description", "parameters", "strict"}, {"type", "name"})
        if tool.get("type") != "function" or not FUNCTION_NAME.fullmatch(tool.get("name") or ""):
            wrong.append(f"tools: bad tool {json.dumps(tool)[:80]}")
        if tool.get("parameters", {}).get("type", "object") != "object":
            wrong.append("tools: parameters must be an object's schema")
    names = [tool.get("name") for tool in tools]
    if len(set(names)) != len(names):
        wrong.append("tools: the same name twice")
    match body.get("tool_choice"):
        case None | "auto" | "none" | "required":
            pass
        case {"type": "function", "function": {"name": name}} | {"type": "function", "name": name} if name in names:
            pass
        case other:
            wrong.append(f"tool_choice: {other!r}")
    return wrong


def words(text: str) -> set[str]:
    return set(text.split())
