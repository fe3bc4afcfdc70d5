"""`treadle sessions trace`: when a session worked and waited, on terminals of every width, in a pipe and as JSON."""

import json
import time
from typing import Any

import pytest

from tests.kit.terminal import Place
from treadle import events
from treadle.log.sqlite import SqliteLog
from treadle.messages import Call, Usage

SESSION, HELPER = "3f2a91b8c02d" + "0" * 20, "77de10aa" + "1" * 24
BEGAN = 1_800_000_000.0


class Story:
    """Facts of a session, each some seconds after the one before."""

    def __init__(self, began: float = BEGAN) -> None:
        self.at = began
        self.facts: list[Any] = [events.SessionCreated(session_id=SESSION, at=began)]

    def add(self, seconds: float, fact: Any) -> None:
        self.at += seconds
        self.facts.append(
            type(fact)(**{name: getattr(fact, name) for name in fact.__struct_fields__} | {"at": self.at})
        )

    def begin(self, **limits: Any) -> None:
        self.add(0, events.RunStarted(run_id="r", limits=events.Limits(**limits)))

    def turn(self, number: int, seconds: float, *calls: Call, usage: Usage = Usage()) -> None:  # noqa: B008
        self.add(0, events.TurnStarted(turn=number))
        self.add(seconds, events.ModelReplied(calls=calls, usage=usage))

    def call(self, seconds: float, call: Call, output: str = "", status: events.CallStatus = "ok") -> None:
        self.add(0, events.CallStarted(call_id=call.id, tool=call.tool, arguments=json.loads(call.arguments)))
        self.add(seconds, events.CallFinished(call_id=call.id, tool=call.tool, status=status, output=output))

    def finish(self, reason: events.EndReason = "answered") -> None:
        self.add(0, events.RunFinished(run_id="r", reason=reason))

    async def store(self, place: Place, *helpers: events.SessionCreated) -> str:
        log = SqliteLog(place.home / "store.db")
        await log.create(SESSION, [*self.facts, events.SessionRenamed(name="fix token counting", at=self.at)])
        for helper in helpers:
            await log.create(helper.session_id, [helper])
        await log.close()
        return str(place.home / "store.db")


def request(id: str, tool: str, **arguments: Any) -> Call:
    return Call(id, tool, json.dumps(arguments))


def tell_story() -> Story:
    """A run of 102 seconds: two reads, a failed command, two retries, an approval, a helper."""
    story, reads = Story(), [request(f"r{at}", "read_file", path=f"{at}.py") for at in range(2)]
    test, push = request("t", "shell", command="make test"), request("p", "shell", command="git push")
    story.begin()
    story.turn(1, 6, *reads, usage=Usage(2100, 90, cost=0.31))
    for read in reads:
        story.call(0.2, read, "one\ntwo\n")
    story.turn(2, 12.6, test, usage=Usage(9800, 310))
    story.call(12.4, test, "FAILED\nexit code 2", "error")
    story.add(0, events.TurnStarted(turn=3))
    story.add(0, events.ModelFailed(kind="internal", message="boom", status=500, wait=1.6))
    story.add(1.6, events.ModelFailed(kind="internal", message="boom", status=500, attempt=2, wait=4.0))
    story.add(25, events.ModelReplied(calls=(push,), usage=Usage(12_000, 640)))
    asked = events.ApprovalRequested(call_id="p", tool="shell", arguments={}, safety="destructive", why="")
    story.add(0, asked)
    story.add(16, events.ApprovalAnswered(call_id="p", decision="allow"))
    story.call(3, push)
    story.call(18, request("d", "delegate", task="look for emoji"), "found")
    story.turn(4, 7, usage=Usage(14_000, 210))
    story.finish()
    return story


HELPERS = (events.SessionCreated(session_id=HELPER, parent=events.Parent(SESSION, 1, "d")),)
AT_80 = """\
fix token counting · 3f2a91b8c02d · 1m 42s · $0.31 · 4 turns, 5 calls
                                    0 s       25 s      50 s      75 s     100 s
turn 1  model      2.1k in 90 out   ██ 6.0 s
  read_file        2 calls            █ 0.4 s
turn 2  model      9.8k in 310 out    █████ 12.6 s
  shell make test  exit 2                  █████ 12.4 s
turn 3  retry 500  3 of 4                       ░░░ 5.6 s
turn 3  model      12.0k in 640 out                ████████ 21 s
  you answered     allowed                                 ░░░░░░░ 16.0 s
  shell git push                                                  █ 3.0 s
  delegate look f… helper 77de10aa                          18.0 s ████████
turn 4  model      14.0k in 210 out                                  7.0 s ███
█ working  ░ waiting  slowest: model, turn 3 (21 s) · you: 16.0 s"""


async def show(place: Place, store: str, columns: int, *words: str) -> list[str]:
    command = ("sessions", "trace", SESSION[:6], "--store", store, *words)
    async with place.screen(*command, columns=columns) as screen:
        assert await screen.end() == 0
    return screen.text.splitlines()


async def test_each_step_has_a_bar_on_a_scale(place: Place) -> None:
    store = await tell_story().store(place, *HELPERS)
    assert await show(place, store, 80) == AT_80.splitlines()


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
async def test_the_trace_fits_the_terminal(place: Place, columns: int) -> None:
    lines = await show(place, await tell_story().store(place, *HELPERS), columns)
    assert [line for line in lines if len(line) > columns] == []
    names = [line[:18].strip() for line in lines[2:-1]]
    expected = [line[:18].strip() for line in AT_80.splitlines()[2:-1]]
    assert names == expected, "no step is missing"
    assert [line for line in lines[2:-1] if "█" not in line and "░" not in line] == []
    assert ("2.1k in 90 out" in lines[2], lines[2].find("6.0 s") < 28) == (columns >= 80, columns < 80)


