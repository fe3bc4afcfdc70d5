"""The line a person types on: paste, completion, history, leaving, being told; and a terminal attached over HTTP."""

import asyncio
import re
import signal
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.server import Odd
from tests.kit.sessions import PATIENCE
from tests.kit.terminal import Place, Screen, calling, model
from treadle.messages import Reply


def said(fake: StrictChat) -> list[str]:
    """What the model was last told by the user."""
    return [message["content"] for message in fake.seen[-1].body["messages"] if message["role"] == "user"]


def echoes(screen: Screen) -> bool:
    """Whether the terminal shows by itself what is typed, as it does before and after a prompt."""
    return bool(termios.tcgetattr(screen.fd)[3] & termios.ECHO)


async def test_lines_that_are_pasted_are_one_message(place: Place) -> None:
    async with StrictChat([Reply(text="Two lines.")]) as fake, place.screen("chat", *model(fake)) as screen:
        await screen.until("/help shows")
        screen.type("\x1b[200~first line\nsecond line\x1b[201~")
        await screen.until("second line")
        assert fake.seen == []
        screen.type("\r")
        await screen.until("Two lines.")
        assert said(fake) == ["first line\nsecond line"]
        screen.type("/quit\r")
        assert await screen.end() == 0


async def test_a_file_is_completed_and_goes_with_the_message(place: Place) -> None:
    (place.work / "notes").mkdir()
    (place.work / "notes" / "monday.txt").write_text("the lock file is missing")
    async with StrictChat([Reply(text="I see.")]) as fake, place.screen("chat", *model(fake)) as screen:
        await screen.until("/help shows")
        screen.type("read @no")
        await screen.until("notes/")
        screen.type("\t")
        await screen.until("@notes/")
        screen.type("m")
        await screen.until("monday.txt")
        screen.type("\t")
        await screen.until("@notes/monday.txt")
        screen.type("\r")
        await screen.until("I see.")
        screen.type("/quit\r")
        assert await screen.end() == 0
    assert "the lock file is missing" in str(said(fake))


async def test_what_was_typed_before_is_at_hand_in_the_next_chat(place: Place) -> None:
    async with StrictChat([Reply(text="Hello."), Reply(text="Again.")]) as fake:
        async with place.screen("chat", *model(fake)) as screen:
            await screen.until("/help shows")
            screen.type("good morning\r")
            await screen.until("Hello.")
            assert await screen.leave() == 0
        async with place.screen("chat", *model(fake)) as screen:
            await screen.until("/help shows")
            screen.type("\x1b[A")
            await screen.until("› good morning")
            screen.type("\r")
            await screen.until("Again.")
            assert await screen.leave() == 0
    history = place.home / ".local/share/treadle/history"
    assert history.stat().st_mode & 0o077 == 0, "what a person typed is nobody else's business"


async def test_a_chat_that_is_ended_gives_the_terminal_back_and_tells_the_way_back(place: Place) -> None:
    async with StrictChat([Reply(text="Hello.")]) as fake, place.screen("chat", *model(fake)) as screen:
        await screen.until("/help shows")
        screen.type("hello\r")
        await screen.until("Hello.")
        async with asyncio.timeout(PATIENCE):
            while echoes(screen):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        screen.kill(signal.SIGTERM)
        assert await screen.end() == 0
        assert echoes(screen)
    assert "come back with" in screen.text


async def test_one_ctrl_c_stops_it_and_two_leave(place: Place) -> None:
    async with (
        StrictChat([Odd(Reply(text="one two three"), stall_after=1)]) as fake,
        place.screen("chat", *model(fake)) as screen,
    ):
        await screen.until("/help shows")
        screen.type("count\r")
        await screen.until("thinking")
        screen.type("\x03")
        await screen.until("cancelled")
        screen.type("a draft\x03")
        screen.type("\x03")
        await screen.until("Ctrl-C again, or Ctrl-D, leaves")
        screen.type("/cost\r")
        await screen.until(" · out ")
        screen.type("\x03")
        await screen.until(lambda text: text.count("Ctrl-C again, or Ctrl-D, leaves") == 2)
        screen.type("\x03")
        assert await screen.end() == 0
    assert "come back with" in screen.text


async def test_a_second_ctrl_c_leaves_also_when_the_first_has_stopped_it(place: Place) -> None:
    async with (
        StrictChat([Odd(Reply(text="one two three"), stall_after=1)]) as fake,
        place.screen("chat", *model(fake)) as screen,
    ):
        await screen.until("/help shows")
        screen.type("count\r")
        await screen.until("thinking")
        screen.type("\x03")
        await screen.until("cancelled")
        screen.type("\x03")
        assert await screen.end() == 0
    assert "come back with" in screen.text and "Ctrl-C again" not in screen.text


@pytest.mark.parametrize(("how", "mark"), [("osc9", b"\x1b]9;treadle: answered\x07"), ("bell", b"\a"), ("off", b"")])
async def test_a_person_who_looks_elsewhere_is_told_at_the_end(place: Place, how: str, mark: bytes) -> None:
    env = {"TREADLE_NOTIFY": how, "TREADLE_NOTIFY_AFTER": "0"}
    async with StrictChat([Reply(text="Done.")]) as fake, place.screen("run", "go", *model(fake), env=env) as screen:
        assert await screen.end() == 0
    assert mark in screen.raw
    if how == "off":
        assert b"\a" not in screen.raw


async def test_a_short_run_rings_no_bell(place: Place) -> None:
    env = {"TREADLE_NOTIFY_AFTER": "3600"}  # so that it is short on any machine
    async with StrictChat([Reply(text="Done.")]) as fake, place.screen("run", "go", *model(fake), env=env) as screen:
        assert await screen.end() == 0
    assert b"\a" not in screen.raw


@asynccontextmanager
async def serving(place: Place, fake: StrictChat) -> AsyncIterator[str]:
    """A server of the same user and store; its address."""
    process = await place.start("serve", "--port", "0", "--allow-root", "--grace", "0", *model(fake))
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE):
            while not (found := re.search(rb"serves (http://[\d.:]+)", line := await process.stderr.readline())):
                assert line, "the server has ended"
        yield found[1].decode()
    finally:
        process.terminate()
        async with asyncio.timeout(PATIENCE):
            await process.communicate()


async def test_a_terminal_attached_over_http_sees_text_steers_and_approves(place: Place) -> None:
    asked = calling("write_file", path="AGENTS.md", content="be kind\n")
    async with StrictChat([Reply(text="Ready."), asked, Reply(text="It is written.")]) as fake:
        await place.run("run", "get ready", "--name", "job", *model(fake))
        async with serving(place, fake) as url, place.screen("attach", "job", "--url", url) as screen:
            await screen.until("Ready.")
            screen.type("write it\r")
            await screen.until("answer>")
            assert "write_file wants to run" in screen.text
            screen.type("y\r")
            await screen.until("It is written.")
            screen.type("/quit\r")
            assert await screen.end() == 0
    assert (place.work / "AGENTS.md").read_text() == "be kind\n"


async def test_a_server_that_cannot_be_reached_is_told(place: Place) -> None:
    done = await place.quick("attach", "job", "--url", "http://127.0.0.1:9")
    assert done.code == 1 and "http://127.0.0.1:9 cannot be reached" in done.err
    assert "is `treadle serve` running there?" in done.err and "ssl" not in done.err
    loading = await place.quick("models", "load", "local", "--url", "http://127.0.0.1:9")
    assert loading.code == 1 and "cannot be reached" in loading.err
