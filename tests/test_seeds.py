"""Twenty mistakes that agent runtimes make. Each one that concerns the engine has a test here.

The sandbox's tests hold the rest of 2 (the children of a shell) and 19 (shells that outlive their timeout, paths that
leave the workspace). The server's tests hold the rest of 16 (rows of a web page) and 20 (binding, CORS, tokens).
"""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from tests.kit.fake_model import FakeModel
from tests.kit.sessions import (
    Store,
    build_agent,
    check_settled,
    either_store,
    file_store,
    list_kinds,
    note,
    read_finished_calls,
    read_questions,
    resume_run,
    run_agent,
    run_message,
    run_to_end,
    select_events,
    select_results,
    wait_for,
)
from treadle import (
    Agent,
    ApprovalRequested,
    CallFinished,
    CallStarted,
    Grant,
    ImagePart,
    Limits,
    Middleware,
    RunFinished,
    Runtime,
    TextDelta,
    TextPart,
    ToolError,
    ToolResult,
    later,
    tool,
)
from treadle.errors import BadInput, ModelError, NotFound, PositionMoved, StoreDamaged, StoreError, StoreTooNew
from treadle.events import ContextCompacted, Event, Fact, MessageReceived, SignalDetected, TurnStarted
from treadle.messages import Call, Reply, Request, UserMessage
from treadle.testing import call, say
from treadle.testing.crash_points import CrashPoint

store = either_store
on_file = file_store


@tool(safety="destructive")
def drop(table: str) -> str:
    """Drop a table."""
    return f"dropped {table}"


async def test_seed_01_text_is_cut_on_characters_and_what_was_dropped_is_said(store: Store) -> None:
    whole = "日本語 🚲 ñ\n" * 3000

    @tool(cap=1000)
    def poem() -> str:
        return whole

    agent, model = build_agent(call("poem", id="a"), "ok", tools=[poem])
    async with agent.session(store.open()) as session:
        await run_to_end(session)
        done = (await read_finished_calls(session))["a"]
        assert done.truncation is not None
        artifact = (await session.artifact(done.truncation.artifact)).data
    shown = select_results(model.requests[1])["a"].text
    head, _, rest = shown.partition("\n[… ")
    dropped, _, tail = rest.partition(" …]\n")
    assert whole.startswith(head) and whole.endswith(tail) and head and tail
    assert int(dropped.split()[0]) == len(whole) - len(head) - len(tail)
    assert artifact.decode() == whole


async def test_seed_02_cancel_stops_the_model_and_the_tools_and_is_final(store: Store) -> None:
    stopped: list[str] = []

    class Talker(FakeModel):
        name, window, asked = "talker", None, 0

        async def stream(self, request: Request) -> Any:
            self.asked += 1
            if self.asked == 2:
                try:
                    yield TextDelta(text="Once upon")
                    await asyncio.Event().wait()
                finally:
                    stopped.append("model")
            yield Reply(calls=(call("hang", id=f"h{self.asked}"),))

    @tool
    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append("tool")

    async with Agent(Talker(), tools=[hang]).session(store.open()) as session:
        await session.send("go")
        await wait_for(session, CallStarted)
        first = await session.cancel()
        assert first is not None and stopped == ["tool"]
        await session.send("again")
        await wait_for(session, TextDelta)
        second = await session.cancel()
        assert second is not None and stopped == ["tool", "model"]
        facts = await session.facts()
        assert facts[-1] == second and (first.reason, second.reason) == ("cancelled", "cancelled")
        check_settled(facts)
        assert await resume_run(session) is None and await session.facts() == facts


async def test_seed_03_nothing_depends_on_a_watcher_and_none_can_stall_a_run(store: Store) -> None:
    script = [call("note", text=str(n)) for n in range(20)]
    log = store.open()
    agent, _ = build_agent(*script, "done", tools=[note])
    async with Runtime(log, [agent]) as runtime, runtime.session(new=True) as session:
        await session.send("go")
        await runtime.coordinator.wait_until_idle(session.id)  # nobody watches
        assert (await log.get_info(session.id)).status == "answered"
        alone = list_kinds(await session.facts())
    again, _ = build_agent(*script, "done", tools=[note])
    async with again.session(log, new=True) as session:
        stalled = session.watch()
        await anext(stalled)
        assert (await run_to_end(session)).answer == "done"
        assert list_kinds(await session.facts()) == alone
        stalled.close()


