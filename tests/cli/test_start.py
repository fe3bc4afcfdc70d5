"""How a command line starts: without a command, with a message, with a mistyped command, and in the last session."""

import json
from typing import Any
from unittest import mock

import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.terminal import Place, model_options, read_user_messages
from treadle.cli import chat
from treadle.cli.main import COMMANDS, complete_words
from treadle.errors import BadInput
from treadle.messages import Reply


def name_model(fake: StrictChat) -> dict[str, str]:
    """The variables that replace the model by a fake, for a command line without options."""
    return {"TREADLE_MODEL": "fake", "TREADLE_BASE_URL": fake.base_url, "TREADLE_API_KEY_ENV": "TEST_KEY"}


async def test_treadle_alone_opens_a_chat(place: Place) -> None:
    async with StrictChat([Reply(text="Hello Ada.")]) as fake, place.screen(env=name_model(fake)) as screen:
        await screen.until("What shall be done?")
        screen.type("hello\r")
        await screen.until("Hello Ada.")
        assert await screen.leave() == 0 and screen.echoes
        assert read_user_messages(fake) == ["hello"]


async def test_a_message_starts_a_chat_and_options_go_with_it(place: Place) -> None:
    script = [Reply(text="Since Monday."), Reply(text="Ada did."), Reply(text="Nobody.")]
    async with StrictChat(script) as fake:
        async with place.screen(*model_options(fake), "--approve", "read_*", "since when?") as screen:
            assert "› since when?" in (await screen.until("Since Monday.")).replace("> since", "› since")
            screen.type("who broke it?\r")  # the first message is sent once
            await screen.until("Ada did.")
            assert await screen.leave() == 0
        async with place.screen("and who fixes it?", "--continue", env=name_model(fake)) as screen:
            await screen.until("Nobody.")
            assert await screen.leave() == 0
        assert read_user_messages(fake) == ["since when?", "who broke it?", "and who fixes it?"]


async def test_a_first_message_that_cannot_be_sent_stays_to_be_corrected(place: Place) -> None:
    async with StrictChat([Reply(text="Good.")]) as fake, place.screen("/nosuch thing", env=name_model(fake)) as screen:
        await screen.until(lambda text: "› /nosuch thing" in text)
        screen.type("\x15hello\r")
        await screen.until("Good.")
        assert await screen.leave() == 0


async def test_resume_asks_which_session_to_continue(place: Place) -> None:
    async with StrictChat([Reply(text="One."), Reply(text="Two."), Reply(text="Three.")]) as fake:
        for words in ("first task", "second task"):
            assert (await place.quick("run", words, "--name", words, *model_options(fake))).code == 0
        async with place.screen("--resume", "go on with it", env=name_model(fake)) as screen:
            shown = await screen.until("Enter open")
            assert shown.index("second task") < shown.index("first task")
            screen.type("first\r")
            await screen.until("Three.")
            assert await screen.leave() == 0
        assert read_user_messages(fake) == ["first task", "go on with it"]
        async with place.screen("--resume", env=name_model(fake)) as screen:
            await screen.until("Enter open")
            screen.type("\x1b")
            assert await screen.end() == 2 and "no session was chosen; nothing was started" in screen.text


async def test_without_a_terminal_treadle_shows_its_help(place: Place) -> None:
    done = await place.run()
    assert (done.code, done.err) == (0, "") and done.out.startswith('usage: treadle ["MESSAGE"]')
    done = await place.quick("why is the build red?")
    assert done.code == 2 and 'a chat needs a terminal; without one, use `treadle run "…"`' in done.err


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ([], ["chat"]),
        (["sessions"], ["sessions"]),
        (["-V"], ["version"]),
        (["--version"], ["version"]),
        (["help"], ["help"]),
        (["fix the tests"], ["chat", "fix the tests"]),
        (["sessions are slow"], ["chat", "sessions are slow"]),
        (["hello"], ["chat", "hello"]),
        (["hello", "--yes"], ["chat", "hello", "--yes"]),
        (["--model", "local", "hello"], ["chat", "--model", "local", "hello"]),
        (["--continue"], ["chat", "--continue"]),
    ],
)
def test_words_without_a_command_belong_to_chat(words: list[str], completed: list[str]) -> None:
    with mock.patch("sys.stdin.isatty", return_value=True), mock.patch("sys.stdout.isatty", return_value=True):
        assert complete_words(words) == completed
    assert completed[0] in (*COMMANDS, "help")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sesions"], "there is no command 'sesions'; did you mean sessions?"),
        (["sesions", "list"], "did you mean sessions?"),
        (["cofnig", "--json"], "did you mean config?"),
        (["fix", "the", "tests"], "to send a message: treadle run 'fix the tests'."),
    ],
)
def test_a_mistyped_command_is_not_a_message(words: list[str], said: str) -> None:
    is_terminal = mock.patch.multiple("sys", stdin=mock.Mock(), stdout=mock.Mock())
    with is_terminal, pytest.raises(BadInput) as caught:
        complete_words(words)
    assert said in str(caught.value)


def test_a_message_can_follow_a_list_of_patterns() -> None:
    args: Any = chat.parser().parse_args(["--approve", "read_*", "look around"])
    assert (args.prompt, args.approve) == (None, ["read_*", "look around"])


async def test_run_goes_on_with_the_last_session_of_the_folder(place: Place) -> None:
    async with StrictChat([Reply(text="One."), Reply(text="Two.")]) as fake:
        fresh = await place.quick("run", "--continue", "start", "--json", *model_options(fake))
        again = await place.quick("run", "--continue", "go on", "--json", *model_options(fake))
        assert fresh.document["session_id"] == again.document["session_id"]
        assert read_user_messages(fake) == ["start", "go on"]
        renamed = await place.quick("run", "--continue", "x", "--name", "y", *model_options(fake))
        assert renamed.code == 2 and "--name is for a new session" in renamed.err


async def test_run_continue_without_a_session_needs_a_task(place: Place) -> None:
    done = await place.quick("run", "--continue")
    assert done.code == 2 and "there is no session in" in done.err and "say what to do" in done.err


async def test_last_is_the_session_that_was_changed_last(place: Place) -> None:
    assert "there is no last one" in (await place.quick("sessions", "show", "last")).err
    async with StrictChat([Reply(text=text) for text in ("One.", "Two.", "Three.")]) as fake:
        first = (await place.quick("run", "a", "--json", *model_options(fake))).document["session_id"]
        second = (await place.quick("run", "b", "--json", *model_options(fake))).document["session_id"]
        assert second in (await place.quick("sessions", "show", "last")).out
        await place.quick("run", "c", "--session", first, *model_options(fake))
    assert first in (await place.quick("sessions", "show", "last")).out
    assert first in (await place.quick("sessions", "export", "last")).out
    assert first[:12] in (await place.quick("sessions", "delete", "last", "--yes")).err
    assert second in (await place.quick("sessions", "show", "last")).out


async def test_version_says_what_runs_here(place: Place) -> None:
    shown = (await place.quick("version")).out
    assert shown == (await place.quick("--version")).out and shown.startswith("treadle ")
    document = json.loads((await place.quick("version", "--json")).out)
    assert shown == f"treadle {document['treadle']}\n" and document.keys() == {"treadle", "python", "platform"}
