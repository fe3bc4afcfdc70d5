"""Who has the terminal in hand: keys, editors, stops, hang-ups and breakdowns while a prompt is drawn."""

import asyncio
import os
import shlex
import shutil
import signal
import sys
import termios
from pathlib import Path

import pytest

from tests.cli.test_prompt import echoes, said
from tests.cli.test_terminal import facts, until_fact
from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.server import Odd
from tests.kit.terminal import COLUMNS, ROWS, Place, call_tool, model_options, on_terminal, until
from treadle.events import InputRequested, RunFinished
from treadle.messages import Reply

LINES = 500
STREAM = Reply(text="\n".join(f"line {number:03}" for number in range(LINES)))
FOREVER = Odd(Reply(text="one\ntwo\nthree"), stall_after=400)


async def outcome(place: Place) -> RunFinished:
    (ended,) = [fact for fact in await facts(place) if isinstance(fact, RunFinished)]
    return ended


async def test_no_key_is_lost_or_echoed_while_lines_are_written_above(place: Place) -> None:
    lines = [f"line {number:04} {'.' * 80}" for number in range(1200)]
    text = "abcdefghijklmnopqrstuvwxyz"
    going = asyncio.Event()
    async with (
        StrictChat([Odd(Reply(text="\n".join(lines)), held=going), Reply(text="I see.")]) as fake,
        place.screen("chat", *model_options(fake)) as screen,
    ):
        await screen.until("/help shows")
        screen.type("count\r")
        await screen.until("thinking")
        async with screen.not_looked_at():  # so that the program is stuck in the middle of writing
            going.set()
            await screen.full()
            screen.type("".join(f"{letter}x\x7f" for letter in text))  # a terminal that reads by itself eats erasures
        await until_fact(place, RunFinished)
        await screen.until(f"› {text}")
        screen.type("\r")
        await screen.until("I see.")
        assert await screen.leave() == 0
    assert said(fake)[-1] == text
    assert [line for line in screen.text.splitlines() if "line" in line] == lines


async def test_a_terminal_that_tells_no_position_is_no_worse(place: Place) -> None:
    going = asyncio.Event()
    async with (
        StrictChat([Odd(STREAM, split=2000, pause=0.01, held=going, held_after=10_000), Reply(text="I see.")]) as fake,
        place.screen("chat", *model_options(fake)) as screen,
    ):
        screen.mute()
        await screen.until("/help shows")
        screen.type("count\r")
        await screen.until("line 003")
        screen.type("next")
        going.set()
        await until_fact(place, RunFinished)
        await screen.until("line 499")
        screen.type("\r")
        await screen.until("I see.")
        assert await screen.leave() == 0
    assert said(fake)[-1] == "next"
    assert "WARNING" not in screen.text and screen.text.count("line 250") == 1


async def test_a_terminal_that_changes_its_size_keeps_every_line(place: Place) -> None:
    going = asyncio.Event()
    async with (
        StrictChat([Odd(STREAM, split=2000, pause=0.01, held=going, held_after=10_000), Reply(text="I see.")]) as fake,
        place.screen("chat", *model_options(fake)) as screen,
    ):
        await screen.until("/help shows")
        screen.type("count\r")
        await screen.until("line 003")
        for rows, columns in [(24, 60), (12, 40), (ROWS, COLUMNS)]:
            termios.tcsetwinsize(screen.fd, (rows, columns))
            going.set()
            await screen.more()
        screen.type("next")
        await until_fact(place, RunFinished)
        await screen.until("line 499")
        screen.type("\r")
        await screen.until("I see.")
        assert await screen.leave() == 0
    assert said(fake)[-1] == "next"
    assert {f"line {number:03}" for number in range(LINES)} <= set(screen.text.splitlines())


async def test_a_long_line_is_seen_to_grow(place: Place) -> None:
    words = "-".join(f"w{number:03}" for number in range(200))
    wide = "語" * 120
    going = asyncio.Event()
    async with (
        StrictChat([Odd(Reply(text=f"{words}\n{wide}\nend"), split=500, held=going, held_after=12_000)]) as fake,
        place.screen("chat", *model_options(fake)) as screen,
    ):
        await screen.until("/help shows")
        screen.type("go on\r")
        seen = await screen.until("w050")
        assert "w199" not in seen
        going.set()
        await screen.until("end")
        assert await screen.leave() == 0
    whole = screen.text.replace("\n", "")
    assert words in whole and wide in whole