async def test_seed_04_events_have_one_order_the_logs(store: Store) -> None:
    @tool(safety="safe")
    async def ping(number: int) -> str:
        for _ in range(7 - number):
            await asyncio.sleep(0)
        return str(number)

    agent, _ = build_agent([call("ping", id=str(n), number=n) for n in range(7)], "done", tools=[ping])
    async with agent.session(store.open()) as session:

        async def see() -> list[Event]:
            watch, seen = session.watch(), list[Event]()
            async for event in watch:
                seen.append(event)
                if isinstance(event, RunFinished):
                    watch.close()
            return [event for event in seen if isinstance(event, Fact)]

        watchers = [asyncio.create_task(see()) for _ in range(5)]
        await run_to_end(session)
        facts = await session.facts()
        for watcher in watchers:
            assert await watcher == facts
    assert [fact.call_id for fact in select_events(facts, CallFinished)] == list("0123456"), "in the order of the calls"


async def test_seed_05_an_approval_is_answerable_from_the_moment_it_is_announced(store: Store) -> None:
    """It is a fact, keyed by session and call (small models call everything call_0), and survives a restart."""
    lines = [call("drop", id="call_0", table="x")]
    log = store.open()
    agent, _ = build_agent(lines, lines, "one", "two", tools=[drop], gate=later)
    async with Runtime(log, [agent]) as runtime, runtime.session(new=True) as one, runtime.session(new=True) as two:
        assert await run_message(one) is None and await run_message(two) is None
        await one.deny("call_0", "not this one")
        await wait_for(one, RunFinished)
        assert [question.call_id for question in await read_questions(two)] == ["call_0"]
    again, _ = build_agent(call("drop", id="call_0", table="y"), "done", tools=[drop], gate=later)
    async with Runtime(store.open(), [again]) as runtime, runtime.session(id=two.id) as session:
        watch = session.watch()
        async for event in watch:
            if isinstance(event, ApprovalRequested):
                await session.approve(event.call_id)  # at once: from here it is stored
            if isinstance(event, RunFinished):
                watch.close()
        asked = [fact.call_id for fact in select_events(await session.facts(), ApprovalRequested)]
        done = await read_finished_calls(session)
    assert asked[0] == "call_0" and len(set(asked)) == 2
    assert [done[call_id].output for call_id in asked] == ["dropped x", "dropped y"]


async def test_seed_06_a_denial_does_not_end_the_run(store: Store) -> None:
    agent, model = build_agent(
        [call("drop", id="a", table="x"), call("note", id="b", text="y")],
        "I did the rest",
        tools=[drop, note],
        gate=later,
    )
    async with agent.session(store.open()) as session:
        assert await run_message(session) is None
        await session.deny("a", "too risky")
        ending = await wait_for(session, RunFinished)
    assert (ending.reason, ending.answer) == ("answered", "I did the rest")
    assert "too risky" in select_results(model.requests[1])["a"].text
    assert select_results(model.requests[1])["b"].text == "noted y"


async def test_seed_07_every_call_has_its_result_after_any_failure_and_no_trimming_splits_a_pair(store: Store) -> None:
    @tool(on_error="stop")
    def explode() -> str:
        raise ToolError("boom")

    agent, model = build_agent(
        [call("note", id="a", text="1"), call("explode", id="b"), call("note", id="c", text="2")],
        "back again",
        "still here",
        tools=[note, explode],
    )
    log = store.open()
    async with agent.session(log) as session:
        assert (await run_to_end(session)).reason == "failed"
        facts = await session.facts()
        check_settled(facts)
        assert list(await read_finished_calls(session)) == ["a", "b", "c"]
        assert (await run_to_end(session, "hello?")).answer == "back again", "the session is not bricked"
        inside = select_events(facts, CallFinished)[0].seq  # between the first result and the second
        await log.post(session.id, [ContextCompacted(kind="summary", through=inside, summary="short")])
        outcome = await run_to_end(session, "and now?")
        assert outcome.answer == "still here", outcome.error
    assert list(select_results(model.requests[-1])) == ["a", "b", "c"]


async def test_seed_08_a_checkpoint_is_stored_and_going_on_from_it_repeats_no_tool_and_no_turn(on_file: Store) -> None:
    ran: list[str] = []

    @tool
    def act(name: str) -> str:
        ran.append(name)
        return name

    agent, _ = build_agent(call("act", id="a", name="1"), call("act", id="b", name="2"), "done", tools=[act])
    async with agent.session(on_file.open()) as session:
        await run_to_end(session)
        points = [point for point in await session.checkpoints() if point.kind == "after_tool_calls"]
        facts = await session.facts()
    ran.clear()
    log = on_file.open()
    planted = await CrashPoint("c" * 32, (replace(facts[0], session_id="c" * 32), *facts[1 : points[0].seq])).plant(log)
    again, _ = build_agent(call("act", id="b", name="2"), "done", tools=[act])
    async with again.session(log, id=planted) as session:
        outcome = await resume_run(session)
        turns = [turn.turn for turn in select_events(await session.facts(), TurnStarted)]
    assert outcome is not None and (outcome.turns, outcome.calls) == (3, 2)
    assert ran == ["2"] and turns == [1, 2, 3]


