"""The program as a process with a fake model behind it, and tables of keys and screens to play on a real terminal."""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from inspect import isawaitable
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import pyte
import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.server import Odd, Script
from tests.kit.sessions import PATIENCE
from treadle.cli.main import main
from treadle.events import AnyFact
from treadle.log.base import SessionQuery
from treadle.log.sqlite import SqliteLog
from treadle.messages import Call, Reply
from treadle.sandbox.backend import probe

COLUMNS, ROWS = 100, 40

needs_sandbox = pytest.mark.skipif(probe().level == "none", reason="no sandbox here: bubblewrap is not installed")


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
    def log_lines(self) -> list[dict[str, Any]]:
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
        """The program in this process, without the half second that a start takes."""
        return await asyncio.to_thread(self._call_main, words, stdin, {**self.env, **(env or {})})

    def _call_main(self, words: tuple[str, ...], stdin: str, env: dict[str, str]) -> Done:
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        typed = io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8")
        before = os.getcwd()
        with (
            mock.patch.dict(os.environ, env, clear=True),
            mock.patch.multiple(sys, stdin=typed, stdout=out, stderr=err),
            mock.patch("treadle.app.compose.forbid_memory_inspection"),  # it cannot be undone
            mock.patch("treadle.cli.drive.handle_signals", return_value=nullcontext()),  # a thread gets no signals
        ):
            os.chdir(self.work)
            try:
                code = main(list(words))
            finally:
                os.chdir(before)
        return Done(code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())

    @asynccontextmanager
    async def screen(
        self, *words: str, env: dict[str, str] | None = None, program: str = "", columns: int = COLUMNS
    ) -> AsyncIterator[Screen]:
        """The program on a pseudo-terminal; `program` is code that changes it and then starts it."""
        how = ["-c", program] if program else ["-m", "treadle"]
        argv = [sys.executable, *how, *words]
        async with on_terminal(argv, self.work, {**self.env, **(env or {})}, columns) as one:
            yield one

    async def facts(self) -> list[AnyFact]:
        """What the log of the only session holds; nothing before there is one."""
        log = SqliteLog(self.home / ".local/share/treadle/treadle.db")
        try:
            found = (await log.list_sessions(SessionQuery())).sessions
            assert len(found) <= 1
            return list(await log.read(found[0].id)) if found else []
        finally:
            await log.close()

    async def count(self, kind: type) -> int:
        """How many facts of a kind the log of the only session holds."""
        return sum(isinstance(fact, kind) for fact in await self.facts())

    async def wait_for_fact(self, kind: type, count: int = 1) -> None:
        async with asyncio.timeout(PATIENCE):
            while await self.count(kind) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


def create_place(folder: Path) -> Place:
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
    env = {**kept, "HOME": str(home), "TEST_KEY": "sk-test", "TERM": "xterm-256color", "PYTHONUTF8": "1"}
    env["TREADLE_ALLOW_ROOT"] = "true"
    env["TREADLE_AUTO_NAME"] = "false"  # it asks the model, and most scripts have no reply for that
    env["TREADLE_KEEP_LOADED"] = "0"  # no engine outlives its test
    return Place(home, work, env)


def model_options(fake: StrictChat) -> list[str]:
    """The options that replace the model by a fake."""
    return ["--model", "fake", "--base-url", fake.base_url, "--api-key-env", "TEST_KEY"]


def call_tool(tool: str, id: str = "call_1", **arguments: Any) -> Reply:
    """A reply that calls one tool."""
    return Reply(calls=(Call(id, tool, json.dumps(arguments)),), finish="calls")


def hold(reply: Reply, **options: Any) -> Odd:
    """A reply that comes when a step of a case releases it; with `held_after`, its first bytes come at once."""
    return Odd(reply, held=asyncio.Event(), **options)


def read_user_messages(fake: StrictChat) -> list[str]:
    """The messages of the user in the last request to the model."""
    return [message["content"] for message in fake.seen[-1].body["messages"] if message["role"] == "user"]


