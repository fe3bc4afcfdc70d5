"""Sessions that wait or that others began: listed with what is asked, and resumed with the agent they have."""

from tests.kit.fakes.chat import StrictChat
from tests.kit.sessions import HeldTool, Tables, build_agent, run_message, select_events, wait_for
from tests.kit.terminal import Place, call_tool, model_options
from treadle import ApprovalRequested, AskUser, Runtime, later
from treadle.events import ApprovalAnswered, CallFinished, CallStarted, SessionConfigured
from treadle.messages import Reply, ToolSpec
from treadle.testing import call


async def test_a_run_continues_though_its_agent_is_unknown_here_and_another_was_chosen_meanwhile(place: Place) -> None:
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
        resumed = await place.quick("sessions", "resume", session.id, *model_options(fake), "--store", store)
        assert (resumed.code, resumed.out) == (0, "Blue it is.\n"), resumed.err
        again = await place.quick("run", "and now?", "--session", session.id, *model_options(fake), "--store", store)
        assert (again.code, again.out) == (0, "As you say.\n"), again.err
        systems = [seen.body["messages"][0]["content"] for seen in fake.seen if seen.raw]
    assert [one.startswith("You think changes through") for one in systems] == [False, True]


async def test_a_process_that_answers_and_leaves_begins_nothing_and_the_call_runs_once_on_resume(place: Place) -> None:
    """A process that leaves would end the call that it had begun."""
    ask = call_tool("write_file", path="AGENTS.md", content="be kind\n")
    async with StrictChat([ask, Reply(text="It is written.")]) as fake:
        waiting = await place.quick("run", "write it", *model_options(fake), "--ask-later", "--json")
        session = waiting.document["session_id"]
        allowed = await place.quick("approvals", "allow", session)
        assert allowed.code == 0 and f"treadle sessions resume {session[:12]}" in allowed.err
        assert isinstance((await place.facts())[-1], ApprovalAnswered) and not (place.work / "AGENTS.md").exists()
        resumed = await place.quick("sessions", "resume", session, *model_options(fake), "--json")
    assert resumed.code == 0 and resumed.document["answer"] == "It is written."
    facts = await place.facts()
    assert len(select_events(facts, ApprovalAnswered)) == len(select_events(facts, CallStarted)) == 1
    assert [fact.status for fact in select_events(facts, CallFinished)] == ["ok"]
    assert (place.work / "AGENTS.md").read_text() == "be kind\n"


async def test_a_call_that_was_asked_for_before_is_shown_with_its_argument(place: Place) -> None:
    ask = call_tool("write_file", path="AGENTS.md", content="be kind\n")
    async with StrictChat([ask, Reply(text="Not written.")]) as fake:
        waiting = await place.quick("run", "write it", *model_options(fake), "--ask-later", "--json")
        session = waiting.document["session_id"]
        assert (await place.quick("approvals", "deny", session, "--reason", "not on a Friday")).code == 0
        resumed = await place.quick("sessions", "resume", session, *model_options(fake))
        assert "not on a Friday" in fake.seen[-1].body["messages"][-1]["content"]
    assert (resumed.code, resumed.out) == (
        0,
        "Not written.\n",
    ) and "treadle: denied write_file AGENTS.md" in resumed.err
    assert not (place.work / "AGENTS.md").exists()


async def test_a_question_asked_while_another_call_runs_is_listed_once(place: Place) -> None:
    held, tables = HeldTool(), Tables()
    agent, _ = build_agent([call("wait"), call("drop", table="users")], "done", tools=[held.tool, *tables.tools])
    store = str(place.home / "shared.db")
    async with Runtime(store, [agent]) as runtime, runtime.session(new=True, gate=later) as session:
        await session.send("go")
        await wait_for(session, ApprovalRequested)
        listed = await place.quick("approvals", "list", "--store", store)
        assert listed.out.count("drop wants to run") == 1 and not held.free.is_set()
        held.free.set()


async def test_the_terminal_says_that_a_run_waits_for_the_result_of_a_clients_tool(place: Place) -> None:
    store, line = str(place.home / "shared.db"), "waits for the client's result of locate (k)"
    agent, _ = build_agent(call("locate", id="k", place="x"), name="stranger")
    async with Runtime(store, [agent], recover=False) as runtime, runtime.session(workspace=place.work) as session:
        await session.configure(client_tools=[ToolSpec("locate", "", {"type": "object"})])
        assert await run_message(session) is None
    listed = await place.quick("approvals", "list", "--store", store)
    assert line in listed.out
    async with StrictChat([]) as fake:
        shown = await place.quick("sessions", "resume", session.id, *model_options(fake), "--store", store)
        assert line in shown.err and "waits for an answer" not in shown.err, shown.err
        whole = await place.quick("sessions", "resume", session.id, *model_options(fake), "--store", store, "--json")
    assert (shown.code, whole.code, whole.document["status"]) == (4, 4, "waiting")
    [waiting] = whole.document["pending"]
    assert waiting == {"tool": "locate", "call_id": "k", "arguments": {"place": "x"}, "why": line}