async def test_seed_09_a_failed_save_is_told_a_bad_load_is_not_a_missing_one_and_no_id_is_used_twice(
    on_file: Store,
) -> None:
    assert on_file.path is not None
    agent, _ = build_agent("one", "two", "three")
    log = on_file.open()
    async with agent.session(log) as session:
        append = log.append

        async def full(*args: Any, **options: Any) -> None:
            raise StoreError("no room left on the disk")

        log.append = full  # type: ignore[method-assign]
        with pytest.raises(StoreError, match="no room left"):
            await session.ask("go")
        log.append = append  # type: ignore[method-assign]
        assert select_events(await session.facts(), MessageReceived), "what was acknowledged is there"
        with pytest.raises(NotFound):
            await log.get_info("nope")
    ids = set[str]()
    for _ in range(3):
        async with agent.session(on_file.open(), new=True) as session:
            ids.add(session.id)
    assert len(ids) == 3
    broken = on_file.path.with_name("broken.db")
    broken.write_bytes(on_file.path.read_bytes()[:100] + b"\xff" * 8000)
    with pytest.raises((StoreDamaged, StoreTooNew)):
        async with agent.session(broken):
            pass


ENDINGS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "answered": (["done"], {}),
    "turn_limit": ([call("note", text="1"), "half"], {"limits": Limits(turns=1)}),
    "call_limit": ([call("note", text="1"), "half"], {"limits": Limits(calls=0)}),
    "token_limit": ([Reply(text="cut", finish="length"), "half"], {}),
    "cost_limit": (
        [say("", call("note", text="1"), usage=replace(say("").usage, cost=2.0)), "half"],
        {"limits": Limits(cost=1.0)},
    ),
    "time_limit": ([call("hang"), "half"], {"limits": Limits(seconds=0.5)}),
    "doom_loop": ([*[call("note", text="1")] * 4, "half"], {}),
    "stuck": (["<stuck>no way</stuck>"], {}),
    "yielded": (["over to you <yield/>"], {}),
    "failed": ([ModelError("no", kind="auth")], {}),
}


@tool
async def hang() -> None:
    """Never return."""
    await asyncio.Event().wait()


@pytest.mark.parametrize("reason", ENDINGS)
async def test_seeds_10_11_16_every_run_has_one_final_event_says_how_it_ended_and_leaves_nothing_running(
    store: Store, reason: str
) -> None:
    script, options = ENDINGS[reason]
    agent, _ = build_agent(*script, tools=[note, hang], **options)
    log = store.open()
    async with agent.session(log) as session:
        async with session.run("go") as run:
            events = [event async for event in run]
        facts, state, info = await session.facts(), await session.state(), await log.get_info(session.id)
    check_settled(facts)
    ending = events[-1]
    assert isinstance(ending, RunFinished) and ending == facts[-1] == run.outcome
    assert ending.reason == reason and ending.run_id and (ending.answer or ending.error)
    assert ending.can_continue == (reason != "answered"), "a limit or a failure is never reported as an answer"
    assert info.status == {"answered": "answered", "failed": "failed"}.get(reason, "stopped") and info.owner == ""
    assert state.run is None and state.turn is None and state.pending == []
    assert all(one.finished is not None for one in state.calls.values())


async def test_seed_12_a_turn_without_text_does_not_return_the_text_of_the_one_before(store: Store) -> None:
    agent, _ = build_agent(["Let me look.", call("note", text="1")], "", "", "", "old answer", "", "", "", tools=[note])
    async with agent.session(store.open()) as session:
        outcome = await run_to_end(session)
        assert (outcome.reason, outcome.answer) == ("stuck", "")
        assert (await run_to_end(session, "again")).answer == "old answer"
        assert (await run_to_end(session, "and again")).answer == ""


async def test_seed_13_concurrent_messages_are_all_kept_and_a_stale_write_is_refused(store: Store) -> None:
    agent, _ = build_agent(*["ok"] * 50)
    log = store.open()
    async with agent.session(log) as session:
        await asyncio.gather(*(session.send(f"message {n}") for n in range(25)))
        await wait_for(session, TurnStarted, lambda turn: len(turn.messages) > 0)
        await resume_run(session)
        facts = await session.facts()
        texts = {
            part.text
            for fact in select_events(facts, MessageReceived)
            for part in fact.parts
            if isinstance(part, TextPart)
        }
        promoted = [identity for turn in select_events(facts, TurnStarted) for identity in turn.messages]
        assert len(texts) == 25 and sorted(promoted) == sorted(
            fact.id for fact in select_events(facts, MessageReceived)
        )
    claim = await log.claim("me", 30, session.id)
    assert claim is not None
    with pytest.raises(PositionMoved, match="read what is new and decide again"):
        await log.append(claim, 3, [SignalDetected(kind="stuck", seq=4)])
    assert await log.read(session.id) == facts


