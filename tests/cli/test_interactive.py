"""The interactive terminal: access modes, plans, pickers, the menu, the queue, questions and the status line."""

import re
import signal

import pytest

from tests.kit.git_rewinding import create_repository
from tests.kit.terminal import (
    Case,
    Fact,
    Place,
    Played,
    Shows,
    Start,
    call_tool,
    hold,
    needs_sandbox,
    play,
    read_user_messages,
    release,
    send_signal,
)
from treadle.app.session_access import PLAN_ACCEPTED
from treadle.events import RunFinished, SessionConfigured, TurnStarted
from treadle.messages import Reply

SHIFT_TAB, UP, TAB, ESCAPE = "\x1b[Z", "\x1b[A", "\t", "\x1b"
CTRL_G, CTRL_R, CTRL_U = "\x07", "\x12", "\x15"
ASK = call_tool("write_file", path="AGENTS.md", content="be kind\n")
PLAN = Reply(text="1. Parse the date\n2. Filter in the store")
LONG = call_tool("write_file", path="AGENTS.md", content="".join(f"rule {number}\n" for number in range(60)))


def has_no_request(played: Played) -> None:
    assert played.fake.seen == []


def has_no_file(played: Played) -> None:
    assert not (played.place.work / "AGENTS.md").exists()


MODES = [
    Case(
        "Shift-Tab goes through the modes, says what each allows and asks before full",
        [Reply(text="Hello.")],
        [
            (SHIFT_TAB, "plan  reads and proposes; you accept before it changes"),
            (SHIFT_TAB, "read-only  reads; asks before it changes anything"),
            (SHIFT_TAB, "┃ ? Full access in"),
            ("", "Esc no"),
            ("n", Fact(SessionConfigured, 3)),
            (SHIFT_TAB, "plan  reads and"),
            (SHIFT_TAB, "read-only  reads;"),
            (SHIFT_TAB, "Esc no"),
            ("n" + SHIFT_TAB, "plan  reads and"),
            (SHIFT_TAB, "read-only  reads;"),
            (SHIFT_TAB, "Esc no"),
            ("y", "full  all that you can do; danger still asks"),
            ("hello\r", "Hello."),
            ("", "full · fake"),
        ],
        facts={SessionConfigured: 9},
    ),
    Case(
        "a plan is accepted and then carried out",
        [PLAN, call_tool("write_file", path="a.txt", content="one\n"), Reply(text="It is done.")],
        [
            (SHIFT_TAB, "plan  reads"),
            ("add a flag\r", "┃ ? Do it this way?  nothing has changed yet"),
            ("", "Esc decide later with /plan"),
            ("y", "It is done."),
            ("", "sandbox · fake"),
        ],
        shows=(f"› {PLAN_ACCEPTED}",),
        files={"a.txt": "one\n"},
    ),
    Case(
        "what is missing in a plan goes to the model, and it stays in plan mode",
        [PLAN, PLAN],
        [
            (SHIFT_TAB, "plan  reads"),
            ("add a flag\r", "Esc decide later"),
            ("nand tests\r", Fact(RunFinished, 2)),
            ("", "Esc decide later"),
            (ESCAPE, "plan · fake"),
            ("/plan\r", "Esc decide later"),
            (ESCAPE, "plan · fake"),
        ],
        said=("add a flag", "and tests"),
    ),
]

QUEUE = [
    Case(
        "Tab keeps a message until the run has ended, and it can be edited",
        [hold(Reply(text="First.")), Reply(text="Second.")],
        [
            ("go\r", Fact(TurnStarted)),
            ("then lint", "Tab keeps it for after"),
            (TAB, "after then lint"),
            (UP, "▸ after then lint"),
            ("\r", Shows("› then lint", without="after then lint")),
            (f" it{TAB}", "after then lint it"),
            (release, "Second."),
            ("", Fact(RunFinished, 2)),
        ],
        said=("go", "then lint it"),
    ),
    Case(
        "a kept message is taken out, or is named when the user leaves",
        [hold(Reply(text="First."))],
        [
            ("go\r", Fact(TurnStarted)),
            (f"one{TAB}", "after one"),
            (f"two{TAB}", "after two"),
            (UP, "▸ after two"),
            ("\x7f", Shows("after one", without="not sent")),
            ("\x04", 0),
        ],
        shows=("not sent: one",),
        counts={"not sent: two": 0},
    ),
]

