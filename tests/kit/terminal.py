"""What the command line's tests share: the program as a process, a fake model behind it, and a terminal to look at."""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import os
import pty
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import pyte

from tests.kit.fakes.chat import StrictChat
from tests.kit.sessions import PATIENCE
from treadle.cli.main import main
from treadle.messages import Call, Reply

COLUMNS, ROWS = 100, 40
INERT = """\
import asyncio, signal, sys
from treadle.cli import prompt, questions
from treadle.cli.main import main
questions.INERT_SECONDS, read = 3600.0, prompt.PromptConsole.read
async def until_told(self, label, draft="", *, inert=0.0, passing=False):
    if inert:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._wake, label)
    return await read(self, label, draft, inert=inert, passing=passing)
prompt.PromptConsole.read = until_told
sys.exit(main())
"""


@dataclass
class Done:
    """How the program ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document that stdout is."""
        assert self.out.endswith("\n") and self.out.count("\n") == 1, self.out
        return json.loads(self.out)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def noted(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.err.splitlines()]


@dataclass
class Place:
    """A user's home and a workspace, and the program in them."""

    home: Path
    work: Path
    env: dict[str, str] = field(default_factory=dict)

    async def start(
        self, *words: str, stdin: bool = False, stderr: int = asyncio.subprocess.PIPE, env: dict[str, str] | None = None
    ) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "treadle",
            *words,
            cwd=self.work,
            env={**self.env, **(env or {})},
            stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
        )

    async def run(self, *words: str, stdin: str | None = None, env: dict[str, str] | None = None) -> Done:
        """The program from its start to its end."""
        process = await self.start(*words, stdin=stdin is not None, env=env)
        try:
            async with asyncio.timeout(PATIENCE):
                out, err = await process.communicate(stdin.encode() if stdin is not None else None)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return Done(process.returncode, out.decode(), err.decode())

    async def quick(self, *words: str, stdin: str = "", env: dict[str, str] | None = None) -> Done:
        """The program in this process, for commands that run nothing: the same, without the time to start."""
        return await asyncio.to_thread(self._called, words, stdin, {**self.env, **(env or {})})

    def _called(self, words: tuple[str, ...], stdin: str, env: dict[str, str]) -> Done:
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        given = io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8")
        before = os.getcwd()
        with (
            mock.patch.dict(os.environ, env, clear=True),
            mock.patch.multiple(sys, stdin=given, stdout=out, stderr=err),
            mock.patch("treadle.app.compose.forbid_memory_inspection"),  # it cannot be undone
        ):
            os.chdir(self.work)
            try:
                code = main(list(words))
            finally:
                os.chdir(before)
        return Done(code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())

    @asynccontextmanager
    async def screen(
        self, *words: str, env: dict[str, str] | None = None, inert: bool = False
    ) -> AsyncIterator[Screen]:
        """The program on a pseudo-terminal; with `inert` nothing that is typed after a question counts until `wake`."""
        how = ["-c", INERT] if inert else ["-m", "treadle"]
        async with on_terminal([sys.executable, *how, *words], self.work, {**self.env, **(env or {})}) as one:
            yield one


def place_in(folder: Path) -> Place:
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
    env = {**kept, "HOME": str(home), "TEST_KEY": "sk-test", "TERM": "xterm-256color", "PYTHONUTF8": "1"}
    env["TREADLE_AUTO_NAME"] = "false"  # it asks the model, which most scripts do not reckon with
    return Place(home, work, env)


def model(fake: StrictChat) -> list[str]:
    """The options that put a fake in the model's place."""
    return ["--model", "fake", "--base-url", fake.base_url, "--api-key-env", "TEST_KEY"]


def calling(tool: str, id: str = "call_1", **arguments: Any) -> Reply:
    """A reply that calls one tool."""
    return Reply(calls=(Call(id, tool, json.dumps(arguments)),), finish="calls")