async def test_seed_14_injected_text_is_not_stored_and_does_not_grow(store: Store) -> None:
    class Skills(Middleware):
        async def on_pre_llm(self, request: Request) -> Request:
            skill = UserMessage((TextPart("SKILL: how to fold paper " * 50),))
            return replace(request, messages=[skill, *request.messages], render_cache={})

    agent, model = build_agent(*["ok"] * 5, middleware=[Skills()])
    async with agent.session(store.open()) as session:
        for number in range(5):
            await run_to_end(session, f"message {number}")
        assert "SKILL" not in str(await session.facts())
    assert [str(request.messages[:]).count("SKILL: ") for request in model.requests] == [50] * 5


async def test_seed_15_pausing_on_the_last_allowed_turn_does_not_fire_the_limits_summary(store: Store) -> None:
    agent, model = build_agent(
        call("drop", id="a", table="x"), "half", tools=[drop], gate=later, limits=Limits(turns=1)
    )
    async with agent.session(store.open()) as session:
        assert await run_message(session) is None
        assert len(model.requests) == 1 and list_kinds(await session.facts())[-1] == "approval_requested"
        await session.approve("a")
        ending = await wait_for(session, RunFinished)
    assert ending.reason == "turn_limit" and len(model.requests) == 2


async def test_seed_17_one_reply_cannot_overshoot_a_budget_and_loops_and_empty_replies_end(store: Store) -> None:
    log = store.open()
    agent, _ = build_agent([call("note", text=str(n)) for n in range(9)], "half", tools=[note], limits=Limits(calls=3))
    async with agent.session(log, new=True) as session:
        assert (await run_to_end(session)).reason == "call_limit"
        assert len(select_events(await session.facts(), CallStarted)) == 3
    agent, _ = build_agent(*[call("note", text=text) for text in "ababa"], "half", tools=[note])
    async with agent.session(log, new=True) as session:
        assert (await run_to_end(session)).reason == "doom_loop"
    agent, model = build_agent(*[""] * 50)
    async with agent.session(log, new=True) as session:
        assert (await run_to_end(session)).reason == "stuck"
    assert len(model.requests) == 3


async def test_seed_18_the_model_is_told_the_output_of_a_failed_tool_and_images_stay(store: Store) -> None:
    picture, plot = ImagePart(data="aGk="), ImagePart(data="eW8=")

    @tool
    def build() -> ToolResult:
        return ToolResult("line 3: missing semicolon", (plot,), ok=False)

    agent, model = build_agent(call("build", id="a"), "one", "two", tools=[build])
    async with agent.session(store.open()) as session:
        await run_to_end(session, ["look", picture])
        await run_to_end(session, "again")
    for request in model.requests[1:]:
        assert select_results(request)["a"].text == "line 3: missing semicolon" and not select_results(request)["a"].ok
        assert select_results(request)["a"].parts == (plot,)
        assert request.messages[0] == UserMessage((TextPart("look"), picture))


async def test_seed_19_a_pattern_is_matched_on_the_parsed_argument_and_never_on_json_text(store: Store) -> None:
    @tool(safety="caution")
    def write_file(path: str, text: str = "") -> str:
        return f"wrote {path}"

    spelled = [
        Call("a", "write_file", '{"path": "src/../secret/key"}'),
        Call("b", "write_file", '{"text": "x", "path": "secr\\u0065t/key"}'),
        Call("c", "write_file", '{"path": "src/a.py", "text": "secret/key"}'),
        Call("d", "write_file", '{"path": "./secret//key"}'),
    ]
    agent, _ = build_agent(spelled, "ok", tools=[write_file], grant=Grant(forbid=("write_file(secret/**)",)))
    done = (await run_agent(agent, log=store.open())).results
    assert {name: done[name].status for name in "abcd"} == {"a": "denied", "b": "denied", "c": "ok", "d": "denied"}


async def test_seed_20_a_caller_cannot_grant_itself_more_and_errors_are_in_the_error_field(store: Store) -> None:
    log = store.open()
    agent, _ = build_agent(call("note", id="a", text="x"), "ok", tools=[note, drop], grant=Grant(forbid=("note",)))
    async with agent.session(log, new=True, grant=Grant(tier="full", yes=True, approve=("*",))) as session:
        await run_to_end(session)
        assert (await read_finished_calls(session))["a"].status == "denied"
    failing, _ = build_agent(ModelError("bad key", kind="auth"))
    async with failing.session(log, new=True) as session:
        outcome = await run_to_end(session)
        assert (outcome.error, outcome.answer) == ("auth: bad key", "")
        with pytest.raises(BadInput):
            await session.send("")
