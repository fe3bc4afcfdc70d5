"""The real program on a pseudo-terminal, driven by keys and judged by its screen."""

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.server import Odd
from tests.kit.sessions import PATIENCE
from tests.kit.terminal import Place, Screen, calling, model, until
from treadle.events import (
    ApprovalAnswered,
    CallFinished,
    MessageReceived,
    Rewound,
    RunFinished,
    SessionRenamed,
    TurnStarted,
)
from treadle.log.base import SessionQuery
from treadle.log.sqlite import SqliteLog
from treadle.messages import Reply
from treadle.sandbox.backend import probe

ASKS = StrictChat.prefix + StrictChat.path
ASKED = calling("write_file", path="AGENTS.md", content="be kind\n")

needs_sandbox = pytest.mark.skipif(probe().level == "none", reason="no sandbox here: bubblewrap is not installed")


def plain(text: str, place: Place) -> str:
    """The screen without what differs from run to run."""
    text = text.replace(str(place.work), "WORK")
    text = re.sub(r"\b[0-9a-f]{12}\b", "SESSION", text)
    text = re.sub(r"\d+\.\d s|\d+ s\b", "N s", text)
    return re.sub(r"(?m)^.*· turn \d.*$\n?", "", text)


def after(screen: Screen, line: str) -> str:
    """What stands below the last of these lines, if there is one."""
    _, there, below = screen.unbroken.rpartition(line)
    return below if there else ""


async def facts(place: Place) -> list[object]:
    """What the log of the only session holds; nothing before there is one."""
    log = SqliteLog(place.home / ".local/share/treadle/treadle.db")
    try:
        found = (await log.list_sessions(SessionQuery())).sessions
        assert len(found) <= 1
        return list(await log.read(found[0].id)) if found else []
    finally:
        await log.close()


