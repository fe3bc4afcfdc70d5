"""What waits for a person is told whole: all that is asked, and what the run has used so far."""

from tests.kit.sessions import HeldTool, Tables, build_agent, wait_for
from tests.kit.terminal import Place
from treadle import ApprovalRequested, Runtime, later
from treadle.cli.report import ReportBuilder
from treadle.events import CallFinished, ModelReplied
from treadle.messages import Usage
from treadle.testing import call


async def test_what_is_asked_while_another_call_runs_is_listed_once(place: Place) -> None:
    held, made = HeldTool(), Tables()
    agent, _ = build_agent([call("wait"), call("drop", table="users")], "done", tools=[held.tool, *made.tools])
    store = str(place.home / "shared.db")
    async with Runtime(store, [agent]) as runtime, runtime.session(new=True, gate=later) as session:
        await session.send("go")
        await wait_for(session, ApprovalRequested)
        listed = await place.quick("approvals", "list", "--store", store)
        assert listed.out.count("drop wants to run") == 1 and not held.free.is_set()
        held.free.set()


def test_a_run_that_waits_says_what_it_has_used() -> None:
    tally = ReportBuilder()
    tally.handle_event(ModelReplied(usage=Usage(11, 7)))
    tally.handle_event(CallFinished(call_id="c", tool="delegate", status="ok", usage=Usage(2, 1)))
    assert tally.build_report("s", None).usage == Usage(13, 8)