class Screen:
    """What a person would see, and a keyboard."""

    def __init__(self, fd: int, pid: int, columns: int = COLUMNS) -> None:
        self.fd, self.pid, self._columns = fd, pid, columns
        self._screen = pyte.HistoryScreen(columns, ROWS, history=10_000, ratio=0.5)
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
        self._above += ["".join(row[at].data for at in range(self._columns)).rstrip() for row in new]
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

    async def wait_for_output(self) -> None:
        """Wait until the program writes anything."""
        async with asyncio.timeout(PATIENCE):
            self._changed.clear()
            await self._changed.wait()

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    @asynccontextmanager
    async def pause_reading(self) -> AsyncIterator[None]:
        """Read nothing from the program during the block: when the buffer is full, it has to wait."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.fd)
        yield
        loop.add_reader(self.fd, self.feed)

    async def wait_until_full(self) -> None:
        """Wait until the buffer that nobody reads grows no more."""
        before, now = -1, 0
        async with asyncio.timeout(PATIENCE):
            while now < 4000 or now != before:
                await asyncio.sleep(0.2)
                (now,), before = struct.unpack("i", fcntl.ioctl(self.fd, termios.FIONREAD, bytes(4))), now

    def mute(self) -> None:
        """Answer no question of the program for the cursor's position, as some terminals do."""
        self._screen.write_process_input = lambda data: None

    def hang_up(self) -> None:
        """Close the terminal under the program."""
        asyncio.get_running_loop().remove_reader(self.fd)
        os.close(self.fd)
        self.fd = -1

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, whatever the screen shows."""
        if self.pid and os.waitpid(self.pid, os.WNOHANG)[0]:
            self.pid = 0
        return not self.pid

    @property
    def echoes(self) -> bool:
        """Whether the terminal itself shows what is typed, as it does before and after a prompt."""
        return bool(termios.tcgetattr(self.fd)[3] & termios.ECHO)

    async def leave(self) -> int:
        """Ctrl-D; the exit code."""
        self.type("\x04")
        return await self.end()

    async def end(self) -> int:
        """The exit code."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._wait_for_end()
        except TimeoutError:
            raise AssertionError(f"the program did not end; it showed:\n{self.text}") from None

    async def _wait_for_end(self) -> int:
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
async def on_terminal(
    argv: list[str], folder: Path, env: dict[str, str], columns: int = COLUMNS
) -> AsyncIterator[Screen]:
    pid, fd = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever started the tests may have had it ignored
        termios.tcsetwinsize(0, (ROWS, columns))
        os.chdir(folder)
        os.execve(argv[0], argv, env)
    screen, loop = Screen(fd, pid, columns), asyncio.get_running_loop()
    loop.add_reader(fd, screen.feed)
    try:
        yield screen
    finally:
        if screen.fd >= 0:
            screen.hang_up()
        if screen.pid:
            os.kill(screen.pid, signal.SIGKILL)
            os.waitpid(screen.pid, 0)  # noqa: ASYNC222


