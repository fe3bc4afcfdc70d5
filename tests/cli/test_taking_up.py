"""Sessions that others began: taken up with the agent they have, left where nobody is to go on with them."""

from tests.cli.kit import Place, model
from tests.fakes.chat import StrictChat
from tests.kit import agent_of, go
from treadle import AskUser, Runtime, later
from treadle.events import SessionConfigured
from treadle.messages import Reply
from treadle.testing import call


async def test_a_run_goes_on_though_its_agent_is_unknown_here_and_another_was_chosen_meanwhile(place: Place) -> None:
    store = str(place.home / "shared.db")
    stranger, _ = agent_of(call("ask_user", id="q", question="Which?"), tools=[AskUser()], name="stranger")
    async with (
        Runtime(store, [stranger], recover=False) as runtime,
        runtime.session(gate=later, workspace=place.work) as session,
    ):
        assert await go(session) is None
        await runtime.log.post(session.id, [SessionConfigured(agent="architect")], wake=False)
    async with StrictChat([Reply(text="Blue it is."), Reply(text="As you say.")]) as fake:
        assert (await place.quick("approvals", "answer", session.id, "blue", "--store", store)).code == 0
        resumed = await place.run("sessions", "resume", session.id, *model(fake), "--store", store)
        assert (resumed.code, resumed.out) == (0, "Blue it is.\n"), resumed.err
        again = await place.run("run", "and now?", "--session", session.id, *model(fake), "--store", store)
        assert (again.code, again.out) == (0, "As you say.\n"), again.err
        systems = [seen.body["messages"][0]["content"] for seen in fake.seen if seen.raw]
    assert [one.startswith("You think changes through") for one in systems] == [False, True]
