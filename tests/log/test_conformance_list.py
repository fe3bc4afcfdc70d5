"""What every log must do for lists, search and artifacts."""

from typing import Any

import pytest

from tests.log.conftest import claim
from treadle.errors import BadInput, NotFound, StoreError
from treadle.events import (
    CallFinished,
    ContextCompacted,
    Custom,
    Limits,
    MessageReceived,
    ModelReplied,
    RunFinished,
    RunStarted,
    SessionConfigured,
    SessionMarked,
    SessionRenamed,
    TextDelta,
    TurnStarted,
)
from treadle.log.base import Artifact, Claim, Log, SessionQuery
from treadle.memory.base import Memory
from treadle.messages import ImagePart, TextPart, Usage

# --- the list


async def test_the_line_of_a_session_follows_its_facts(log: Log, make, clock, mine: Claim) -> None:
    clock.now = 1001.0
    await log.append(mine, 1, [RunStarted(run_id="r", limits=Limits()), TurnStarted(turn=1)])
    await log.append(mine, 3, [TurnStarted(turn=2)])
    info = await log.get_info("s")
    assert (info.status, info.seq, info.created_at, info.updated_at) == ("running", 4, 1000.0, 1001.0)
    for reason, status in (("answered", "answered"), ("turn_limit", "stopped"), ("failed", "failed")):
        head = (await log.get_info("s")).seq
        await log.append(mine, head, [RunFinished(run_id="r", reason=reason, turns=2, usage=Usage(cost=0.25))])
        assert (await log.get_info("s")).status == status
    assert ((await log.get_info("s")).cost, (await log.get_info("s")).turns) == (0.75, 6)


async def test_a_name_given_by_a_user_is_never_overwritten_by_an_automatic_one(log: Log, make) -> None:
    names = [("auto 1", "auto", "auto 1"), ("auto 2", "auto", "auto 2"), ("mine", "user", "mine")]
    names += [("auto 3", "auto", "mine"), ("mine again", "user", "mine again"), ("auto 4", "auto", "mine again")]
    for name, by, expected in names:
        await log.post("s", [SessionRenamed(name=name, by=by), make.message("x")], wake=False)
        assert (await log.get_info("s")).name == expected
    await log.create("t", [make.created("t"), SessionRenamed(name="kept")])
    await log.post("t", [SessionRenamed(name="auto", by="auto")])
    assert (await log.get_info("t")).name == "kept"


async def test_the_list_knows_marks_and_the_model_of_each_session(log: Log, make) -> None:
    await log.create("t", [make.created("t"), SessionMarked(archived=True), SessionConfigured(model="large")])
    await log.post("s", [SessionMarked(pinned=True)], wake=False)
    await log.post("s", [SessionMarked(archived=False), SessionConfigured(model="small")], wake=False)

    async def find(**query: Any) -> list[str]:
        return sorted(info.id for info in (await log.list_sessions(SessionQuery(**query))).sessions)

    infos = [await log.get_info(name) for name in "st"]
    assert [(one.pinned, one.archived, one.model) for one in infos] == [(True, False, "small"), (False, True, "large")]
    assert await find() == await find(agent="agent") == ["s", "t"]
    assert await find(pinned=True) == await find(archived=False) == ["s"]
    assert await find(archived=True) == await find(pinned=False) == await find(archived=True, status="idle") == ["t"]
    assert await find(archived=True, pinned=True) == []
    await log.post("t", [SessionMarked(archived=False)], wake=False)
    assert await find(archived=True) == [] and await find(archived=False) == ["s", "t"]