INPUT = [
    Case(
        "a file is found by some of its letters, and the search goes into folders",
        [Reply(text="I see.")],
        [("look at @clst", "▸ src/cli/status.py"), (TAB, "› look at @src/cli/status.py"), ("\r", "I see.")],
        before={"src/cli/status.py": "the gauge", "docs/clients.md": "none", "node_modules/clst": "none"},
        told="the gauge",
    ),
    Case(
        "a file that is not there is named before the message goes out",
        [Reply(text="I see.")],
        [
            ("see @src/nothere.py", "! src/nothere.py is not there; it is sent as plain text"),
            ("\r", "! src/nothere.py is not there; Enter sends it as plain text"),
            (has_no_request, None),
            ("\r", "I see."),
        ],
        said=("see @src/nothere.py",),
    ),
    Case(
        "Ctrl-R finds what was typed in an earlier chat",
        [Reply(text="Hello."), Reply(text="Bye."), Reply(text="Again.")],
        [
            ("good morning\r", "Hello."),
            ("good night\r", "Bye."),
            ("", Fact(RunFinished, 2)),
            ("\x04", 0),
            (Start(("chat", "--continue")), "Bye."),
            (CTRL_R, "▸ good night"),
            ("morn", Shows("History 1 of 2", without="▸ good night\n  good")),
            ("\r", "› good morning\n  sandbox"),
            ("\r", "Again."),
        ],
        said=("good morning", "good night", "good morning"),
    ),
    Case(
        "a long text that is pasted is one message, and the input stays small",
        [Reply(text="Long.")],
        [
            ("\x1b[200~" + "\n".join(f"row {number}" for number in range(300)) + "\x1b[201~", "row 299"),
            (has_no_request, None),
            ("\r", "Long."),
        ],
        said=("\n".join(f"row {number}" for number in range(300)),),
    ),
    Case(
        "a message that cannot be sent comes back to the input",
        [Reply(text="I see.")],
        [("see @big.txt\r", "too many to attach"), ("", "› see @big.txt\n"), (CTRL_U, None), ("hello\r", "I see.")],
        before={"big.txt": "x" * 300_000},
        said=("hello",),
    ),
]

QUESTIONS = [
    Case(
        "words typed at a question are kept for the next message",
        [ASK, Reply(text="As you like."), Reply(text="Hi.")],
        [
            ("write it\r", "Esc stops the run"),
            ("hello", "Enter keeps it for afterwards"),
            ("\r", "Esc stops the run"),
            (has_no_file, None),
            ("n\r", "As you like."),
            ("", "› hello\n  sandbox"),
            ("\r", "Hi."),
        ],
        said=("write it", "hello"),
        files={"AGENTS.md": None},
        counts={"wants to run": 0, "you denied": 1},
    ),
    Case(
        "a yes counts only after the end of a long question was shown",
        [LONG, Reply(text="Written.")],
        [
            ("write it\r", "a yes counts when the end was shown"),
            ("", "Esc stops the run"),
            ("y", None),
            *([("\x1b[6~", None)] * 4),
            ("", "60 + rule 59"),
            (has_no_file, None),
            ("y", "Written."),
        ],
    ),
    Case(
        "the end of a long question is one key away",
        [LONG, Reply(text="Written.")],
        [
            ("write it\r", "a yes counts when the end was shown"),
            ("", "Esc stops the run"),
            ("\x1b[F", "60 + rule 59"),
            ("y", "Written."),
        ],
    ),
    Case(
        "a denial that was answered here is one line",
        [ASK, Reply(text="As you like.")],
        [("write it\r", "Esc stops the run"), ("n", "no, because:"), ("not today\r", "As you like.")],
        shows=("⊘ you denied   write_file AGENTS.md · not today\n\nAs you like.",),
        counts={"⊘": 1},
    ),
    Case(
        "Esc at a question stops the run",
        [ASK],
        [("write it\r", "Esc stops the run"), (ESCAPE, Fact(RunFinished))],
        shows=("› write it",),
        files={"AGENTS.md": None},
    ),
    Case(
        "a question of the agent is answered by a number, and a draft comes back",
        [hold(call_tool("ask_user", question="Which colour?", options=["red", "blue"])), Reply(text="Blue it is.")],
        [
            ("paint it\r", Fact(TurnStarted)),
            ("half a", "› half a"),
            (release, "Enter answers"),
            ("2\r", "Blue it is."),
            ("", "› half a\n  sandbox"),
            (CTRL_U, None),
        ],
        shows=("✓ you answered blue",),
    ),
]


@pytest.mark.parametrize("case", [*MODES, *QUEUE, *INPUT, *QUESTIONS], ids=lambda case: case.name)
async def test_keys_lead_to_the_screen(place: Place, case: Case) -> None:
    await play(place, case)


async def test_the_menu_says_how_much_more_there_is_and_completes_a_command(place: Place) -> None:
    more = lambda played: played.screen.until(lambda text: bool(re.search(r"↓ \d+ more · Tab complete", text)))  # noqa: E731
    steps = [("/", "▸ /help"), (more, None), ("he\t", "› /help\n"), (CTRL_U, None)]
    await play(place, Case("", [], steps))


async def test_sixty_columns_are_enough(place: Place) -> None:
    steps = [
        ("", "Ctrl-D leaves"),
        ("write it\r", "Esc stops the run"),
        ("n", "no, because:"),
        ("not today\r", "As you like."),
        ("", "sandbox · fake"),
        ("/sessions\r", "no other session, in this folder or elsewhere"),
        (ESCAPE, "Ask, or"),
    ]
    script = [ASK, Reply(text="As you like.")]
    played = await play(place, Case("", script, steps, columns=60, told="not today"))
    assert all(len(line) <= 60 for line in played.screen.text.splitlines())
    assert "⊘ you denied" in played.screen.text