def editor(place: Place) -> dict[str, str]:
    """An editor that says it is open, waits until it may close, and leaves something else in the file."""
    script = place.home / "editor"
    script.write_text(
        "#!/bin/sh\n"
        'cat "$1" > "$HOME/opened.new"; mv "$HOME/opened.new" "$HOME/opened"\n'
        'while [ ! -e "$HOME/close" ]; do sleep 0.05; done\n'
        "printf 'edited\\nin two lines\\n' > \"$1\"; echo closed\n"
    )
    script.chmod(0o755)
    return {"EDITOR": str(script), "VISUAL": "", "PROMPT_TOOLKIT_NO_CPR": "1"}  # nothing else holds a line up


async def test_what_comes_while_an_editor_is_open_is_shown_after_it(place: Place) -> None:
    going = asyncio.Event()
    async with (
        StrictChat([Odd(STREAM, split=2000, pause=0.01, held=going, held_after=10_000), Reply(text="I see.")]) as fake,
        place.screen("chat", *model_options(fake), env=editor(place)) as screen,
    ):
        await screen.until("/help shows")
        screen.type("count\r")
        await screen.until("line 003")
        screen.type("draft")
        await screen.until("› draft")
        screen.type("\x18\x05")
        await until((place.home / "opened").exists, "the editor is open")
        going.set()
        await until_fact(place, RunFinished)
        (place.home / "close").touch()
        await screen.until("in two lines")
        await screen.until("line 499")
        screen.type("\r")
        await screen.until("I see.")
        assert await screen.leave() == 0
    assert (place.home / "opened").read_text() == "draft"
    assert screen.raw.index(b"closed") < screen.raw.index(b"line 499")
    assert said(fake)[-1] == "edited\nin two lines"


async def test_a_question_waits_until_the_editor_is_closed(place: Place) -> None:
    asked, going = call_tool("ask_user", question="Which colour?"), asyncio.Event()
    async with (
        StrictChat([Odd(asked, held=going), Reply(text="Blue it is."), Reply(text="I see.")]) as fake,
        place.screen("chat", *model_options(fake), env=editor(place)) as screen,
    ):
        await screen.until("/help shows")
        screen.type("paint it\r")
        await screen.until("thinking")
        screen.type("draft\x18\x05")
        await until((place.home / "opened").exists, "the editor is open")
        going.set()
        await until_fact(place, InputRequested)
        assert "Which colour?" not in screen.text
        (place.home / "close").touch()
        await screen.until("answer>")
        screen.type("blue\r")
        await screen.until("Blue it is.")
        await screen.until("in two lines")
        screen.type("\r")
        await screen.until("I see.")
        assert await screen.leave() == 0
    assert said(fake)[-1] == "edited\nin two lines"


bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no shell with job control here: bash is not installed")


@bash
@pytest.mark.parametrize("how", ["a key", "a signal"])
async def test_a_chat_that_is_stopped_lends_the_terminal_to_the_shell(place: Place, how: str) -> None:
    async with StrictChat([Reply(text="Hello.")]) as fake:
        command = shlex.join([sys.executable, "-m", "treadle", "chat", *model_options(fake)])
        shell = [shutil.which("bash") or "", "--norc", "--noprofile", "--noediting", "-i"]
        async with on_terminal(shell, place.work, {**place.env, "PS1": "shell$ "}) as screen:
            screen.type(f"{command}\n")
            await screen.until("/help shows")
            screen.type("half a dra")
            await screen.until("› half a dra")
            if how == "a key":
                screen.type("\x1a")
            else:
                os.kill(child_of(screen.pid), signal.SIGTSTP)
            await screen.until("Stopped")
            assert "› half a dra" not in screen.text, "the prompt is put away first"
            await until(lambda: echoes(screen), "the shell's terminal is its own")
            screen.type("echo $((40+2))\n")
            await screen.until("\n42\n")
            screen.type("fg\n")
            await until(lambda: not echoes(screen), "the chat has the terminal")
            await screen.until("› half a dra")
            screen.type("ft\r")
            await screen.until("Hello.")
            screen.type("\x04")
            await screen.until("come back with")
            await until(lambda: echoes(screen), "the terminal is given back")
            screen.type("exit\n")
            await screen.end()
    assert said(fake) == ["half a draft"]


