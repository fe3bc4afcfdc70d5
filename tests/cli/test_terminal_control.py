"""Who controls the terminal: keys, editors, stops, hang-ups and failures while a prompt is drawn."""

import os
import shlex
import shutil
import signal
import sys
import termios
from pathlib import Path

import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.server import Odd
from tests.kit.terminal import (
    COLUMNS,
    ROWS,
    Case,
    Fact,
    Place,
    Played,
    Shows,
    Start,
    call_tool,
    hang_up,
    hold,
    model_options,
    on_terminal,
    play,
    read_user_messages,
    release,
    send_signal,
    wait_until,
)
from treadle.events import InputRequested, RunFinished
from treadle.messages import Reply

STREAM = Reply(text="\n".join(["```", *(f"line {number:03}" for number in range(500)), "```"]))
SEEN = Reply(text="I see.")
FOREVER = Odd(Reply(text="first\nsecond\nthird"), stall_after=400)
EDIT = "\x18\x05"
EDITED = "edited\nin two lines"
SLOW = """\
import asyncio, sys
from treadle.cli import chat, main
from treadle.session import Session
ended, go, work = asyncio.Event(), chat.ChatTerminal.leave, {work}
def leave(self): go(self); ended.set()
async def slowly(*how, **more): await ended.wait(); return await work(*how, **more)
chat.ChatTerminal.leave = leave
{work} = slowly
sys.exit(main.main())
"""
"""The program, but one function of it only works when the chat is left."""
BROKEN = """\
import sys, treadle.cli.screen as screen
from treadle.cli.main import main
def finished(*_): raise ZeroDivisionError('on purpose')
screen.Screen._write_end = finished
sys.exit(main(sys.argv[1:]))
"""
"""The program with a bug that shows when a run ends."""
FULL_DISK = """\
import sys
from treadle.cli.main import main
from treadle.errors import StoreError
from treadle.session import Session
async def cancel(*_, **__): raise StoreError('no room left on the disk')
Session.cancel = cancel
sys.exit(main(sys.argv[1:]))
"""
"""The program, but no stop can be recorded."""


def stream() -> Odd:
    """Five hundred lines, of which the last come when they are released."""
    return hold(STREAM, split=2000, pause=0.01, held_after=10_000)


async def type_while_nobody_reads(played: Played) -> None:
    """Let the program get stuck in the middle of writing. A terminal that reads by itself eats erasures."""
    async with played.screen.pause_reading():
        release(played)
        await played.screen.wait_until_full()
        played.screen.type("".join(f"{letter}x\x7f" for letter in "abcdefghijklmnopqrstuvwxyz"))


async def resize(played: Played) -> None:
    for rows, columns in [(24, 60), (12, 40), (ROWS, COLUMNS)]:
        termios.tcsetwinsize(played.screen.fd, (rows, columns))
        release(played)
        await played.screen.wait_for_output()


LINES = [f"line {number:04} {'.' * 80}" for number in range(1200)]
STREAMS = [
    Case(
        "no key is lost or echoed while lines are written above",
        [hold(Reply(text="\n".join(LINES))), SEEN],
        [
            ("count\r", "Thinking"),
            (type_while_nobody_reads, Fact(RunFinished)),
            ("", "› abcdefghijklmnopqrstuvwxyz"),
            ("\r", "I see."),
        ],
        said=("count", "abcdefghijklmnopqrstuvwxyz"),
        shows=("\n".join(LINES),),
        counts={"line 0": 1000, "line 1": 200},
    ),
    Case(
        "a terminal that tells no position is no worse",
        [stream(), SEEN],
        [
            (lambda played: played.screen.mute(), None),
            ("count\r", "line 003"),
            ("next", None),
            (release, Fact(RunFinished)),
            ("", "line 499"),
            ("\r", "I see."),
        ],
        said=("count", "next"),
        counts={"WARNING": 0, "line 250": 1},
    ),
    Case(
        "a terminal that changes its size keeps every line",
        [stream(), SEEN],
        [("count\r", "line 003"), (resize, None), ("next", Fact(RunFinished)), ("", "line 499"), ("\r", "I see.")],
        said=("count", "next"),
        shows=tuple(f"\n{line}\n" for line in STREAM.text.splitlines()[1:-1]),
    ),
]


async def open_editor(played: Played) -> None:
    played.screen.type(EDIT)
    await wait_until((played.place.home / "opened").exists, "the editor is open")


def close_editor(played: Played) -> None:
    (played.place.home / "close").touch()


EDITORS = [
    Case(
        "lines that come while an editor is open are shown after it",
        [stream(), SEEN],
        [
            ("count\r", "line 003"),
            ("draft", "› draft"),
            (open_editor, None),
            (release, Fact(RunFinished)),
            (close_editor, "in two lines"),
            ("", Shows("line 499", below="closed")),
            ("\r", "I see."),
        ],
        said=("count", EDITED),
    ),
    Case(
        "a question waits until the editor is closed",
        [hold(call_tool("ask_user", question="Which colour?")), Reply(text="Blue it is."), SEEN],
        [
            ("paint it\r", "Thinking"),
            ("draft", "› draft"),
            (open_editor, None),
            (release, Fact(InputRequested)),
            ("", Shows("paint it", without="Which colour?")),
            (close_editor, "Enter answers"),
            ("blue\r", "Blue it is."),
            ("", "in two lines"),
            ("\r", "I see."),
        ],
        said=("paint it", EDITED),
    ),
]


