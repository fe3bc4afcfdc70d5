"""The slash commands of a chat, as a person uses them: each does what it says, and leaves itself in the scrollback."""

import asyncio
import re
import sys

from tests.cli.test_prompt import said
from tests.cli.test_terminal import facts, until_fact
from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.server import Odd
from tests.kit.terminal import Place, Screen, calling, model, on_terminal, until
from treadle.cli.slash_commands import COMMANDS
from treadle.events import MessageReceived, Rewound, RunFinished, TurnStarted
from treadle.messages import Reply

LATE = """
import asyncio, sys
from treadle.cli import chat, main
from treadle.run import Run

typed, let_go, run_command = asyncio.Event(), Run.__aexit__, chat.run_slash_command

async def late(self, *how):
    await typed.wait()
    await let_go(self, *how)

async def at_once(where, line):
    typed.set()
    await run_command(where, line)

Run.__aexit__, chat.run_slash_command = late, at_once
sys.exit(main.main())
"""
"""The program, but a run is let go only when a command has been typed, as may happen on a busy machine."""


async def ask(screen: Screen, place: Place, text: str, runs: int) -> None:
    """Say something and wait until so many runs are over, and the prompt is free again."""
    screen.type(f"{text}\r")
    await until_fact(place, RunFinished, runs)
    await screen.until(lambda text: not re.search(r"turn \d+/\d+", text))


async def test_help_tells_every_command_and_every_command_stays_to_be_read(place: Place) -> None:
    async with StrictChat([Reply(text="Hello.")]) as fake, place.screen("chat", *model(fake)) as screen:
        await screen.until("/help shows")
        screen.type("/help\r")
        await screen.until("Ctrl-C again, or Ctrl-D, leaves.")
        screen.type("/compact\r")
        await screen.until("there is nothing to gain yet")
        assert await screen.leave() == 0
    assert "\n› /help\n" in screen.text and "\n› /compact\nthere is nothing" in screen.text
    for name, about in COMMANDS.items():
        assert f"  {'/' + name:<11}{about}" in screen.text


async def test_an_answer_is_asked_for_again_and_a_limit_is_gone_beyond(place: Place) -> None:
    script = [
        calling("calculate", expression="1+1"),
        Reply(text="I had one turn."),
        Reply(text="It is two."),
        Reply(text="Two, as I said."),
    ]
    async with StrictChat(script) as fake, place.screen("chat", *model(fake), "--max-turns", "1") as screen:
        await screen.until("/help shows")
        await ask(screen, place, "add", 1)
        await screen.until("stopped: the limit of turns is reached")
        await ask(screen, place, "/continue", 2)
        await screen.until("It is two.")
        await ask(screen, place, "/retry", 3)
        await screen.until("Two, as I said.")
        assert await screen.leave() == 0
    assert said(fake)[0] == "add" and "It is two." not in str(fake.seen[-1].body["messages"])


async def test_a_rewind_takes_back_what_is_chosen_and_a_redo_brings_it_again(place: Place) -> None:
    file = place.work / "a.txt"
    file.write_text("one\n")
    script = [Reply(text="Hello."), calling("write_file", path="a.txt", content="two\n"), Reply(text="Changed.")]
    async with StrictChat(script) as fake, place.screen("chat", *model(fake)) as screen:
        await screen.until("/help shows")
        await ask(screen, place, "good morning", 1)
        await ask(screen, place, "change it", 2)
        await screen.until("Changed.")
        (_, second) = [fact.seq for fact in await facts(place) if isinstance(fact, MessageReceived)]
        screen.type("/rewind\r")
        await screen.until(f"  {second:>5}  change it")
        screen.type(f"/rewind {second} files\r")
        await screen.until("go back? y/N>")
        screen.type("no\r")
        await screen.until("nothing was changed")
        assert file.read_text() == "two\n"
        screen.type(f"/rewind {second} files\r")
        await screen.until(lambda text: text.count("go back? y/N>") == 2)
        screen.type("y\r")
        await until(lambda: file.read_text() == "one\n", "the file is as it was")
        await until_fact(place, Rewound)
        screen.type("/redo\r")
        await screen.until("take the rewind back? y/N>")
        screen.type("y\r")
        await until(lambda: file.read_text() == "two\n", "the file is as it was changed")
        await until_fact(place, Rewound, 2)
        assert await screen.leave() == 0
    assert fake.rejected == []


async def test_what_is_approved_beforehand_is_not_asked_for(place: Place) -> None:
    write = calling("write_file", path="a.txt", content="one\n")
    async with (
        StrictChat([write, Reply(text="It is written.")]) as fake,
        place.screen("chat", *model(fake), "--access", "read-only") as screen,
    ):
        await screen.until("/help shows")
        screen.type("/approve write_file\r")
        await screen.until("write_file is not asked for")
        await ask(screen, place, "write it", 1)
        await screen.until("It is written.")
        assert await screen.leave() == 0
    assert "answer>" not in screen.text and (place.work / "a.txt").read_text() == "one\n"


async def test_a_command_right_after_an_end_is_shown_waits_until_the_run_is_let_go(place: Place) -> None:
    script = [calling("calculate", expression="1+1"), Reply(text="I had one turn."), Reply(text="It is two.")]
    async with (
        StrictChat(script) as fake,
        on_terminal(
            [sys.executable, "-c", LATE, "chat", *model(fake), "--max-turns", "1"], place.work, place.env
        ) as screen,
    ):
        await screen.until("/help shows")
        screen.type("add\r")
        await screen.until("stopped: the limit of turns is reached")
        screen.type("/continue\r")
        await screen.until(lambda text: "It is two." in text or "it is working" in text)
        assert "it is working" not in screen.text
        assert await screen.leave() == 0


async def test_what_would_come_between_a_run_and_its_log_is_refused_while_it_works(place: Place) -> None:
    held = asyncio.Event()
    async with StrictChat([Odd(Reply(text="Hello."), held=held)]) as fake, place.screen("chat", *model(fake)) as screen:
        await screen.until("/help shows")
        screen.type("good morning\r")
        await until_fact(place, TurnStarted)
        for command in ("compact", "fork", "retry", "continue", "redo"):
            screen.type(f"/{command}\r")
            await screen.until(f"it is working: stop it with Esc before you {command}")
        screen.type("/undo\r")
        await screen.until("it is working: stop it with Esc before you rewind")
        held.set()
        await screen.until("Hello.")
        await until_fact(place, RunFinished)
        assert await screen.leave() == 0
    assert [fact.reason for fact in await facts(place) if isinstance(fact, RunFinished)] == ["answered"]
