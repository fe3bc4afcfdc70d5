"""The slash commands of a chat that change the session: each does what it says."""

import pytest

from tests.kit.git_rewinding import create_repository
from tests.kit.host_git import run_git
from tests.kit.sandbox import needs_bubblewrap
from tests.kit.terminal import Case, Fact, Place, Played, Shows, call_tool, hold, play, release, wait_until
from treadle.events import MessageReceived, Rewound, RunFinished, TurnStarted
from treadle.messages import Reply

CALCULATE = call_tool("calculate", expression="1+1")
LATE_END = """
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
"""The program, but a run is left only when a command has been typed, as may happen on a busy machine."""


def check_that_the_old_answer_is_gone(played: Played) -> None:
    assert "It is two." not in str(played.fake.seen[-1].body["messages"])


WORKING = "the agent is working: stop it with Esc before you"
CASES = [
    Case(
        "a limit is continued beyond and an answer is asked for again",
        [CALCULATE, Reply(text="I had one turn."), Reply(text="It is two."), Reply(text="Two, as I said.")],
        [
            ("add\r", Fact(RunFinished)),
            ("", "■ Stopped at 1 turn ·"),
            ("/continue\r", Fact(RunFinished, 2)),
            ("", "It is two."),
            ("/retry\r", "Two, as I said."),
            ("", Fact(RunFinished, 3)),
            (check_that_the_old_answer_is_gone, None),
        ],
        ("chat", "--max-turns", "1"),
        said=("add",),
    ),
    Case(
        "a tool that is approved beforehand is not asked for",
        [call_tool("write_file", path="a.txt", content="one\n"), Reply(text="It is written.")],
        [("/approve write_file\r", "until you leave: write_file"), ("write it\r", "It is written.")],
        ("chat", "--access", "read-only"),
        counts={"Esc stops the run": 0},
        files={"a.txt": "one\n"},
    ),
    Case(
        "a command right after the shown end waits until the run is left",
        [CALCULATE, Reply(text="I had one turn."), Reply(text="It is two.")],
        [("add\r", "■ Stopped at 1 turn ·"), ("/continue\r", Shows("It is two.", without=WORKING))],
        ("chat", "--max-turns", "1"),
        program=LATE_END,
    ),
    Case(
        "a command that would change the log of a working run is refused",
        [hold(Reply(text="Hello."))],
        [
            ("good morning\r", Fact(TurnStarted)),
            *((f"/{name}\r", f"{WORKING} {name}") for name in ("compact", "fork", "retry", "continue", "redo")),
            ("/undo\r", f"{WORKING} rewind"),
            (release, "Hello."),
            ("", Fact(RunFinished)),
        ],
        facts={RunFinished: 1},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_keys_lead_to_the_screen(place: Place, case: Case) -> None:
    await play(place, case)


async def test_a_rewind_takes_back_what_is_chosen_and_a_redo_brings_it_again(place: Place) -> None:
    file = place.work / "a.txt"

    async def rewind_files(played: Played) -> None:
        _, second = [fact.seq for fact in await place.facts() if isinstance(fact, MessageReceived)]
        played.screen.type("/rewind\r")
        await played.screen.until("▸ change it")
        played.screen.type("\x1b")
        await played.screen.until("› Ask")
        played.screen.type(f"/rewind {second} files\r")

    def file_is(content: str) -> object:
        return lambda _: wait_until(lambda: file.read_text() == content, f"the file is {content!r}")

    steps = [
        ("good morning\r", Fact(RunFinished)),
        ("change it\r", Fact(RunFinished, 2)),
        ("", "Changed."),
        (rewind_files, "Esc changes nothing"),
        ("n", "nothing was changed"),
        (file_is("two\n"), None),
        (rewind_files, "Esc changes nothing"),
        ("y", Fact(Rewound)),
        (file_is("one\n"), None),
        ("/redo\r", Shows("Esc changes nothing", below="Undo the rewind?")),
        ("y", Fact(Rewound, 2)),
        (file_is("two\n"), None),
    ]
    script = [Reply(text="Hello."), call_tool("write_file", path="a.txt", content="two\n"), Reply(text="Changed.")]
    await play(place, Case("", script, steps, before={"a.txt": "one\n"}))


@needs_bubblewrap
async def test_changes_shows_commits_and_an_undo_takes_them_back(place: Place) -> None:
    create_repository(place.work)
    commit = call_tool("shell", command="echo two > a.txt; git commit -qam 'Write two'")
    steps = [
        ("commit it\r", Fact(RunFinished)),
        ("/changes\r", "committed: .git/refs/heads/main"),
        ("", "Write two"),
        ("/undo\r", "Esc changes nothing"),
        ("b", Fact(Rewound)),
        (lambda _: wait_until(lambda: run_git(place.work, "status", "--porcelain") == "", "all is clean"), None),
        ("\x15", None),  # Ctrl-U removes the message that came back into the input
    ]
    await play(place, Case("", [commit, Reply(text="Done.")], steps))
    assert run_git(place.work, "log", "--format=%s") == "First"
