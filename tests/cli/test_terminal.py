"""`treadle run` and `treadle chat` on a pseudo-terminal: keys, and what the screen shows after them."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.server import Odd
from tests.kit.terminal import (
    Action,
    Case,
    Fact,
    Place,
    Played,
    Shows,
    Start,
    Step,
    allow_elsewhere,
    call_tool,
    hold,
    model_options,
    needs_sandbox,
    play,
    release,
    send_signal,
    wait_until,
)
from treadle.events import (
    ApprovalAnswered,
    CallFinished,
    MessageReceived,
    Rewound,
    RunFinished,
    SessionRenamed,
    TurnStarted,
)
from treadle.messages import Reply

ASK = call_tool("write_file", path="AGENTS.md", content="be kind\n")
STALL = Odd(Reply(text="one two three"), stall_after=1)
WRITTEN: dict[str, str | None] = {"AGENTS.md": "be kind\n"}
NOT_WRITTEN: dict[str, str | None] = {"AGENTS.md": None}
WRITE_A = call_tool("write_file", path="a.txt", content="two\n")
RUN = ("run", "write it")
IGNORE_KEYS_UNTIL_SIGNAL = """\
import asyncio, signal, sys
from treadle.cli.main import main
from treadle.cli.terminal import question
question.INERT_SECONDS, start = 3600.0, question.ChoiceQuestion.start
def start_by_signal(self):
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self.enable)
    start(self)