async def test_the_status_line_tells_access_model_and_branch(place: Place) -> None:
    create_repository(place.work)
    steps = [("hello\r", "Hello."), ("", "sandbox · fake · main")]
    await play(place, Case("", [Reply(text="Hello.")], steps))


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("""printf 'my %s line\\n' "$(sed 's/.*"access": "\\([a-z]*\\)".*/\\1/')\"""", "\n  my sandbox line"),
        ("sleep 9", "status_command is not used: it took more than 0.3 s"),
    ],
    ids=["its line is shown", "a slow one is not used"],
)
async def test_a_script_of_the_user_replaces_the_status_line(place: Place, command: str, shown: str) -> None:
    config = place.home / ".config/treadle/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f"[terminal]\nstatus_command = '''{command}'''\n")
    await play(place, Case("", [Reply(text="Hello.")], [("hello\r", "Hello."), ("", shown)]))


def set_editor(place: Place, script: str) -> None:
    """Make a shell script the editor of the user."""
    editor = place.home / "editor"
    editor.write_text(f"#!/bin/sh\n{script}\n")
    editor.chmod(0o755)
    place.env |= {"EDITOR": str(editor), "VISUAL": ""}


async def test_a_plan_is_edited_before_it_is_accepted(place: Place) -> None:
    set_editor(place, 'printf "1. Only the date\\n" > "$1"')
    steps = [
        (SHIFT_TAB, "plan  reads"),
        ("add a flag\r", "Esc decide later"),
        ("e", "1. Only the date"),
        ("", "Esc decide later"),
        ("r", "It is done."),
        ("", "read-only · fake"),
    ]
    played = await play(place, Case("", [PLAN, Reply(text="It is done.")], steps))
    assert "Only the date" in str(played.fake.seen[-1].body["messages"][-1])
    assert "Parse the date" not in str(played.fake.seen[-1].body["messages"][-1])


async def test_an_emptied_plan_is_not_accepted(place: Place) -> None:
    set_editor(place, ': > "$1"')
    steps = [
        (SHIFT_TAB, "plan  reads"),
        ("add a flag\r", "Esc decide later"),
        ("e", "an empty plan cannot be accepted; it stays as it was"),
        ("", "Esc decide later"),
        ("y", "It is done."),
    ]
    played = await play(place, Case("", [PLAN, Reply(text="It is done.")], steps))
    assert "Parse the date" in str(played.fake.seen[-1].body["messages"][-1])


@pytest.mark.parametrize(
    ("editor", "problem"),
    [
        ("vi 'x", "No closing quotation. Correct EDITOR"),
        ("no-such-editor", "no-such-editor: No such file or directory; the text stays as it was"),
        ("false", "false ended with code 1; the text stays as it was"),
    ],
)
async def test_an_editor_that_cannot_be_used_is_noted_and_the_text_stays(
    place: Place, editor: str, problem: str
) -> None:
    place.env |= {"EDITOR": editor, "VISUAL": ""}
    steps = [("hel", "› hel"), (CTRL_G, problem), ("lo\r", "Good day.")]
    played = await play(place, Case("", [Reply(text="Good day.")], steps))
    assert "hello" in str(played.fake.seen[-1].body["messages"][-1])


async def test_a_ctrl_c_in_the_editor_is_for_the_editor(place: Place) -> None:
    set_editor(place, 'kill -INT $PPID; kill -INT $PPID; printf changed > "$1"')
    await play(place, Case("", [], [("hel", "› hel"), (CTRL_G, "› changed"), (CTRL_U, None)]))


async def test_a_chat_ends_at_sigterm_while_an_editor_has_the_terminal(place: Place) -> None:
    set_editor(place, "echo it runs; exec tail -f /dev/null")
    await play(place, Case("", [], [(CTRL_G, "it runs"), (send_signal(signal.SIGTERM), 0)]))


@needs_sandbox
async def test_a_command_of_the_user_runs_and_the_model_reads_it(place: Place) -> None:
    steps = [
        ("!", "the model reads it with your next message"),
        ("echo $((40+2)) > n; cat n\r", Fact(RunFinished)),
        ("", "✓ shell"),
        ("what was it?\r", "It was 42."),
    ]
    played = await play(place, Case("", [Reply(text="It was 42.")], steps, files={"n": "42\n"}))
    assert "› !echo $((40+2)) > n; cat n" in played.text
    assert "42" in str(played.fake.seen[-1].body["messages"][1:-1])


async def test_sessions_opens_another_session_that_was_searched_for(place: Place) -> None:
    script = [Reply(text="Roses."), Reply(text="Tulips."), Reply(text="Still roses.")]
    steps = [
        ("about roses\r", "Roses."),
        ("", Fact(RunFinished)),
        ("\x04", 0),
        (Start(("chat",)), None),
        ("about tulips\r", "Tulips."),
        ("/sessions\r", "▸ about roses"),
        ("tulip", "nothing matches"),
        (CTRL_U + "rose", "▸ about roses"),
        ("\r", "› about roses"),
        ("and now?\r", "Still roses."),
    ]
    played = await play(place, Case("", script, steps))
    assert read_user_messages(played.fake) == ["about roses", "and now?"]
