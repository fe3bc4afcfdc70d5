"""Sessions that others began: taken up with the agent they have, left where nobody is to go on with them."""

from tests.kit.fakes.chat import StrictChat
from tests.kit.sessions import build_agent, run_message, select_events
from tests.kit.terminal import Place, call_tool, model_options
from treadle import AskUser, Runtime, later
from treadle.events import AnyFact, ApprovalAnswered, CallFinished, CallStarted, SessionConfigured, decode_fact
from treadle.messages import Reply
from treadle.testing import call


async def test_a_run_goes_on_though_its_agent_is_unknown_here_and_another_was_chosen_meanwhile(place: Place) -> None:
    store = str(place.home / "shared.db")
    stranger, _ = build_agent(call("ask_user", id="q", question="Which?"), tools=[AskUser()], name="stranger")
    async with (
        Runtime(store, [stranger], recover=False) as runtime,
        runtime.session(gate=later, workspace=place.work) as session,
    ):
        assert await run_message(session) is None
        await runtime.log.post(session.id, [SessionConfigured(agent="architect")], wake=False)
    async with StrictChat([Reply(text="Blue it is."), Reply(text="As you say.")]) as fake:
        assert (await place.quick("approvals", "answer", session.id, "blue", "--store", store)).code == 0
        resumed = await place.run("sessions", "resume", session.id, *model_options(fake), "--store", store)
        assert (resumed.code, resumed.out) == (0, "Blue it is.\n"), resumed.err
        again = await place.run("run", "and now?", "--session", session.id, *model_options(fake), "--store", store)
        assert (again.code, again.out) == (0, "As you say.\n"), again.err
        systems = [seen.body["messages"][0]["content"] for seen in fake.seen if seen.raw]
    assert [one.startswith("You think changes through") for one in systems] == [False, True]


async def facts_of(place: Place, session: str) -> list[AnyFact]:
    return [decode_fact(line) for line in (await place.quick("sessions", "export", session)).out.splitlines()]


async def test_who_answers_and_leaves_begins_nothing_and_the_call_runs_once_when_it_is_taken_up(place: Place) -> None:
    """A process that leaves would take the call along that it had begun."""
    asked = call_tool("write_file", path="AGENTS.md", content="be kind\n")
    async with StrictChat([asked, Reply(text="It is written.")]) as fake:
        waiting = await place.run("run", "write it", *model_options(fake), "--ask-later", "--json")
        session = waiting.document["session_id"]
        allowed = await place.run("approvals", "allow", session)
        assert allowed.code == 0 and f"treadle sessions resume {session[:12]}" in allowed.err
        facts = await facts_of(place, session)
        assert select_events(facts, ApprovalAnswered) == facts[-1:] and not (place.work / "AGENTS.md").exists()
        resumed = await place.run("sessions", "resume", session, *model_options(fake), "--json")
    assert resumed.code == 0 and resumed.document["answer"] == "It is written."
    facts = await facts_of(place, session)
    assert len(select_events(facts, CallStarted)) == 1 and [
        fact.status for fact in select_events(facts, CallFinished)
    ] == ["ok"]
    assert (place.work / "AGENTS.md").read_text() == "be kind\n"


async def test_a_call_that_was_asked_for_before_is_shown_with_its_argument(place: Place) -> None:
    asked = call_tool("write_file", path="AGENTS.md", content="be kind\n")
    async with StrictChat([asked, Reply(text="Not written.")]) as fake:
        waiting = await place.run("run", "write it", *model_options(fake), "--ask-later", "--json")
        session = waiting.document["session_id"]
        assert (await place.quick("approvals", "deny", session)).code == 0
        resumed = await place.run("sessions", "resume", session, *model_options(fake))
    assert (resumed.code, resumed.out) == (0, "Not written.\n") and "⊘ write_file AGENTS.md · denied" in resumed.err