async def test_a_pipe_gets_plain_text(place: Place) -> None:
    store = await tell_story().store(place, *HELPERS)
    done = await place.quick("sessions", "trace", "last", "--store", store)
    assert done.code == 0 and done.out.isascii() and "\x1b" not in done.out and done.err == ""
    assert "turn 3  retry 500  3 of 4" in done.out and "# working  . waiting" in done.out


async def test_the_steps_can_be_read_by_a_program(place: Place) -> None:
    store = await tell_story().store(place, *HELPERS)
    done = await place.quick("sessions", "trace", "last", "--store", store, "--json")
    steps = done.lines
    assert [(one["kind"], one["seconds"]) for one in steps if one["turn"] == 3][:5] == [
        ("model", 0.0),
        ("provider", 1.6),
        ("model", 0.0),
        ("provider", 4.0),
        ("model", 21.0),
    ]
    assert [one["helper"] for one in steps if one["name"] == "delegate"] == [HELPER]
    assert {one["run"] for one in steps} == {1}


async def test_each_run_has_its_own_scale_and_says_how_it_ended(place: Place) -> None:
    story = tell_story()
    story.add(3600, events.RunStarted(run_id="s", limits=events.Limits()))
    story.turn(1, 2)
    story.finish("turn_limit")
    lines = await show(place, await story.store(place), 80)
    assert lines[0].endswith("1m 44s · $0.31 · 5 turns, 5 calls"), "the hour between the runs does not count"
    first, second = (at for at, line in enumerate(lines) if line.startswith("run "))
    assert "1m 42s" in lines[first] and "Stopped at the turn limit · 2.0 s · 1 turn" in lines[second]
    assert lines[second + 1].split() == ["0", "s", "0.5", "s", "1", "s", "1.5", "s", "2", "s"]


async def test_a_long_session_shows_its_end_and_how_much_is_left_out(place: Place) -> None:
    story = Story()
    story.begin()
    for turn in range(1, 301):
        story.turn(turn, 2)
    story.finish()
    store = await story.store(place)
    lines = await show(place, store, 80)
    assert lines[1] == "… 200 earlier rows · --limit 300 shows them"
    assert lines[2].split()[:2] == ["400", "s"], "the scale begins with the first row that is shown"
    assert len(lines) == 104 and lines[3].startswith("turn 201  model") and lines[-2].startswith("turn 300  model")
    done = await place.quick("sessions", "trace", "last", "--store", store, "--limit", "300")
    assert done.out.count("  model") == 300 and "earlier" not in done.out
    done = await place.quick("sessions", "trace", "last", "--store", store, "--limit", "0")
    assert done.code == 2 and "--limit must be at least 1" in done.err


async def test_a_session_that_waits_for_a_person_waits_until_now(place: Place) -> None:
    story = Story(time.time() - 500)
    story.begin()
    story.turn(1, 20, request("p", "shell", command="git push"))
    story.add(0, events.ApprovalRequested(call_id="p", tool="shell", arguments={}, safety="destructive", why=""))
    lines = await show(place, await story.store(place), 80)
    assert lines[3].startswith("  waits for you    shell") and lines[3].endswith("░" * 30)
    assert "· you: 8m" in lines[-1]


async def test_what_a_crash_left_ends_with_the_last_fact(place: Place) -> None:
    story = Story()
    story.begin()
    story.turn(1, 3, request("t", "shell", command="sleep 9"))
    story.add(0, events.CallStarted(call_id="t", tool="shell", arguments={"command": "sleep 9"}))
    story.add(2, events.SignalDetected(kind="uncertain"))
    lines = await show(place, await story.store(place), 80)
    assert "· 5.0 s" in lines[0] and lines[3].startswith("  shell sleep 9    running") and "2.0 s" in lines[3]


async def test_calls_that_were_denied_are_rows_too(place: Place) -> None:
    story = Story()
    story.begin()
    story.turn(1, 3, request("p", "shell", command="git push"))
    story.add(0, events.ApprovalRequested(call_id="p", tool="shell", arguments={}, safety="destructive", why=""))
    story.add(0, events.ApprovalAnswered(call_id="p", decision="deny", by=events.NOBODY_ASKED))
    story.add(0, events.CallFinished(call_id="p", tool="shell", status="denied", output="Denied: nobody was asked."))
    story.finish()
    lines = await show(place, await story.store(place), 80)
    assert lines[3].startswith("  nobody asked     denied") and lines[4].startswith("  shell git push   denied: nobody")


async def test_a_command_of_a_person_is_no_model_call(place: Place) -> None:
    story = Story()
    story.begin()
    story.add(0, events.TurnStarted(turn=0))
    story.call(2, request("c", "shell", command="make"))
    story.finish()
    lines = await show(place, await story.store(place), 80)
    assert [line for line in lines if "model" in line] == []
    assert "slowest: shell make (2.0 s)" in lines[-1]


async def test_a_session_without_a_run_says_so(place: Place) -> None:
    done = await place.quick("sessions", "trace", "last", "--store", await Story().store(place))
    assert (done.code, done.out) == (0, "fix token counting - 3f2a91b8c02d\n")
    assert done.err == "no run has started in this session yet\n"