async def until_fact(place: Place, kind: type, count: int = 1) -> None:
    """Wait until the log has so many facts of a kind."""
    async with asyncio.timeout(PATIENCE):
        while sum(isinstance(fact, kind) for fact in await facts(place)) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def running(word: str) -> list[int]:
    """The processes whose command line has this word."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if word.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


async def until_running(word: str, *, there: bool) -> None:
    async with asyncio.timeout(PATIENCE):
        while bool(running(word)) != there:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_run_streams_and_ends_with_the_way_back(place: Place) -> None:
    async with (
        StrictChat([calling("calculate", expression="6*7"), Reply(text="It is 42.\nReally.")]) as fake,
        place.screen("run", "what is six times seven?", *model(fake)) as screen,
    ):
        code = await screen.end()
    assert code == 0
    assert plain(screen.text, place) == (
        "✓ calculate 6*7\nIt is 42.\nReally.\n\nsession SESSION · go on with: treadle chat --session SESSION"
    )


async def test_text_is_shown_as_it_comes(place: Place) -> None:
    reply = Reply(text="\n".join(f"line {number}" for number in range(30)))
    held = asyncio.Event()
    async with (
        StrictChat([Odd(reply, split=60, held=held, held_after=2500)]) as fake,
        place.screen("run", "count", *model(fake)) as screen,
    ):
        seen = await screen.until("line 3")
        assert "line 29" not in seen
        held.set()
        assert await screen.end() == 0
        assert "line 29" in screen.text


async def test_an_approval_shows_everything_and_a_yes_lets_it_run(place: Place) -> None:
    async with StrictChat([ASKED, Reply(text="done")]) as fake, place.screen("run", "write it", *model(fake)) as screen:
        await screen.until("answer>")
        shown = plain(screen.text, place)
        screen.type("y\r")
        assert await screen.end() == 0
    assert shown.startswith("? write_file wants to run  [destructive]\n")
    assert "workspace: WORK\n  path: AGENTS.md\n  content:\n    be kind\n" in shown
    assert "+be kind" in shown and "  y  yes, once\n" in shown and "n  no; the model sees the words" in shown
    assert (place.work / "AGENTS.md").read_text() == "be kind\n"


async def test_what_is_typed_before_the_question_was_read_does_not_count(place: Place) -> None:
    held = asyncio.Event()
    async with (
        StrictChat([Odd(ASKED, held=held), Reply(text="done")]) as fake,
        place.screen("run", "write it", *model(fake)) as screen,
    ):
        await until_fact(place, TurnStarted)
        screen.type("y\ry\ry\r")
        held.set()
        await screen.until("answer>")
        assert not (place.work / "AGENTS.md").exists()
        screen.type("n\r")
        assert await screen.end() == 0
    assert not (place.work / "AGENTS.md").exists()


async def test_in_a_chat_too_nothing_counts_before_a_question_could_be_read(place: Place) -> None:
    async with (
        StrictChat([ASKED, Reply(text="As you like.")]) as fake,
        place.screen("chat", *model(fake), inert=True) as screen,
    ):
        await screen.until("/help shows")
        screen.type("write it\r")
        await screen.until("wait …")
        screen.type("y\ry")
        await screen.until("wait … yy")
        screen.wake()
        await screen.until("answer>")
        assert "y" not in screen.text.rpartition("answer>")[2]
        screen.type("n\r")
        await screen.until("As you like.")
        screen.type("/quit\r")
        assert await screen.end() == 0
    assert not (place.work / "AGENTS.md").exists()


async def test_a_no_with_a_reason_reaches_the_model_and_the_run_goes_on(place: Place) -> None:
    async with StrictChat([ASKED, Reply(text="As you like.")]) as fake:
        async with place.screen("run", "write it", *model(fake)) as screen:
            await screen.until("answer>")
            screen.type("maybe\r")
            await screen.until("answer y, n or l")
            screen.type("n we have one already\r")
            assert await screen.end() == 0
        told = fake.seen[-1].body["messages"][-1]["content"]
    assert "we have one already" in told and not (place.work / "AGENTS.md").exists()


async def test_a_command_cannot_disguise_itself(place: Place) -> None:
    hidden = "be kind\x1b[2K\x1b[1A\u202eevil\u200b"
    async with (
        StrictChat([calling("write_file", path="AGENTS.md", content=hidden), Reply(text="no")]) as fake,
        place.screen("run", "write it", *model(fake)) as screen,
    ):
        await screen.until("answer>")
        assert "content: be kind\\x1b[2K\\x1b[1A\\u202eevil\\u200b" in screen.text
        screen.type("n\r")
        assert await screen.end() == 0


async def test_later_leaves_the_question_in_the_log(place: Place) -> None:
    async with StrictChat([ASKED, Reply(text="done")]) as fake, place.screen("run", "write it", *model(fake)) as screen:
        await screen.until("answer>")
        screen.type("l\r")
        assert await screen.end() == 4
    assert "waits for an answer (write_file): treadle approvals list" in screen.text


@pytest.mark.parametrize("command", ["run", "chat"])
async def test_a_question_that_is_answered_elsewhere_is_taken_back_and_the_run_goes_on(
    place: Place, command: str
) -> None:
    async with StrictChat([ASKED, Reply(text="It is written.")]) as fake:
        words = ["run", "write it"] if command == "run" else ["chat"]
        async with place.screen(*words, *model(fake)) as screen:
            if command == "chat":
                await screen.until("/help shows")
                screen.type("write it\r")
            await screen.until("answer>")
            listed = await place.quick("approvals", "list")
            allowed = await place.quick("approvals", "allow", listed.out.split()[0])
            assert allowed.code == 0, allowed.err
            await screen.until("It is written.")
            if command == "chat":
                screen.type("/quit\r")
            assert await screen.end() == 0
    assert (place.work / "AGENTS.md").read_text() == "be kind\n"


async def test_a_yes_for_the_tool_is_remembered_in_the_session(place: Place) -> None:
    first = calling("write_file", path="a.txt", content="one\n")
    again = calling("write_file", id="call_2", path="a.txt", content="two\n")
    async with (
        StrictChat([first, again, Reply(text="done")]) as fake,
        place.screen("run", "write it", *model(fake), env={"TREADLE_ASK": "write_file"}) as screen,
    ):
        await screen.until("answer>")
        assert "p  yes, and in this session also: write_file(" in screen.text
        screen.type("t\r")
        assert await screen.end() == 0
    assert (place.work / "a.txt").read_text() == "two\n" and screen.text.count("answer>") == 1


async def test_a_yes_for_good_is_not_asked_again_in_the_next_session(place: Place) -> None:
    write = calling("write_file", path="src/a.txt", content="one\n")
    flags = ["--access", "read-only"]
    async with StrictChat([write, Reply(text="done"), write, Reply(text="done")]) as fake:
        async with place.screen("run", "write it", *model(fake), *flags) as screen:
            await screen.until("answer>")
            screen.type("a\r")
            assert await screen.end() == 0
        done = await place.run("run", "write it", *model(fake), *flags, "--json")
    assert done.code == 0 and done.document["calls"] == [{"tool": "write_file", "status": "ok"}]


async def test_no_color_means_no_escape_codes(place: Place) -> None:
    async with (
        StrictChat([calling("calculate", expression="1+1"), Reply(text="two")]) as fake,
        place.screen("run", "add", *model(fake), env={"NO_COLOR": "1"}) as screen,
    ):
        assert await screen.end() == 0
    assert b"\x1b" not in screen.raw and "✓ calculate 1+1" in screen.text


async def test_ctrl_c_stops_a_run_and_is_130(place: Place) -> None:
    async with (
        StrictChat([Odd(Reply(text="one two three"), stall_after=1)]) as fake,
        place.screen("run", "hello", *model(fake)) as screen,
    ):
        await screen.until("thinking")
        screen.type("\x03")
        assert await screen.end() == 130
    assert "cancelled" in screen.text


@needs_sandbox
async def test_escape_in_a_chat_stops_a_command_and_its_children(place: Place) -> None:
    long = f"600.{os.getpid()}"  # seconds that nobody else sleeps
    script = [calling("shell", command=f"sleep {long} & sleep {long}"), Reply(text="And now?")]
    async with StrictChat(script) as fake, place.screen("chat", *model(fake)) as screen:
        await screen.until("/help shows")
        screen.type("wait a bit\r")
        await until_running(long, there=True)
        await screen.until(f"shell sleep {long}")
        screen.type("\x1b")
        await until_running(long, there=False)
        await screen.until("cancelled")
        screen.type("go on\r")
        await screen.until("And now?")
        screen.type("/quit\r")
        assert await screen.end() == 0
    assert fake.rejected == []


async def test_what_is_typed_while_it_works_steers_it(place: Place) -> None:
    held = asyncio.Event()
    script = [Odd(calling("calculate", expression="1+1"), held=held), Reply(text="Done, and with tabs.")]
    async with StrictChat(script) as fake:
        async with place.screen("chat", *model(fake)) as screen:
            await screen.until("/help shows")
            screen.type("tidy up\r")
            await until_fact(place, TurnStarted)
            screen.type("use tabs\r")
            await screen.until("it reads this at its next turn:\n› use tabs")
            held.set()
            await screen.until("Done, and with tabs.")
            assert await screen.leave() == 0
        said = [message["content"] for message in fake.seen[-1].body["messages"] if message["role"] == "user"]
    assert said[0] == "tidy up" and "use tabs" in said[-1]
    assert "come back with: treadle chat --session" in screen.text


async def test_a_draft_survives_a_question(place: Place) -> None:
    held = asyncio.Event()
    script = [Odd(calling("ask_user", question="Which colour?"), held=held), Reply(text="Blue it is.")]
    async with StrictChat(script) as fake, place.screen("chat", *model(fake)) as screen:
        await screen.until("/help shows")
        screen.type("paint it\r")
        await until_fact(place, TurnStarted)
        screen.type("and then the d")
        await screen.until("and then the d")
        held.set()
        await screen.until("answer>")
        screen.type("blue\r")
        await screen.until("Blue it is.")
        screen.type("oor\r")
        await screen.until("› and then the door")
        await until_fact(place, RunFinished, 2)
        screen.type("/quit\r")
        assert await screen.end() == 0


async def test_a_chat_is_taken_up_again_with_what_was_said(place: Place) -> None:
    async with StrictChat([Reply(text="Hello Ada."), Reply(text="You are Ada.")]) as fake:
        async with place.screen("chat", *model(fake)) as screen:
            await screen.until("/help shows")
            screen.type("I am Ada\r")
            await screen.until("Hello Ada.")
            await until_fact(place, RunFinished)
            screen.type("/quit\r")
            assert await screen.end() == 0
        async with place.screen("chat", "--continue", *model(fake)) as screen:
            await screen.until("Hello Ada.")
            assert "› I am Ada" in screen.text
            screen.type("who am I?\r")
            await screen.until("You are Ada.")
            screen.type("/quit\r")
            assert await screen.end() == 0
    assert sum(isinstance(fact, MessageReceived) for fact in await facts(place)) == 2


async def test_a_rewind_shows_what_it_would_do_and_takes_files_and_words_back(place: Place) -> None:
    (place.work / "a.txt").write_text("one\n")
    write = calling("write_file", path="a.txt", content="two\n")
    async with StrictChat([write, Reply(text="Changed."), Reply(text="Again.")]) as fake:
        async with place.screen("chat", *model(fake)) as screen:
            await screen.until("/help shows")
            screen.type("change it\r")
            await screen.until("Changed.")
            await until_fact(place, RunFinished)
            screen.type("/undo\r")
            await screen.until("go back? y/N>")
            assert "modified: a.txt" in screen.text and "+one" in screen.text and "-two" in screen.text
            screen.type("y\r")
            await until_fact(place, Rewound)
            await screen.until(lambda text: text.endswith("\n› change it"))
            screen.type(" once more\r")
            await screen.until("Again.")
            screen.type("/quit\r")
            assert await screen.end() == 0
        said = [message["content"] for message in fake.seen[-1].body["messages"]]
    assert (place.work / "a.txt").read_text() == "one\n"
    assert "change it once more" in said and "change it" not in said


async def test_a_killed_run_goes_on_where_it_was(place: Place) -> None:
    write = calling("write_file", path="a.txt", content="two\n")
    async with StrictChat([write, Odd(Reply(text="x"), stall_after=1), Reply(text="It is written.")]) as fake:
        async with place.screen("run", "write it", "--name", "job", *model(fake)) as screen:
            await until_fact(place, CallFinished)
            await screen.until("✓ write_file a.txt")
            await until(lambda: [one.path for one in fake.seen].count(ASKS) == 2, "the model is asked again")
            screen.kill()
            assert await screen.end() == -9
        assert (await place.quick("sessions")).out.splitlines()[1].startswith("unfinished")
        done = await place.run("run", "--session", "job", *model(fake), "--json")
        assert fake.rejected == []
    assert done.code == 0 and done.document["answer"] == "It is written."
    stored = await facts(place)
    assert sum(isinstance(fact, CallFinished) for fact in stored) == 1
    assert sum(isinstance(fact, RunFinished) for fact in stored) == 1


async def test_a_chat_that_was_killed_at_a_question_asks_it_again(place: Place) -> None:
    async with StrictChat([ASKED, Reply(text="It is written.")]) as fake:
        async with place.screen("chat", *model(fake)) as screen:
            await screen.until("/help shows")
            screen.type("write it\r")
            await screen.until("answer>")
            screen.kill()
            assert await screen.end() == -9
        async with place.screen("chat", "--continue", *model(fake)) as screen:
            await screen.until("answer>")
            screen.type("y\r")
            await screen.until("It is written.")
            screen.type("/quit\r")
            assert await screen.end() == 0
    assert sum(isinstance(fact, ApprovalAnswered) for fact in await facts(place)) == 1


async def test_slash_commands_show_the_state_of_things(place: Place) -> None:
    async with StrictChat([Reply(text="Hello.")]) as fake, place.screen("chat", *model(fake)) as screen:
        await screen.until("/help shows")
        screen.type("hello\r")
        await screen.until("Hello.")
        for line, found in [
            ("/nonsense", "there is no /nonsense"),
            ("/contxt", "did you mean /context?"),
            ("/context", "tokens"),
            ("/cost", "in "),
            ("/tools", "edit_file"),
            ("/agent", "there are: architect, coder"),
            ("/agent nobody", "there is no agent 'nobody'"),
            ("/agent reader", "from the next run on: reader"),
            ("/model", "model: fake"),
            ("/model gpt-9", "Did you mean openai:gpt-9?"),
            ("/name first steps", "named first steps"),
            ("/sessions", "first steps"),
            ("/approve shell(git *)", "is not asked for"),
            ("/changes", "no file was changed"),
            ("/export html talk.html", "bytes to"),
            ("/export html talk.html", "name another file"),
            ("/fork", "Hello."),
        ]:
            screen.type(f"{line}\r")
            await screen.until(lambda _, line=line, found=found: found in after(screen, f"› {line}"))
        assert await screen.leave() == 0
    assert "<h1>first steps</h1>" in (place.work / "talk.html").read_text()


async def test_a_chat_is_named_by_the_model_after_its_first_answer(place: Place) -> None:
    def answer(body: dict[str, Any]) -> Reply:
        naming = "You name conversations" in str(body["messages"][0]["content"])
        return Reply(text="Red build since Monday" if naming else "Since Monday.")

    async with (
        StrictChat(answer) as fake,
        place.screen("chat", *model(fake), env={"TREADLE_AUTO_NAME": "true"}) as screen,
    ):
        await screen.until("/help shows")
        screen.type("why is the build red?\r")
        await until_fact(place, SessionRenamed)
        screen.type("/quit\r")
        assert await screen.end() == 0
    assert "Red build since Monday" in (await place.quick("sessions")).out


async def test_a_run_is_named_by_its_first_words_and_never_over_a_given_name(place: Place) -> None:
    async with StrictChat([Reply(text="Monday.")]) as fake:
        named = {"TREADLE_AUTO_NAME": "true"}
        await place.run("run", "why is the build red?", *model(fake), env=named)
        await place.run("run", "when did it start?", "--name", "mine", *model(fake), env=named)
        (place.work / "log.txt").write_text("secret")
        await place.run("run", "see @log.txt", *model(fake), env=named)
    listed = (await place.quick("sessions")).out
    assert "why is the build red?" in listed and "mine" in listed and "when did" not in listed
    assert "see @log.txt\n" in listed


@pytest.mark.parametrize("command", ["run", "chat"])
async def test_prose_is_painted_and_long_lines_stay_whole(place: Place, command: str) -> None:
    long = "wurzel " * 60
    reply = Reply(text=f"# Findings\n\n- it is **red**\n{long}\n**done**", reasoning="hm, let me think")
    words = ["run", "look"] if command == "run" else ["chat"]
    async with StrictChat([Odd(reply, split=40)]) as fake, place.screen(*words, *model(fake)) as screen:
        if command == "chat":
            await screen.until("/help shows")
            screen.type("look\r")
            await until_fact(place, RunFinished)
            await screen.until("done")
            screen.type("/quit\r")
        assert await screen.end() == 0
    shown = screen.text
    assert "Findings\n\n• it is red\n" in shown and "#" not in shown and "**" not in shown
    assert shown.replace("\n", "").count("wurzel") == 60
    assert "hm, let me think" in shown and b"\x1b[2mhm, let me think" in screen.raw.replace(b"\x1b[0m\x1b[2m", b"")
