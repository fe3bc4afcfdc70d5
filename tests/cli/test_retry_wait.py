"""An overloaded provider on the command line: the wait is shown with a countdown, and a key ends it."""

import asyncio
import re
import signal
from dataclasses import replace

import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.server import Odd, status
from tests.kit.sessions import PATIENCE
from tests.kit.terminal import Case, Fact, Place, Played, Shows, Start, model_options, play, release
from treadle.events import ModelFailed, RetryRequested, RunFinished, TurnStarted
from treadle.messages import Reply

DONE = Reply(text="At last.")
BUSY = status(429, "slow down", retry_after="45")
PARKED = status(429, "slow down", retry_after="400")


def read_seconds(text: str) -> int:
    """The seconds that are left, as the screen shows them."""
    (minutes, seconds), *_ = re.findall(r"retrying in (?:(\d+)m )?(\d+) ?s", text)
    return int(minutes or 0) * 60 + int(seconds)


async def watch_countdown(played: Played) -> None:
    """Wait until fewer seconds are left than now."""
    first = read_seconds(played.screen.text)
    await played.screen.until(lambda text: read_seconds(text) < first)


CASES = [
    Case(
        "a chat counts down, and Enter asks again",
        [BUSY, DONE],
        [("hi\r", "Provider overloaded 429, retrying in"), (watch_countdown, None), ("\r", "At last.")],
        facts={ModelFailed: 1, RetryRequested: 1, RunFinished: 1},
    ),
    Case(
        "a chat whose run is parked counts down, and Enter asks again",
        [PARKED, DONE],
        [("hi\r", "Enter: now, Esc: stop"), (watch_countdown, None), ("\r", "At last.")],
        facts={RetryRequested: 1, RunFinished: 1},
    ),
    Case(
        "Esc stops the wait",
        [PARKED],
        [("hi\r", "Enter: now, Esc: stop"), ("\x1b", "Cancelled")],
        facts={ModelFailed: 1, RunFinished: 1},
    ),
    Case(
        "a run counts down, and Enter asks again",
        [PARKED, DONE],
        [("", "Enter tries now, Ctrl-C stops"), (watch_countdown, None), ("\r", 0)],
        ("run", "hi"),
        shows=("At last.",),
        facts={RetryRequested: 1, RunFinished: 1},
    ),
    Case(
        "Ctrl-C stops the wait of a run",
        [PARKED],
        [("", "Enter tries now, Ctrl-C stops"), ("\x03", 130)],
        ("run", "hi"),
        facts={RunFinished: 1},
    ),
    Case(
        "Enter that was typed before the wait of a run was shown does not end it",
        [replace(PARKED, held=asyncio.Event())],
        [
            ("", Fact(TurnStarted)),
            ("\r", None),
            (release, "Enter tries now, Ctrl-C stops"),
            (watch_countdown, None),
            ("\x03", 130),
        ],
        ("run", "hi"),
        facts={ModelFailed: 1, RetryRequested: 0},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_the_wait_is_shown_and_ends_at_a_key(place: Place, case: Case) -> None:
    await play(place, case)


@pytest.mark.parametrize("failure", [BUSY, PARKED], ids=["a short wait", "parked"])
async def test_a_killed_chat_goes_on_with_the_same_wait(place: Place, failure: Odd) -> None:
    def kill(played: Played) -> None:
        played.screen.kill(signal.SIGKILL)

    again = Start(("chat", "--continue"))
    steps = [
        ("hi\r", "Enter: now, Esc: stop"),
        (kill, None),
        (again, Shows("retrying in", below="resuming unfinished work")),
        ("\r", "At last."),
    ]
    played = await play(place, Case("", [failure, DONE], steps, facts={ModelFailed: 1, RunFinished: 1}))
    assert len([one for one in played.fake.seen if one.path == "/v1/chat/completions"]) == 2


async def test_without_a_terminal_each_attempt_is_one_line(place: Place) -> None:
    second = status(429, "slow down", retry_after="1")
    async with StrictChat([second, second, DONE]) as fake:
        done = await place.run("run", "hi", *model_options(fake))
    assert (done.code, done.out) == (0, "At last.\n")
    lines = [line for line in done.err.splitlines() if "Provider" in line]
    assert [re.sub(r"\d\d:\d\d", "HH:MM", line) for line in lines] == [
        f"treadle: Provider overloaded 429, retrying in 1 s ({attempt}, until HH:MM)" for attempt in (2, 3)
    ]


async def test_the_events_of_a_json_run_say_how_long_it_waits(place: Place) -> None:
    async with StrictChat([status(503, retry_after="1"), DONE]) as fake:
        done = await place.run("run", "hi", "--json", *model_options(fake))
    assert done.document["answer"] == "At last."
    (failed,) = [line for line in done.log_lines if line["type"] == "model_failed"]
    assert (failed["wait"], failed["status"], failed["kind"]) == (1.0, 503, "overloaded")
    assert failed["give_up_at"] == pytest.approx(failed["at"] + 600, rel=0, abs=5)


async def test_a_parked_run_is_listed_with_its_time_and_retried_from_another_process(place: Place) -> None:
    async with StrictChat([PARKED, DONE]) as fake:
        process = await place.start("run", "hi", *model_options(fake))
        await place.wait_for_fact(ModelFailed)
        async with asyncio.timeout(PATIENCE):
            listed = await place.quick("sessions")
            while "retries at" not in listed.out.splitlines()[1]:
                listed = await place.quick("sessions")
        session = listed.out.splitlines()[1].split()[0]
        shown = await place.quick("sessions", "show", session)
        assert "retries at" in shown.out and "Provider overloaded 429" in shown.out
        retried = await place.quick("sessions", "retry", session)
        assert (retried.code, "asks again now" in retried.err) == (0, True)
        out, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert (process.returncode, out) == (0, b"At last.\n")
        again = await place.quick("sessions", "retry", session)
        assert again.code == 1 and "does not wait for its provider" in again.err


async def test_a_parked_run_says_how_long_it_waits_when_it_is_resumed_without_a_terminal(place: Place) -> None:
    async with StrictChat([PARKED, DONE]) as fake, asyncio.timeout(PATIENCE):
        killed = await place.start("run", "hi", *model_options(fake))
        await place.wait_for_fact(ModelFailed)
        killed.kill()
        await killed.communicate()
        session = (await place.quick("sessions", "list", "--json")).lines[0]["id"]
        process = await place.start("sessions", "resume", session, *model_options(fake))
        assert process.stderr is not None
        async for line in process.stderr:
            if b"Provider overloaded 429, retrying in 6m 3" in line:
                break
        else:
            raise AssertionError("the wait was not shown")
        assert (await place.quick("sessions", "retry", session)).code == 0
        assert (await process.communicate())[0] == b"At last.\n"


async def test_an_attached_terminal_shows_the_wait_and_ends_it(place: Place) -> None:
    async with StrictChat([PARKED, DONE]) as fake:
        process = await place.start("run", "hi", *model_options(fake))
        await place.wait_for_fact(ModelFailed)
        session = (await place.quick("sessions", "list", "--json")).lines[0]["id"]
        async with place.screen("attach", session) as screen:
            await screen.until("Enter: now, /stop: stop")
            screen.type("\r")
            await screen.until("At last.")
            screen.type("\x04")
            await screen.end()
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