class Screen:
    """What a person would see, and a keyboard."""

    def __init__(self, fd: int, pid: int) -> None:
        self.fd, self.pid = fd, pid
        self._screen = pyte.HistoryScreen(COLUMNS, ROWS, history=10_000, ratio=0.5)
        self._screen.write_process_input = self.type
        self._stream = pyte.ByteStream(self._screen)
        self._changed = asyncio.Event()
        self._above: list[str] = []
        self.raw = b""
        self.ended = False

    def feed(self) -> None:
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # the program has closed its side
            data = b""
        if not data:
            self.ended = True
            asyncio.get_running_loop().remove_reader(self.fd)
        self.raw += data
        self._stream.feed(data)
        self._changed.set()

    @property
    def text(self) -> str:
        """Scrollback and screen, as lines without trailing blanks."""
        gone = self._screen.history.top
        if len(gone) < len(self._above):
            self._above.clear()
        new = islice(gone, len(self._above), None)  # a row that has scrolled away does not change any more
        self._above += ["".join(row[at].data for at in range(COLUMNS)).rstrip() for row in new]
        return "\n".join([*self._above, *(line.rstrip() for line in self._screen.display)]).rstrip()

    @property
    def unbroken(self) -> str:
        """The same in one line: where the terminal breaks it depends on how long the folders' names are."""
        return self.text.replace("\n", "")

    async def until(self, found: str | Callable[[str], bool]) -> str:
        """The screen, as soon as it shows what is wanted."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not (found(self.text) if callable(found) else found in self.text or found in self.unbroken):
                    assert not self.ended, f"the program ended; it showed:\n{self.text}"
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{found!r} did not appear:\n{self.text}") from None
        return self.text

    async def more(self) -> None:
        """Until anything more is shown."""
        async with asyncio.timeout(PATIENCE):
            self._changed.clear()
            await self._changed.wait()

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    @asynccontextmanager
    async def not_looked_at(self) -> AsyncIterator[None]:
        """Nothing is read from the program for as long as the block: once there is no room, it has to wait."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.fd)
        yield
        loop.add_reader(self.fd, self.feed)

    async def full(self) -> None:
        """Until what nobody reads grows no more."""
        before, now = -1, 0
        async with asyncio.timeout(PATIENCE):
            while now < 4000 or now != before:
                await asyncio.sleep(0.2)
                (now,), before = struct.unpack("i", fcntl.ioctl(self.fd, termios.FIONREAD, bytes(4))), now

    def wake(self) -> None:
        """What is typed counts from now on, in a program that was started `inert`."""
        self.kill(signal.SIGUSR1)

    def mute(self) -> None:
        """Answer no more questions of the program, as terminals of few words do."""
        self._screen.write_process_input = lambda data: None

    def hang_up(self) -> None:
        """Close the terminal under the program."""
        asyncio.get_running_loop().remove_reader(self.fd)
        os.close(self.fd)
        self.fd = -1

    @property
    def gone(self) -> bool:
        """Whether the program has ended, whatever it shows."""
        if self.pid and os.waitpid(self.pid, os.WNOHANG)[0]:
            self.pid = 0
        return not self.pid

    async def leave(self) -> int:
        """Ctrl-D; the exit code."""
        self.type("\x04")
        return await self.end()

    async def end(self) -> int:
        """The exit code."""
        async with asyncio.timeout(PATIENCE):
            while not self.ended:
                self._changed.clear()
                await self._changed.wait()
            while True:
                pid, status = os.waitpid(self.pid, os.WNOHANG)  # noqa: ASYNC222
                if pid:
                    self.pid = 0
                    return os.waitstatus_to_exitcode(status)
                await asyncio.sleep(0.01)

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)


@asynccontextmanager
async def on_terminal(argv: list[str], folder: Path, env: dict[str, str]) -> AsyncIterator[Screen]:
    pid, fd = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever started the tests may have had it ignored
        termios.tcsetwinsize(0, (ROWS, COLUMNS))
        os.chdir(folder)
        os.execve(argv[0], argv, env)
    screen, loop = Screen(fd, pid), asyncio.get_running_loop()
    loop.add_reader(fd, screen.feed)
    try:
        yield screen
    finally:
        if screen.fd >= 0:
            screen.hang_up()
        if screen.pid:
            os.kill(screen.pid, signal.SIGKILL)
            os.waitpid(screen.pid, 0)  # noqa: ASYNC222


async def until(found: Callable[[], bool], what: str) -> None:
    """Wait until something outside the screen is so."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not found():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"it did not come about: {what}") from None


def each_line(text: str) -> Iterator[str]:
    return (line.strip() for line in text.splitlines() if line.strip())