async def test_the_list_names_the_agent_that_a_session_was_given_to_last(log: Log, make) -> None:
    await log.post("s", [SessionConfigured(model="large")], wake=False)
    before = (await log.get_info("s")).agent
    await log.post("s", [SessionConfigured(agent="architect"), SessionConfigured(agent="coder")], wake=False)
    await log.post("s", [SessionConfigured(limits=Limits(turns=3))], wake=False)
    await log.create("t", [make.created("t"), SessionConfigured(agent="coder")])
    assert before == make.created("s").agent.name
    found = (await log.list_sessions(SessionQuery(agent="coder"))).sessions
    assert {info.id: info.agent for info in found} == {"s": "coder", "t": "coder"}
    assert (await log.list_sessions(SessionQuery(agent=before))).sessions == ()
    assert await log.claim("me", 30.0, "s", [before]) is None, "it is run by those who have its agent"
    assert await log.claim("me", 30.0, "s", ["coder"]) is not None


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 4)], ids=["a shorter page is the last", "a full page is the last"])
async def test_sessions_are_listed_in_pages_the_last_changed_first(log: Log, make, clock, sizes) -> None:
    for number in range(7):
        clock.now += number % 2  # some share their time
        await log.create(f"n{number}", [make.created(f"n{number}")])
    clock.now += 1
    await log.post("n2", make.notes("x"))
    seen: list[str] = []
    cursor = ""
    for expected in sizes:
        page = await log.list_sessions(SessionQuery(limit=sizes[0], cursor=cursor))
        assert len(page.sessions) == expected
        seen += [info.id for info in page.sessions]
        cursor = page.cursor
    assert cursor == ""
    assert seen == ["n2", "n6", "n5", "n4", "n3", "n1", "n0", "s"]


async def test_sessions_are_filtered_by_status_agent_workspace_name_and_beginning_of_id(log: Log, make) -> None:
    await log.create("t", [make.created("t", "writer", "/w"), SessionRenamed(name="Élan and 100% vigour")])
    await log.create("u", [make.created("u", "writer", "/v"), SessionRenamed(name="else")])
    await log.append(await claim(log, "u"), 2, [RunStarted(run_id="r", limits=Limits())])

    async def found(**query) -> list[str]:
        return sorted(info.id for info in (await log.list_sessions(SessionQuery(**query))).sessions)

    assert await found() == ["s", "t", "u"]
    assert await found(status="running") == ["u"]
    assert await found(agent="writer") == ["t", "u"]
    assert await found(workspace="/w") == ["t"]
    assert await found(text="éLAN") == ["t"]
    assert await found(text="0% v") == ["t"]
    assert await found(text="_") == []
    assert await found(prefix="t") == ["t"] and await found(prefix="tt") == [] and await found(prefix="%") == []
    assert await found(agent="writer", status="idle", text="vigour", workspace="/w") == ["t"]


async def test_a_cursor_that_was_never_given_is_bad_input(log: Log) -> None:
    with pytest.raises(BadInput, match="not a cursor"):
        await log.list_sessions(SessionQuery(cursor="page 2"))


# --- search


async def test_search_finds_what_was_said_replied_put_out_summed_up_and_named(log: Log, make, mine: Claim) -> None:
    await log.post("s", [MessageReceived(id="m", parts=(TextPart("apple"), ImagePart(url="u"), TextPart("pie")))])
    facts = [
        ModelReplied(text="banana", reasoning="hidden"),
        CallFinished(call_id="c", tool="t", status="ok", output="cherry"),
        ContextCompacted(kind="summary", through=3, summary="damson"),
        SessionRenamed(name="elderberry"),
        Custom(name="fig"),
    ]
    await log.append(mine, 2, facts)
    for words, seq in (("apple pie", 2), ("banana", 3), ("cherry", 4), ("damson", 5), ("elderberry", 6)):
        hits = await log.search(words)
        assert [(hit.session_id, hit.seq) for hit in hits] == [("s", seq)]
        assert words.split()[0] in hits[0].snippet
    for word in ("hidden", "fig"):
        assert await log.search(word) == []


@pytest.mark.parametrize(
    ("said", "sought", "not_there"),
    [
        ("東京タワーは赤いです。", "東京 赤い", "東タ"),
        ("がっこうの門は緑です。", "門", "かっこう"),
        ("서울에서 만나요.", "서울", "부산"),
        ("ไทยแลนด์สวยมาก", "สวย", "รวย"),
        ("我们在北京开会。", "北京开会", "上海"),
    ],
)
async def test_what_is_written_without_blanks_is_found_by_its_parts(
    log: Log, make, said: str, sought: str, not_there: str
) -> None:
    await log.post("s", [make.message(said), make.message("something else")])
    (hit,) = await log.search(sought)
    assert hit.snippet == said and await log.search(not_there) == []
    kept = await log.memories.add(Memory(said))
    assert await log.memories.search(sought) == [kept] and await log.memories.search("ぬね 나라 น้ำ") == []
    await log.memories.edit(kept.id, "something else")
    assert await log.memories.search(sought) == []


