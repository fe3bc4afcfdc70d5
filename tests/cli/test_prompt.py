"""The line a person types on: paste, completion, history, leaving, notifications, and a terminal attached over HTTP."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.server import Odd
from tests.kit.sessions import PATIENCE
from tests.kit.terminal import (
    Case,
    Place,
    Played,
    Shows,
    Start,
    call_tool,
    hold,
    model_options,
    play,
    release,
    send_signal,
    wait_until,
)
from treadle.cli.slash_commands import COMMANDS
from treadle.messages import Reply

STALL = Odd(Reply(text="one two three"), stall_after=1)
HINT = "press Ctrl-C again, or Ctrl-D, to leave"
UP, CTRL_C, CTRL_D, CTRL_U = "\x1b[A", "\x03", "\x04", "\x15"
SLOW_SLASH_COMMAND = """\
import asyncio, sys
from treadle.cli import chat, main
pressed, act = asyncio.Event(), chat.ChatTerminal.handle_ctrl_c
def press(self): act(self); pressed.set()
async def slowly(where, line): where.write_note('no prompt now'); await pressed.wait()
chat.ChatTerminal.handle_ctrl_c, chat.run_slash_command = press, slowly
sys.exit(main.main())
"""
"""The program, but a slash command lasts until Ctrl-C."""


def has_no_request(played: Played) -> None:
    assert played.fake.seen == []


async def wait_for_prompt(played: Played) -> None:
    await wait_until(lambda: not played.screen.echoes, "the prompt has the terminal")


CASES = [
    Case(
        "lines that are pasted are one message",
        [Reply(text="Two lines.")],
        [("\x1b[200~first line\nsecond line\x1b[201~", "second line"), (has_no_request, None), ("\r", "Two lines.")],
        said=("first line\nsecond line",),
    ),
    Case(
        "a file is completed and goes with the message",
        [Reply(text="I see.")],
        [("read @no", "notes/"), ("\t", "@notes/"), ("m", "monday.txt"), ("\t", "@notes/monday.txt"), ("\r", "I see.")],
        before={"notes/monday.txt": "the lock file is missing"},
        told="the lock file is missing",
    ),
    Case(
        "what was typed before is at hand in the next chat",
        [Reply(text="Hello."), Reply(text="Again.")],
        [
            ("good morning\r", "Hello."),
            (CTRL_D, 0),
            (Start(("chat",)), None),
            (UP, "› good morning\n"),
            ("\r", "Again."),
        ],
    ),
    Case(
        "a chat that is ended gives the terminal back and tells the way back",
        [Reply(text="Hello.")],
        [("hello\r", "Hello."), (wait_for_prompt, None), (send_signal(signal.SIGTERM), 0)],
        shows=("continue with",),
    ),
    Case(
        "one Ctrl-C stops it and two leave",
        [STALL],
        [
            ("count\r", "Thinking"),
            (CTRL_C, "Cancelled"),
            ("a draft", "› a draft\n"),
            (CTRL_C, "› /continue"),
            (UP, Shows("› a draft", below="Cancelled")),  # what was cleared is at hand
            (CTRL_C, None),
            (CTRL_C, HINT),
            ("/cost\r", "Cost  nothing yet"),
            ("another", "› another"),
            (CTRL_C, "› /continue"),
            (CTRL_C, HINT),
            (CTRL_C, 0),
        ],
        shows=("continue with",),
    ),
    Case(
        "Ctrl-D leaves from a picker that a command opened",
        [],
        [("/agent\r", "Enter use here"), (CTRL_D, 0)],
        shows=("continue with",),
    ),
    Case(
        "a second Ctrl-C leaves also when the first has stopped it",
        [STALL],
        [("count\r", "Thinking"), (CTRL_C, "Cancelled"), (CTRL_C, 0)],
        shows=("continue with",),
        counts={"press Ctrl-C again": 0},
    ),
    Case(
        "a Ctrl-C while a command runs takes no other key along",
        [Reply(text="I see.")],
        [("/cost\r", "no prompt now"), (f"{CTRL_C}half a draft", "› half a draft"), ("\r", "I see.")],
        program=SLOW_SLASH_COMMAND,
        said=("half a draft",),
    ),
    Case(
        "a long line is seen to grow",
        [
            hold(
                Reply(text=f"{'-'.join(f'w{number:03}' for number in range(200))}\n{'語' * 120}\nend"),
                split=500,
                held_after=12_000,
            )
        ],
        [("go on\r", Shows("w050", without="w199")), (release, "end")],
        shows=("-".join(f"w{number:03}" for number in range(200)), "語" * 120),
    ),
    Case(
        "help tells every command and every command stays to be read",
        [Reply(text="Hello.")],
        [("/help\r", "Ctrl-D, Ctrl-Z"), ("/compact\r", "nothing to compact")],
        shows=(
            "\n› /help\n",
            "\n› /compact\nnothing to compact",
            *(f"  {'/' + name:<11}{about}" for name, about in COMMANDS.items()),
        ),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_keys_lead_to_the_screen(place: Place, case: Case) -> None:
    await play(place, case)


async def test_an_answer_is_no_part_of_the_history_and_only_its_user_reads_that(place: Place) -> None:
    steps = [
        ("write it\r", "Esc stops the run"),
        ("nnot today\r", "As you like."),
        (UP, "› write it\n  sandbox"),
        (CTRL_U, None),
    ]
    ask = call_tool("write_file", path="AGENTS.md", content="be kind\n")
    played = await play(place, Case("", [ask, Reply(text="As you like.")], steps))
    assert "⊘ you denied   write_file AGENTS.md · not today" in played.text, "an answer stays on the screen"
    history = place.home / ".local/share/treadle/history"
    assert "write it" in history.read_text() and "not today" not in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("env", "mark", "bells"),
    [
        ({"TREADLE_NOTIFY": "osc9", "TREADLE_NOTIFY_AFTER": "0"}, b"\x1b]9;treadle: answered\x07", 1),
        ({"TREADLE_NOTIFY": "bell", "TREADLE_NOTIFY_AFTER": "0"}, b"\a", 1),
        ({"TREADLE_NOTIFY": "off", "TREADLE_NOTIFY_AFTER": "0"}, b"", 0),
        ({"TREADLE_NOTIFY_AFTER": "3600"}, b"", 0),
    ],
    ids=["by OSC 9", "by a bell", "not when it is off", "not after a short run"],
)
async def test_a_person_who_looks_elsewhere_is_notified_at_the_end(
    place: Place, env: dict[str, str], mark: bytes, bells: int
) -> None:
    played = await play(place, Case("", [Reply(text="Done.")], [("", 0)], ("run", "go"), env))
    assert mark in played.screen.raw and played.screen.raw.count(b"\a") == bells


@asynccontextmanager
async def serve(place: Place, fake: StrictChat) -> AsyncIterator[str]:
    """A server of the same user and store; its address."""
    process = await place.start("serve", "--port", "0", "--allow-root", "--grace", "0", *model_options(fake))
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
    ask = call_tool("write_file", path="AGENTS.md", content="be kind\n")
    async with StrictChat([Reply(text="Ready."), ask, Reply(text="It is written.")]) as fake:
        await place.quick("run", "get ready", "--name", "job", *model_options(fake))
        async with serve(place, fake) as url, place.screen("attach", "job", "--url", url) as screen:
            await screen.until("Ready.")
            screen.type("write it\r")
            await screen.until("Ctrl-C leaves")
            assert "write_file wants to run" in screen.text
            screen.type("y")
            await screen.until("It is written.")
            assert await screen.leave() == 0
    assert (place.work / "AGENTS.md").read_text() == "be kind\n"


async def test_a_server_that_cannot_be_reached_is_an_error(place: Place) -> None:
    done = await place.quick("attach", "job", "--url", "http://127.0.0.1:9")
    assert done.code == 1 and "http://127.0.0.1:9 cannot be reached" in done.err
    assert "is `treadle serve` running there?" in done.err and "ssl" not in done.err
    loading = await place.quick("models", "load", "local", "--url", "http://127.0.0.1:9")
    assert loading.code == 1 and "cannot be reached" in loading.err
