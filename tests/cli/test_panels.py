"""`/context` and `/cost` at every width, and that a line without data is left out."""

import re
import time

import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.terminal import Place, call_tool, model_options
from treadle import events
from treadle.cli.console import strip_codes
from treadle.cli.draw.glyphs import Theme
from treadle.cli.draw.panels import measure_usage, render_context, render_cost
from treadle.cli.session_list import sum_cost_of_today
from treadle.engine.compaction import Breakdown
from treadle.log.in_memory import InMemoryLog
from treadle.messages import Reply, Usage

USED = Breakdown(200_000, 46_200, 6100, 11_800, 1900, 9400, 17_000, 153_800, False, (("a", 4200), ("b", 3900)))
FACTS = (
    events.CallStarted(call_id="a", tool="read_file", arguments={"path": "docs/models.md"}),
    events.CallStarted(call_id="b", tool="shell", arguments={"command": "make test"}),
    events.ModelReplied(model="claude-sonnet-4-5", usage=Usage(412_000, 9800, 374_920, cost=0.22)),
    events.CallFinished(call_id="d", tool="delegate", status="ok", usage=Usage(61_000, 4100, 45_140, cost=0.09)),
)
CONTEXT = """\
Context  46.2k of 200k · 23% · counted by the provider
  system      6.1k   3%  █
  tools      11.8k   6%  ███
  skills      1.9k   1%  █
  files       9.4k   5%  ██
  history    17.0k   8%  ████
  free        154k  77%  ─────────────────────────────────────

  largest   read_file docs/models.md 4.2k · shell make test 3.9k
  cache     91% of the last prompt was read from it
  compacts  by itself at 85%; /compact does it now"""
COST = """\
Cost  $0.31 for this session · $1.12 today · at most $2.00 a run
  model                 in  cached   out   cost
  claude-sonnet-4-5   412k     91%  9.8k  $0.22
  helpers            61.0k     74%  4.1k  $0.09"""


def test_the_context_is_drawn_with_shares_and_bars() -> None:
    assert render_context(USED, FACTS, 79, Theme()) == CONTEXT.splitlines()


@pytest.mark.parametrize("width", [40, 59, 119])
def test_the_panels_fit_the_width(width: int) -> None:
    styled = render_context(USED, FACTS, width, Theme(True, True))
    lines = [strip_codes(line) for line in [*styled, *render_cost(measure_usage(FACTS), 1.12, 2.0, width, Theme())]]
    assert [line for line in lines[:8] + lines[-3:] if len(line) > width] == []
    assert any("read_file docs" in line and "4.2k" in line for line in lines) and any("$0.09" in line for line in lines)


def test_a_line_of_the_context_without_data_is_left_out() -> None:
    lines = render_context(Breakdown(None, 100, 60, 0, 0, 0, 40, None), (), 79, Theme())
    assert [line.split()[0] for line in lines] == ["Context", "system", "history"]
    assert lines[0] == "Context  100 tokens · estimated" and "60%" in lines[1]


def test_the_cost_is_drawn_for_each_model() -> None:
    assert render_cost(measure_usage(FACTS), 1.12, 2.0, 79, Theme()) == COST.splitlines()


def test_an_unknown_price_is_not_zero() -> None:
    free = [events.ModelReplied(model="fake", usage=Usage(1200, 50))]
    lines = render_cost(measure_usage(free), 0.0, None, 79, Theme())
    assert lines[0] == "Cost  unknown: the model has no price in the table" and lines[-1].endswith(" ─")
    assert render_cost({}, 0.0, None, 79, Theme()) == ["Cost  nothing yet"]


async def test_the_cost_of_today_leaves_out_older_runs_and_counts_helpers_once() -> None:
    log, now = InMemoryLog(), time.time()

    def run(cost: float, at: float) -> list[events.AnyFact]:
        started = events.RunStarted(run_id="r", limits=events.Limits(), at=at)
        return [started, events.RunFinished(run_id="r", reason="answered", usage=Usage(cost=cost), at=at)]

    old, helper = events.SessionCreated(session_id="a" * 32, at=1e9), events.Parent("a" * 32, 1, "c")
    await log.create("a" * 32, [old, *run(5.0, 1e9), *run(0.25, now)])
    await log.create("b" * 32, [events.SessionCreated(session_id="b" * 32, at=now), *run(0.5, now)])
    created = events.SessionCreated(session_id="c" * 32, parent=helper, at=now)
    await log.create("c" * 32, [created, *run(0.1, now)])
    await log.create("d" * 32, [events.SessionCreated(session_id="d" * 32, at=1e9), *run(9.0, 1e9)])
    assert await sum_cost_of_today(log) == pytest.approx(0.75)


@pytest.mark.parametrize("columns", [60, 80])
async def test_the_chat_shows_both(place: Place, columns: int) -> None:
    (place.work / "notes.txt").write_text("three ideas for the release notes\n" * 200)
    script = [call_tool("read_file", path="notes.txt"), Reply(text="Three ideas.")]
    async with StrictChat(script) as fake, place.screen("chat", *model_options(fake), columns=columns) as screen:
        await screen.until("What shall be done?")
        screen.type("what is in notes.txt?\r")
        await screen.until("Three ideas.")
        screen.type("/context\r")
        text = await screen.until("largest   read_file notes.txt")
        assert re.search(r"\n  files +\d+ +\d+%  █+\n", text)
        screen.type("/cost\r")
        await screen.until("Cost  unknown: the model has no price in the table")
        assert await screen.leave() == 0
        assert [line for line in screen.text.splitlines() if len(line) > columns] == []
