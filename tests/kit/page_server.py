"""A real `treadle serve` process with its web page, and a model whose stream a test controls."""

import asyncio
import json
import os
import re
import signal
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.server import Odd, events
from tests.kit.serve_process import TREADLE
from tests.kit.server import Client
from tests.kit.sessions import PATIENCE
from treadle.messages import Call, Reply

Line = str | Call | Reply | Odd


class LiveReply(Odd):
    """A reply that a test writes piece by piece.

    `began` is set when the model is asked, `left` when nobody reads any more.
    """

    def __init__(self) -> None:
        super().__init__(raw=b"")
        self.began, self.left = asyncio.Event(), asyncio.Event()
        self.pieces: asyncio.Queue[bytes] = asyncio.Queue()

    def write(self, text: str = "", *, reasoning: str = "") -> None:
        """Stream a piece of the text or of the reasoning."""
        delta = {"reasoning_content": reasoning} if reasoning else {"content": text}
        self.pieces.put_nowait(events(_build_chunk(delta)))

    def end(self) -> None:
        """End the reply. What was written so far is its text."""
        usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        last = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "script"}
        self.pieces.put_nowait(events(_build_chunk({}, "stop"), {**last, "choices": [], "usage": usage}, "[DONE]"))
        self.pieces.put_nowait(b"")

    async def wait_until_asked(self) -> None:
        await asyncio.wait_for(self.began.wait(), PATIENCE)


def _build_chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "script"}
    return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


class PageModel(StrictChat):
    """A provider that answers with the next line of its script, and with "done" when there is none."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[Line] = deque()
        self._calls = 0

    def script(self, *lines: Line) -> None:
        """Add replies: a text, a call of a tool, a whole reply, or one that the test writes."""
        self._lines.extend(lines)

    def hold(self) -> LiveReply:
        """Add a reply that the test writes piece by piece."""
        reply = LiveReply()
        self._lines.append(reply)
        return reply

    def _pick(self, body: dict[str, Any]) -> Reply | Odd:
        if str(body["messages"][-1]["content"]).endswith("Name:"):
            return Reply("Named by the model")  # after its first answer, a session without a name gets one
        match self._lines.popleft() if self._lines else "done":
            case str(text):
                return Reply(text)
            case Call() as call:
                return self._number_calls(Reply(calls=(call,), finish="calls"))
            case Reply() as reply:
                return self._number_calls(reply)
            case odd:
                return odd

    def _number_calls(self, reply: Reply) -> Reply:
        """Every call needs an id that no other call of the conversation has."""
        numbered = list[Call]()
        for call in reply.calls:
            self._calls += 1
            numbered.append(replace(call, id=call.id or f"call_{self._calls}"))
        return replace(reply, calls=tuple(numbered))

    async def _send(self, odd: Odd, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if not isinstance(odd, LiveReply):
            return await super()._send(odd, reader, writer)
        odd.began.set()
        head = ["HTTP/1.1 200 X", "content-type: text/event-stream", "transfer-encoding: chunked"]
        writer.write("\r\n".join([*head, "", ""]).encode())
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            while True:
                piece = asyncio.ensure_future(odd.pieces.get())
                await asyncio.wait((piece, leaving), return_when=asyncio.FIRST_COMPLETED)
                if leaving.done():
                    piece.cancel()
                    odd.left.set()
                    return False
                data = piece.result()
                writer.write(b"%x\r\n%b\r\n" % (len(data), data))
                await writer.drain()
                if not data:
                    return False
        finally:
            leaving.cancel()


class PageUser(NamedTuple):
    """Somebody with a token of the server."""

    name: str
    token: str
    rights: Sequence[str] = ("view", "send", "approve")


OWNER = PageUser("owner", "owner-secret-of-the-tests")
VIEWER = PageUser("viewer", "viewer-secret-of-the-tests", ("view",))
PHONE = PageUser("phone", "phone-secret-of-the-tests")


class PageServer:
    """`treadle serve` in a process of its own. It can be killed and started again on the same port."""

    def __init__(self, home: Path, model: PageModel, *options: str, users: Sequence[PageUser] = ()) -> None:
        self.home, self.model, self.options = home, model, options
        self.workspace = home / "work"
        self.workspace.mkdir(parents=True, exist_ok=True)
        self.base = ""
        self._port = "0"
        self._process: asyncio.subprocess.Process | None = None
        tokens = home / "tokens.json"
        known = (OWNER, VIEWER, PHONE, *users)
        listed = [{"name": one.name, "value": one.token, "rights": one.rights} for one in known]
        tokens.write_text(json.dumps(listed), "utf-8")
        tokens.chmod(0o600)

    @property
    def messages(self) -> str:
        """What the process wrote to its terminal."""
        return (self.home / "server.log").read_text("utf-8")

    @property
    def login_link(self) -> str:
        """The link that the server printed last. It works once."""
        return re.findall(r"\S+/login\?ticket=\S+", self.messages)[-1]

    async def start(self) -> None:
        """Start the process, on the port that it had before."""
        home, work = str(self.home), str(self.workspace)
        command = [str(TREADLE), "serve", "--port", self._port, "--allow-root", "--store", f"{home}/store.db"]
        command += ["--workspace", work, "--root", work, "--token-file", f"{home}/tokens.json", *self.options]
        command += ["--model", "script", "--base-url", self.model.base_url, "--api-key-env", "PROVIDER_KEY"]
        kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
        env = {**kept, "HOME": home, "PROVIDER_KEY": "sk-test", "XDG_DATA_HOME": f"{home}/data"}
        with (self.home / "server.log").open("wb") as file:
            self._process = await asyncio.create_subprocess_exec(*command, stderr=file, env=env, cwd=work)
        async with asyncio.timeout(PATIENCE):
            while not (found := re.search(r"treadle serves (http://\S+:(\d+))", self.messages)):
                assert self._process.returncode is None, self.messages
                await asyncio.sleep(0.02)
        self.base, self._port = found[1], found[2]

    async def kill(self) -> None:
        """End the process at once, as a crash does."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)
            await self._process.wait()

    def client(self, user: PageUser = OWNER) -> Client:
        """A program that speaks to the server beside the page."""
        return Client(self.base, user.token)


@asynccontextmanager
async def serve_page(home: Path, *options: str, users: Sequence[PageUser] = ()) -> AsyncGenerator[PageServer]:
    """Serve the page with a scripted model."""
    model = PageModel()
    async with model:
        server = PageServer(home, model, *options, users=users)
        await server.start()
        try:
            yield server
        finally:
            await server.stop()