async def wait_until(found: Callable[[], bool], what: str) -> None:
    """Wait for something outside the screen."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not found():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"it did not happen: {what}") from None


# ── tables of keys and screens ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Shows:
    """A text on the screen: so many times, below the last of certain lines, at its end, while another is absent."""

    text: str
    times: int = 1
    below: str = ""
    without: str = ""
    at_end: bool = False

    def is_on(self, screen: Screen) -> bool:
        for text in (screen.text, screen.unbroken):
            _, found, rest = text.rpartition(self.below) if self.below else ("", "all", text)
            if found and (text.endswith(self.text) if self.at_end else rest.count(self.text) >= self.times):
                assert not self.without or self.without not in text, text
                return True
        return False


@dataclass(frozen=True)
class Fact:
    """So many facts of a kind in the log."""

    kind: type
    count: int = 1


@dataclass(frozen=True)
class Start:
    """Another start of the program, on a new terminal."""

    words: tuple[str, ...]


Action = Callable[["Played"], Any]
Step = tuple[str | Start | Action, str | Shows | Fact | int | None]
"""Keys (or a start, or an action), and what follows: a text on the screen, a fact in the log, or the exit code."""


@dataclass(frozen=True)
class Case:
    """A row of a table: a script for the model, keys with what the screen shows after them, and what holds at the end.

    A new chat waits for its greeting before the first keys. A program that still runs after the last step is left with
    Ctrl-D.
    """

    name: str
    script: Script
    steps: Sequence[Step]
    words: tuple[str, ...] = ("chat",)
    env: dict[str, str] = field(default_factory=dict)
    program: str = ""
    before: dict[str, str] = field(default_factory=dict)
    shows: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    told: str = ""
    facts: dict[type, int] = field(default_factory=dict)
    files: dict[str, str | None] = field(default_factory=dict)
    columns: int = COLUMNS


@dataclass
class Played:
    """A case while it is played, and what it came to."""

    place: Place
    case: Case
    fake: StrictChat
    screen: Screen

    @property
    def text(self) -> str:
        """The screen without what differs from run to run."""
        text = self.screen.text.replace(str(self.place.work), "WORK")
        text = re.sub(r"\b[0-9a-f]{12}\b", "SESSION", text)
        text = re.sub(r"\d+\.\d s|\d+ s\b", "N s", text)
        return re.sub(r"(?m)^.*· turn \d.*$\n?", "", text)

    async def check_end(self, code: int) -> None:
        assert await self.screen.end() == code, self.screen.text
        assert code < 0 or self.screen.echoes, "the terminal is given back"

    async def check(self) -> None:
        """Everything that the case says of the end."""
        case, text = self.case, self.text
        unbroken = text.replace("\n", "")
        assert [part for part in case.shows if part not in text and part not in unbroken] == [], text
        assert {part: text.count(part) for part in case.counts} == case.counts, text
        if case.said:
            assert tuple(read_user_messages(self.fake)) == case.said
        if case.told:
            assert case.told in self.fake.seen[-1].body["messages"][-1]["content"]
        assert {kind: await self.place.count(kind) for kind in case.facts} == case.facts
        for name, content in case.files.items():
            file = self.place.work / name
            assert (file.read_text() if file.exists() else None) == content, name
        assert self.fake.rejected == []


async def play(place: Place, case: Case) -> Played:
    """Type the keys of a case on a real terminal, wait for what follows each, and check the end."""
    for name, content in case.before.items():
        (place.work / name).parent.mkdir(parents=True, exist_ok=True)
        (place.work / name).write_text(content)
    async with StrictChat(case.script) as fake, AsyncExitStack() as stack:

        async def start(words: tuple[str, ...]) -> Screen:
            options = model_options(fake) if words[0] in ("run", "chat") else []
            on = place.screen(*words, *options, env=case.env, program=case.program, columns=case.columns)
            screen = await stack.enter_async_context(on)
            if words[0] == "chat" and not {"--continue", "--session"} & set(words):
                await screen.until("What shall be done?")
            return screen

        played = Played(place, case, fake, await start(case.words))
        for keys, shown in case.steps:
            match keys:
                case str():
                    if keys and isinstance(shown, str):
                        assert shown not in played.screen.text, f"{shown!r} is shown before {keys!r} is typed"
                    played.screen.type(keys)
                case Start():
                    played.screen = await start(keys.words)
                case _:
                    done = keys(played)
                    await done if isawaitable(done) else None
            match shown:
                case int():
                    await played.check_end(shown)
                case Fact():
                    try:
                        await place.wait_for_fact(shown.kind, shown.count)
                    except TimeoutError:
                        raise AssertionError(f"{shown} was not recorded:\n{played.screen.text}") from None
                case Shows():
                    await played.screen.until(lambda _, shown=shown, on=played.screen: shown.is_on(on))
                case str():
                    await played.screen.until(shown)
                case None:
                    pass
        if not played.screen.ended and played.screen.fd >= 0:
            played.screen.type("\x04")
            await played.check_end(0)
    await played.check()
    return played


def release(played: Played) -> None:
    """Let the replies come that the script holds back."""
    for reply in played.case.script if isinstance(played.case.script, Sequence) else ():
        if isinstance(reply, Odd) and reply.held is not None:
            reply.held.set()


def send_signal(number: signal.Signals) -> Action:
    return lambda played: played.screen.kill(number)


async def hang_up(played: Played) -> None:
    """Close the terminal, and wait until the program has noticed."""
    played.screen.hang_up()
    await wait_until(lambda: played.screen.has_ended, "the program has ended")


async def allow_elsewhere(played: Played) -> None:
    """Answer the open question with yes in another process."""
    listed = await played.place.quick("approvals", "list")
    allowed = await played.place.quick("approvals", "allow", listed.out.split()[0])
    assert allowed.code == 0, allowed.err