@pytest.mark.parametrize("case", STREAMS, ids=lambda case: case.name)
async def test_keys_lead_to_the_screen(place: Place, case: Case) -> None:
    await play(place, case)


@pytest.mark.parametrize("case", EDITORS, ids=lambda case: case.name)
async def test_an_editor_has_the_terminal_for_itself(place: Place, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The editor says that it is open, waits until it may close, and leaves another text in the file."""
    editor = place.home / "editor"
    editor.write_text(
        "#!/bin/sh\n"
        'cat "$1" > "$HOME/opened.new"; mv "$HOME/opened.new" "$HOME/opened"\n'
        'while [ ! -e "$HOME/close" ]; do sleep 0.05; done\n'
        "printf 'edited\\nin two lines\\n' > \"$1\"; echo closed\n"
    )
    editor.chmod(0o755)
    # A program that asks for the cursor's position would hold lines back as well.
    place.env |= {"EDITOR": str(editor), "VISUAL": "", "PROMPT_TOOLKIT_NO_CPR": "1"}
    await play(place, case)
    assert (place.home / "opened").read_text() == "draft"


bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no shell with job control here: bash is not installed")


def press_ctrl_z(played: Played) -> None:
    played.screen.type("\x1a")


def send_stop(played: Played) -> None:
    pid = played.screen.pid
    os.kill(int(Path(f"/proc/{pid}/task/{pid}/children").read_text()), signal.SIGTSTP)


@bash
@pytest.mark.parametrize("stop", [press_ctrl_z, send_stop])
async def test_a_chat_that_is_stopped_lends_the_terminal_to_the_shell(place: Place, stop: object) -> None:
    async with StrictChat([Reply(text="Hello.")]) as fake:
        command = shlex.join([sys.executable, "-m", "treadle", "chat", *model_options(fake)])
        shell = [shutil.which("bash") or "", "--norc", "--noprofile", "--noediting", "-i"]
        async with on_terminal(shell, place.work, {**place.env, "PS1": "shell$ "}) as screen:
            screen.type(f"{command}\n")
            await screen.until("What shall be done?")
            screen.type("half a dra")
            await screen.until("› half a dra")
            stop(Played(place, Case("", [], []), fake, screen))
            await screen.until("Stopped")
            assert "› half a dra" not in screen.text, "the prompt is removed first"
            await wait_until(lambda: screen.echoes, "the shell has its terminal")
            screen.type("echo $((40+2))\n")
            await screen.until("\n42\n")
            screen.type("fg\n")
            await wait_until(lambda: not screen.echoes, "the chat has the terminal")
            await screen.until("› half a dra")
            screen.type("ft\r")
            await screen.until("Hello.")
            screen.type("\x04")
            await screen.until("continue with")
            await wait_until(lambda: screen.echoes, "the terminal is given back")
            screen.type("exit\n")
            await screen.end()
    assert read_user_messages(fake) == ["half a draft"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("words", [("chat", "--session", "job"), ("attach", "job")], ids=["chat", "attach"])
async def test_a_signal_ends_it_and_gives_the_terminal_back(
    place: Place, words: tuple[str, ...], number: signal.Signals
) -> None:
    steps = [
        ("", 0),
        (Start(words), "›"),
        (lambda played: wait_until(lambda: not played.screen.echoes, "the prompt has the terminal"), None),
        (send_signal(number), 0),
    ]
    played = await play(place, Case("", [Reply(text="Ready.")], steps, ("run", "get ready", "--name", "job")))
    assert "continue with" in played.text or "detached" in played.text


@pytest.mark.parametrize(
    ("words", "keys"), [(("chat",), "count\r"), (("run", "count"), "")], ids=["in a chat", "in a run"]
)
async def test_a_terminal_that_goes_away_stops_the_run_and_that_is_recorded(
    place: Place, words: tuple[str, ...], keys: str
) -> None:
    await play(place, Case("", [FOREVER], [(keys, "first"), (hang_up, None)], words))
    (ended,) = [fact for fact in await place.facts() if isinstance(fact, RunFinished)]
    assert ended.reason == "cancelled" and ended.can_continue


async def test_a_signal_while_a_command_is_prepared_asks_no_more(place: Place) -> None:
    steps = [("hello\r", Fact(RunFinished)), ("/undo\r", "› /undo"), (send_signal(signal.SIGTERM), 0)]
    program = SLOW.format(work="Session.rewind")
    await play(place, Case("", [Reply(text="Hello.")], steps, program=program, counts={"Rewind to": 0}))


async def test_a_signal_while_a_chat_changes_its_session_ends_it(place: Place) -> None:
    steps = [
        ("hello\r", Fact(RunFinished)),
        ("/fork\r", "you continue in the new session"),
        (send_signal(signal.SIGTERM), 0),
    ]
    await play(place, Case("", [Reply(text="Hello.")], steps, program=SLOW.format(work="chat.ChatTerminal.show_end")))


async def test_a_chat_that_fails_says_so_and_gives_the_terminal_back(place: Place) -> None:
    said = "a bug in treadle (ZeroDivisionError: on purpose); nothing that was recorded is lost"
    await play(place, Case("", [Reply(text="Hello.")], [("hello\r", 1)], program=BROKEN, shows=(said,)))
    assert [fact.reason for fact in await place.facts() if isinstance(fact, RunFinished)] == ["answered"]


async def test_a_stop_that_fails_says_why(place: Place) -> None:
    steps = [("count\r", "first"), ("\x1b", "no room left on the disk")]
    await play(place, Case("", [FOREVER], steps, program=FULL_DISK, counts={"Traceback": 0, "a bug in treadle": 0}))