async def test_search_wants_all_words_whatever_their_case_accents_and_order(log: Log, make) -> None:
    await log.post("s", [make.message("Der Bäcker der Straße"), make.message("Der Schuster")])
    for text in ("bäcker straße", "STRAßE Backer", "der der bäcker", "Bäcker, Straße!"):
        assert [hit.seq for hit in await log.search(text)] == [2], text
    assert [hit.seq for hit in await log.search("der")] == [2, 3]
    assert await log.search("bäcker schuster") == []


@pytest.mark.parametrize(
    "text", ["", " -- ", *"\"'(\0😀²", "AND", "OR NOT", "a* NEAR(", "text:x", "^a - b", "col : {", "%_"]
)
async def test_an_empty_query_finds_nothing_and_none_is_a_syntax_error(log: Log, make, text: str) -> None:
    await log.post("s", [make.message("something else")])
    assert await log.search(text) == []


async def test_the_best_hit_comes_first_and_the_limit_holds(log: Log, make) -> None:
    await log.post("s", [make.message("plum " + "x " * 50), make.message("plum plum plum")])
    for number in range(5):
        await log.post("s", [make.message(f"a plum and {number} pears")])
    hits = await log.search("plum", limit=3)
    assert len(hits) == 3
    assert hits[0].seq == 3


async def test_search_finds_what_was_added_since_the_last_search(log: Log, make) -> None:
    for number in range(3):
        await log.post("s", [make.message(f"quince {number}")])
        assert len(await log.search("quince")) == number + 1


async def test_a_snippet_is_one_short_line_around_the_words(log: Log, make) -> None:
    await log.post("s", [make.message("filler\nwords " * 200 + "the\nneedle here" + " and more" * 200)])
    (hit,) = await log.search("needle")
    assert "the needle here" in hit.snippet
    assert len(hit.snippet) < 300
    assert "\n" not in hit.snippet


# --- artifacts


async def test_an_artifact_comes_back_whole_with_its_media_type_by_the_id_of_its_content(log: Log) -> None:
    data = bytes(range(256)) * 1000
    artifact_id = await log.put_artifact("s", data, "image/png")
    assert await log.get_artifact("s", artifact_id) == Artifact(artifact_id, "image/png", data)
    assert await log.put_artifact("s", data) == artifact_id != await log.put_artifact("s", b"other")


async def test_an_artifact_belongs_to_its_session(log: Log, make) -> None:
    await log.create("t", [make.created("t")])
    artifact_id = await log.put_artifact("s", b"data")
    with pytest.raises(NotFound, match=artifact_id):
        await log.get_artifact("t", artifact_id)


# --- close


async def test_a_closed_log_says_so(log: Log, make, mine: Claim) -> None:
    await log.close()
    for attempt in (
        lambda: log.create("t", [make.created("t")]),
        lambda: log.read("s"),
        lambda: log.append(mine, 1, make.notes("x")),
        lambda: log.list_sessions(SessionQuery()),
        lambda: log.search("x"),
        lambda: log.claim("me", 30),
    ):
        with pytest.raises(StoreError, match="was closed"):
            await attempt()
    log.publish("s", TextDelta(text="nobody sees this"))
    await log.close()


async def test_a_mark_leaves_a_session_as_old_as_it_was(log: Log, make, clock) -> None:
    before = (await log.get_info("s")).updated_at
    clock.now += 10
    for fact in (SessionMarked(pinned=True), SessionMarked(archived=True), SessionMarked()):
        await log.post("s", [fact], wake=False)
        assert (await log.get_info("s")).updated_at == before
    await log.post("s", [SessionMarked(pinned=False), make.message("x")], wake=False)
    assert (await log.get_info("s")).updated_at == before + 10