def child_of(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("command", ["chat", "attach"])
async def test_a_signal_ends_it_and_gives_the_terminal_back(place: Place, command: str, number: signal.Signals) -> None:
    async with StrictChat([Reply(text="Ready."), FOREVER]) as fake:
        await place.run("run", "get ready", "--name", "job", *model_options(fake))
        words = ["chat", "--session", "job", *model_options(fake)] if command == "chat" else ["attach", "job"]
        async with place.screen(*words) as screen:
            await screen.until("›")
            await until(lambda: not echoes(screen), "the prompt has the terminal")
            screen.kill(number)
            assert await screen.end() == 0
            assert echoes(screen)
    assert "come back with" in screen.text or "detached" in screen.text


@pytest.mark.parametrize("command", ["chat", "run"])
async def test_a_terminal_that_goes_away_stops_the_run_and_that_is_recorded(place: Place, command: str) -> None:
    async with StrictChat([FOREVER]) as fake:
        words = ["run", "count", *model_options(fake)] if command == "run" else ["chat", *model_options(fake)]
        async with place.screen(*words) as screen:
            if command == "chat":
                await screen.until("/help shows")
                screen.type("count\r")
            await screen.until("one")
            screen.hang_up()
            await until(lambda: screen.gone, "the program has ended")
    ended = await outcome(place)
    assert ended.reason == "cancelled" and ended.can_continue


async def test_a_signal_while_a_command_is_made_ready_asks_no_more(place: Place) -> None:
    late = (
        "import asyncio, sys\n"
        "from treadle.cli import chat, main\n"
        "from treadle.session import Session\n"
        "ended, go, rewind = asyncio.Event(), chat.ChatTerminal._go, Session.rewind\n"
        "def told(self): go(self); ended.set()\n"
        "async def slowly(*how, **more): await ended.wait(); return await rewind(*how, **more)\n"
        "chat.ChatTerminal._go, Session.rewind = told, slowly\n"
        "sys.exit(main.main())\n"
    )
    async with StrictChat([Reply(text="Hello.")]) as fake:
        argv = [sys.executable, "-c", late, "chat", *model_options(fake)]
        async with on_terminal(argv, place.work, place.env) as screen:
            await screen.until("/help shows")
            screen.type("hello\r")
            await until_fact(place, RunFinished)
            screen.type("/undo\r")
            await screen.until(lambda text: text.endswith("› /undo"))
            screen.kill(signal.SIGTERM)
            assert await screen.end() == 0
            assert echoes(screen)
    assert "go back?" not in screen.text


async def test_a_ctrl_c_between_two_prompts_takes_no_other_key_along(place: Place) -> None:
    late = (
        "import asyncio, sys\n"
        "from treadle.cli import chat, main\n"
        "pressed, act = asyncio.Event(), chat.ChatTerminal._stop_or_leave\n"
        "def told(self): act(self); pressed.set()\n"
        "async def slowly(where, line): where.write_note('no prompt now'); await pressed.wait()\n"
        "chat.ChatTerminal._stop_or_leave, chat.run_slash_command = told, slowly\n"
        "sys.exit(main.main())\n"
    )
    async with StrictChat([Reply(text="I see.")]) as fake:
        argv = [sys.executable, "-c", late, "chat", *model_options(fake)]
        async with on_terminal(argv, place.work, place.env) as screen:
            await screen.until("/help shows")
            screen.type("/cost\r")
            await screen.until("no prompt now")
            screen.type("half a\x03 draft")
            await screen.until("Ctrl-C again, or Ctrl-D, leaves")
            await screen.until("› half a draft")
            screen.type("\r")
            await screen.until("I see.")
            assert await screen.leave() == 0
    assert said(fake) == ["half a draft"]


async def test_a_chat_that_breaks_says_so_and_gives_the_terminal_back(place: Place) -> None:
    broken = (
        "import sys, treadle.cli.screen as screen\n"
        "from treadle.cli.main import main\n"
        "def finished(*_): raise ZeroDivisionError('on purpose')\n"
        "screen.Screen._ended = finished\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    async with StrictChat([Reply(text="Hello.")]) as fake:
        argv = [sys.executable, "-c", broken, "chat", *model_options(fake)]
        async with on_terminal(argv, place.work, place.env) as screen:
            await screen.until("/help shows")
            screen.type("hello\r")
            assert await screen.end() == 1
            assert echoes(screen)
    assert "a bug in treadle (ZeroDivisionError: on purpose); nothing that was recorded is lost" in (
        screen.text.replace("\n", "")
    )
    assert (await outcome(place)).reason == "answered"


async def test_an_answer_is_not_kept_among_what_was_typed(place: Place) -> None:
    asked = call_tool("write_file", path="AGENTS.md", content="be kind\n")
    async with (
        StrictChat([asked, Reply(text="As you like.")]) as fake,
        place.screen("chat", *model_options(fake)) as screen,
    ):
        await screen.until("/help shows")
        screen.type("write it\r")
        await screen.until("answer>")
        screen.type("n not today\r")
        await screen.until("As you like.")
        screen.type("\x1b[A")
        await screen.until(lambda text: text.endswith("\n› write it"))
        screen.type("\x15")
        assert await screen.leave() == 0
    assert "answer> n not today" in screen.text, "what was answered stays to be read"
    assert "not today" not in (place.home / ".local/share/treadle/history").read_text()


async def test_words_that_steer_do_not_cut_those_that_are_being_written(place: Place) -> None:
    going = asyncio.Event()
    reply = Odd(Reply(text="one line that is long enough to be cut in two"), split=100, held=going, held_after=700)
    async with StrictChat([reply, Reply(text="I see.")]) as fake, place.screen("chat", *model_options(fake)) as screen:
        await screen.until("/help shows")
        screen.type("write\r")
        await screen.until("one l")
        screen.type("use tabs\r")
        await screen.until("› use tabs\none l")
        going.set()
        await screen.until("I see.")
        assert await screen.leave() == 0
    assert "  it reads this at its next turn:\n› use tabs\n" in screen.text
    assert "\none line that is long enough to be cut in two\n" in screen.text


async def test_what_was_left_for_later_goes_on_when_it_is_allowed_elsewhere(place: Place) -> None:
    asked = call_tool("write_file", path="AGENTS.md", content="be kind\n")
    async with (
        StrictChat([asked, Reply(text="It is written.")]) as fake,
        place.screen("chat", *model_options(fake)) as screen,
    ):
        await screen.until("/help shows")
        screen.type("write it\r")
        await screen.until("answer>")
        screen.type("l\r")
        await screen.until("it waits")
        listed = await place.quick("approvals", "list")
        assert (await place.quick("approvals", "allow", listed.out.split()[0])).code == 0
        await screen.until("It is written.")
        assert await screen.leave() == 0
    assert (place.work / "AGENTS.md").read_text() == "be kind\n"


async def test_a_terminal_that_only_prints_can_watch_and_run_but_not_chat(place: Place) -> None:
    dumb = {"TERM": "dumb"}
    async with StrictChat([Reply(text="**Ready.**")]) as fake:
        async with place.screen("run", "get ready", "--name", "job", *model_options(fake), env=dumb) as screen:
            assert await screen.end() == 0
        assert b"\x1b" not in screen.raw and "**Ready.**" in screen.text
        async with place.screen("chat", *model_options(fake), env=dumb) as screen:
            assert await screen.end() == 2
        assert "treadle run --session" in screen.text
        async with place.screen("attach", "job", env=dumb) as screen:
            assert await screen.end() == 0
        assert b"\x1b" not in screen.raw and "**Ready.**" in screen.text