question.ChoiceQuestion.start = start_by_signal
sys.exit(main())
"""
"""The program, but keys count only after a signal: so the time to read a question is as long as a test needs."""


async def check_that_it_is_unfinished(played: Played) -> None:
    listed = await played.place.quick("sessions")
    assert listed.out.splitlines()[1].split()[1] == "unfinished"


async def wait_for_two_requests(played: Played) -> None:
    asks = StrictChat.prefix + StrictChat.path
    await wait_until(lambda: [one.path for one in played.fake.seen].count(asks) == 2, "the model is asked again")


UNKNOWN_SESSION = [
    Case(
        "a run creates the session that it does not find after a yes",
        [Reply(text="Hello.")],
        [("", "there is no session 'ada'; create it? [y/N]"), ("y\r", 0)],
        ("run", "hi", "--session", "ada"),
        shows=("Hello.",),
        facts={SessionRenamed: 1, RunFinished: 1},
    ),
    Case(
        "a run creates no session after any other answer and says how to create one",
        [],
        [("", "create it? [y/N]"), ("\r", 2)],
        ("run", "hi", "--session", "ada"),
        shows=("--name ada creates one of that name",),
        facts={MessageReceived: 0},
    ),
    Case(
        "Ctrl-C ends the question for a new session at once",
        [],
        [("", "create it? [y/N]"), ("\x03", 130)],
        ("run", "hi", "--session", "ada"),
        facts={MessageReceived: 0},
    ),
]


QUESTIONS = [
    Case(
        "an approval shows everything and a yes lets the call run",
        [ASK, Reply(text="done")],
        [("", "answer>"), ("y\r", 0)],
        RUN,
        shows=(
            "┃ ? write_file wants to run  destructive\n",
            "┃   path: AGENTS.md\n",
            "┃   1 + be kind",
            "┃   where   WORK\n",
            "┃   rule    none: this is asked each time\n",
            "┃   y  yes, once\n",
            "n  no, and say why",
        ),
        files=WRITTEN,
    ),
    Case(
        "what is typed before the question was read does not count",
        [hold(ASK), Reply(text="done")],
        [("", Fact(TurnStarted)), ("y\ry\ry\r", None), (release, "answer>"), ("n\r", 0)],
        RUN,
        files=NOT_WRITTEN,
    ),
    Case(
        "in a chat too nothing counts before a question could be read",
        [ASK, Reply(text="As you like.")],
        [
            ("write it\r", "keys count in a moment"),
            ("y\ry", "what you type is kept"),
            (send_signal(signal.SIGUSR1), "Esc stops the run"),
            ("n\r", "As you like."),
            ("", "› yy"),  # nothing that was typed is lost
            ("\x15", None),
        ],
        program=IGNORE_KEYS_UNTIL_SIGNAL,
        files=NOT_WRITTEN,
    ),
    Case(
        "a no with a reason reaches the model and the run goes on",
        [ASK, Reply(text="As you like.")],
        [("", "answer>"), ("maybe\r", "answer y, n or l"), ("n we have one already\r", 0)],
        RUN,
        told="we have one already",
        files=NOT_WRITTEN,
    ),
    Case(
        "a command cannot disguise itself",
        [call_tool("write_file", path="AGENTS.md", content="be kind\x1b[2K\x1b[1A\u202eevil\u200b"), Reply(text="no")],
        [("", "answer>"), ("n\r", 0)],
        RUN,
        shows=("+ be kind<U+001B>[2K<U+001B>[1A<U+202E>evil<U+200B>",),
    ),
    Case(
        "a question in plain lines has words for marks and fits the window",
        [call_tool("write_file", path="AGENTS.md", content="x" * 150), Reply(text="done")],
        [("", "answer>"), ("y\r", 0)],
        RUN,
        env={"TREADLE_PLAIN": "1"},
        shows=(
            "asks: write_file wants to run  destructive\n  path: AGENTS.md\n",
            f"  1 + {'x' * 91}\n      {'x' * 59}\n",
        ),
        counts={"┃": 0},
    ),
    Case(
        "later leaves the question in the log",
        [ASK, Reply(text="done")],
        [("", "answer>"), ("l\r", 4)],
        RUN,
        shows=("waits for an answer (write_file): treadle approvals list",),
    ),
    Case(
        "a run takes a question back that is answered elsewhere and goes on",
        [ASK, Reply(text="It is written.")],
        [("", "answer>"), (allow_elsewhere, "It is written."), ("", 0)],
        RUN,
        files=WRITTEN,
    ),
    Case(
        "a chat takes a question back that is answered elsewhere and goes on",
        [ASK, Reply(text="It is written.")],
        [("write it\r", "Esc stops the run"), (allow_elsewhere, "It is written.")],
        shows=("✓ allowed ",),
        files=WRITTEN,
    ),
    Case(
        "a question that was left for later is allowed elsewhere and the chat goes on",
        [ASK, Reply(text="It is written.")],
        [("write it\r", "Esc stops the run"), ("l", "the question stays open"), (allow_elsewhere, "It is written.")],
        files=WRITTEN,
    ),
    Case(
        "a yes for the tool is remembered in the session",
        [
            call_tool("write_file", path="a.txt", content="one\n"),
            call_tool("write_file", id="call_2", path="a.txt", content="two\n"),
            Reply(text="done"),
        ],
        [("", "answer>"), ("t\r", 0)],
        RUN,
        env={"TREADLE_ASK": "write_file"},
        shows=("p  yes, and the rule for this session", "rule    write_file("),
        counts={"answer>": 1},
        files={"a.txt": "two\n"},
    ),
    Case(
        "a yes for good is not asked again in the next session",
        [WRITE_A, Reply(text="done"), WRITE_A, Reply(text="done")],
        [("", "answer>"), ("a\r", 0), (Start((*RUN, "--access", "read-only")), 0)],
        (*RUN, "--access", "read-only"),
        shows=("✓ write_file   a.txt",),
        counts={"answer>": 0},
    ),
    Case(
        "a chat that was killed at a question asks it again",
        [ASK, Reply(text="It is written.")],
        [
            ("write it\r", "Esc stops the run"),
            (send_signal(signal.SIGKILL), -9),
            (Start(("chat", "--continue")), "Esc stops the run"),
            ("y", "It is written."),
        ],
        facts={ApprovalAnswered: 1},
        files=WRITTEN,
    ),
]

RUNS = [
    Case(
        "text is shown as it comes",
        [hold(Reply(text="\n".join(f"line {number}" for number in range(30))), split=60, held_after=2500)],
        [("", Shows("line 3", without="line 29")), (release, 0)],
        ("run", "count"),
        shows=("line 29",),
    ),
    Case(
        "Ctrl-C stops a run and is 130",
        [STALL],
        [("", "Thinking"), ("\x03", 130)],
        ("run", "hello"),
        shows=("Cancelled",),
    ),
    Case(
        "Ctrl-C at a question stops the run, and nobody is said to have answered",
        [ASK],
        [("", "answer>"), ("\x03", 130)],
        RUN,
        shows=("(the question is closed)", "■ write_file   AGENTS.md · stopped"),
        counts={"elsewhere": 0},
        files=NOT_WRITTEN,
    ),
    Case(
        "a killed run goes on where it was",
        [WRITE_A, Odd(Reply(text="x"), stall_after=1), Reply(text="It is written.")],
        [
            ("", "✓ write_file   a.txt"),
            (wait_for_two_requests, None),
            (send_signal(signal.SIGKILL), -9),
            (check_that_it_is_unfinished, None),
            (Start(("run", "--session", "job")), 0),
        ],
        (*RUN, "--name", "job"),
        shows=("It is written.",),
        facts={CallFinished: 1, RunFinished: 1},
    ),
]

CHATS = [
    Case(
        "what is typed while it works steers it",
        [hold(call_tool("calculate", expression="1+1")), Reply(text="Done, and with tabs.")],
        [
            ("tidy up\r", Fact(TurnStarted)),
            ("use tabs\r", "  next  use tabs"),
            (release, "› use tabs  steered · turn 2"),
            ("", "Done, and with tabs."),
        ],
        said=("tidy up", "use tabs"),
        shows=("continue with: treadle chat --session",),
    ),
    Case(
        "words that steer do not cut those that are being written",
        [
            hold(Reply(text="one line that is long enough to be cut in two"), split=100, held_after=700),
            Reply(text="I see."),
        ],
        [("write\r", "one l"), ("use tabs\r", "  next  use tabs"), (release, "I see.")],
        shows=("\none line that is long enough to be cut in two\n", "\n› use tabs"),
    ),
    Case(
        "a draft survives a question",
        [hold(call_tool("ask_user", question="Which colour?")), Reply(text="Blue it is.")],
        [
            ("paint it\r", Fact(TurnStarted)),
            ("and then the d", "and then the d"),
            (release, "Enter answers"),
            ("blue\r", "Blue it is."),
            ("oor\r", "› and then the door"),
            ("", Fact(RunFinished, 2)),
        ],
    ),
    Case(
        "a chat is taken up again with what was said",
        [Reply(text="Hello Ada."), Reply(text="You are Ada.")],
        [
            ("I am Ada\r", "Hello Ada."),
            ("", Fact(RunFinished)),
            ("/quit\r", 0),
            (Start(("chat", "--continue")), "Hello Ada."),
            ("who am I?\r", "You are Ada."),
        ],
        shows=("› I am Ada",),
        facts={MessageReceived: 2},
    ),
    Case(
        "a rewind shows what it would do and takes files and words back",
        [WRITE_A, Reply(text="Changed."), Reply(text="Again.")],
        [
            ("change it\r", "Changed."),
            ("", Fact(RunFinished)),
            ("/undo\r", "modified a.txt  +1 −1"),
            ("", "Esc changes nothing"),
            ("d", Shows("Esc changes nothing", below="1 − two")),
            ("b", Fact(Rewound)),
            ("", "› change it\n  sandbox"),
            (" once more\r", "Again."),
        ],
        before={"a.txt": "one\n"},
        shows=("modified: a.txt", "1 + one"),
        said=("change it once more",),
        files={"a.txt": "one\n"},
    ),
]


@pytest.mark.parametrize("case", [*UNKNOWN_SESSION, *QUESTIONS, *RUNS, *CHATS], ids=lambda case: case.name)
async def test_keys_lead_to_the_screen(place: Place, case: Case) -> None:
    await play(place, case)


async def test_a_run_streams_and_ends_with_the_way_back(place: Place) -> None:
    script = [call_tool("calculate", expression="6*7"), Reply(text="It is 42.\nReally.")]
    played = await play(place, Case("", script, [("", 0)], ("run", "what is six times seven?")))
    assert played.text == (
        "✓ calculate    6*7\n\nIt is 42. Really.\n\n✓ Done · N s · 2 turns, 1 call · 36 tokens\n"
        "  talk      treadle chat --session SESSION"
    )


@needs_sandbox
async def test_escape_in_a_chat_stops_a_command_and_its_children(place: Place) -> None:
    long = f"600.{os.getpid()}"  # seconds that nobody else sleeps
    steps = [
        ("wait a bit\r", None),
        (wait_for_process(long, runs=True), f"shell        sleep {long}"),
        ("\x1b", None),
        (wait_for_process(long, runs=False), "Cancelled"),
        ("go on\r", "And now?"),
    ]
    script = [call_tool("shell", command=f"sleep {long} & sleep {long}"), Reply(text="And now?")]
    await play(place, Case("", script, steps))


def wait_for_process(word: str, *, runs: bool) -> Action:
    """Wait until a process runs whose command line has this word, or none does."""

    def has_word(process: Path) -> bool:
        try:
            return word.encode() in (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            return False

    found = lambda: any(has_word(one) for one in Path("/proc").iterdir() if one.name.isdigit()) == runs  # noqa: E731
    return lambda _: wait_until(found, f"{word} runs: {runs}")


async def test_slash_commands_show_the_state_of_things(place: Place) -> None:
    lines = [
        ("/nonsense", "there is no command /nonsense"),
        ("/contxt", "did you mean /context?"),
        ("/context", "Context  "),
        ("/cost", "Cost  "),
        ("/tools", "edit_file"),
        ("/agent", "Answers, looks things up"),
        ("\x1b", "Ask, or /"),
        ("/agent nobody", "there is no agent 'nobody'"),
        ("/agent reader", "from the next run on: reader"),
        ("/model", "▸ fake"),
        ("\x1b", "Ask, or /"),
        ("/model gpt-9", "model from the next run on: gpt-9"),
        ("/name first steps", "named first steps"),
        ("/sessions", "Sessions"),
        ("\x1b", "Ask, or /"),
        ("/approve shell(git *)", "allowed from the next run on"),
        ("/changes", "nothing was changed"),
        ("/export html talk.html", "bytes written to"),
        ("/export html talk.html", "choose another name"),
        ("/fork", "Hello."),
    ]
    steps: list[Step] = []
    for line, found in lines:  # Esc leaves a picker
        steps.append((line, found) if line == "\x1b" else (f"{line}\r", Shows(found, below=f"› {line}")))
    await play(place, Case("", [Reply(text="Hello.")], [("hello\r", "Hello."), *steps]))
    page = (place.work / "talk.html").read_text()
    assert '"type":"session_renamed"' in page and "first steps" in page


async def test_a_chat_is_named_by_the_model_after_its_first_answer(place: Place) -> None:
    def answer(body: dict[str, Any]) -> Reply:
        naming = "You name conversations" in str(body["messages"][0]["content"])
        return Reply(text="Red build since Monday" if naming else "Since Monday.")

    steps = [("why is the build red?\r", Fact(SessionRenamed))]
    await play(place, Case("", answer, steps, env={"TREADLE_AUTO_NAME": "true"}))
    assert "Red build since Monday" in (await place.quick("sessions")).out


async def test_a_run_is_named_by_its_first_words_and_never_over_a_given_name(place: Place) -> None:
    async with StrictChat([Reply(text="Monday.")]) as fake:
        named = {"TREADLE_AUTO_NAME": "true"}
        await place.quick("run", "why is the build red?", *model_options(fake), env=named)
        await place.quick("run", "when did it start?", "--name", "mine", *model_options(fake), env=named)
        (place.work / "log.txt").write_text("secret")
        await place.quick("run", "see @log.txt", *model_options(fake), env=named)
    listed = (await place.quick("sessions")).out
    assert "why is the build red?" in listed and "mine" in listed and "when did" not in listed
    assert "see @log.txt " in listed and "secret" not in listed


LONG = "wurzel " * 60
PROSE = Odd(Reply(text=f"# Findings\n\n- it is **red**\n{LONG}\n**done**", reasoning="hm, let me think"), split=40)


@pytest.mark.parametrize(
    "case",
    [
        Case("run", [PROSE], [("", 0)], ("run", "look")),
        Case("chat", [PROSE], [("look\r", Fact(RunFinished)), ("", "done")]),
    ],
    ids=lambda case: case.name,
)
async def test_prose_is_styled_and_long_lines_stay_whole(place: Place, case: Case) -> None:
    screen = (await play(place, case)).screen
    assert "Findings\n\n• it is red" in screen.text and "#" not in screen.text and "**" not in screen.text
    assert screen.unbroken.count("wurzel") == 60 and screen.text.count("▸ thought") == 1


async def test_a_terminal_that_only_prints_can_watch_and_run_but_not_chat(place: Place) -> None:
    script = [call_tool("calculate", expression="1+1"), Reply(text="**Ready.**")]
    async with StrictChat(script) as fake:
        run = ("run", "get ready", *model_options(fake))
        for env, words, code, shown in [
            ({"TREADLE_PLAIN": "1"}, run, 0, "ok calculate 1+1"),
            ({"TERM": "dumb"}, (*run, "--name", "job"), 0, "**Ready.**"),
            ({"TERM": "dumb"}, ("attach", "job"), 0, "**Ready.**"),
            ({"TERM": "dumb"}, ("chat", *model_options(fake)), 2, "treadle run --session"),
        ]:
            async with place.screen(*words, env=env) as screen:
                assert await screen.end() == code
            assert b"\x1b" not in screen.raw and shown in screen.text
