"""What every log must do, one test a promise of the port; watching is in test_conformance_watch.py."""

from pathlib import Path

import pytest

from tests.log.conftest import claim
from treadle.errors import BadInput, ClaimLost, Conflict, NotFound, PositionMoved
from treadle.events import Custom, Limits, MessageReceived, Parent, RunStarted, SessionCreated, TextDelta
from treadle.log.base import Claim, Claimant, Log, PostResult, SessionQuery
from treadle.log.in_memory import InMemoryLog
from treadle.log.sqlite import SqliteLog


async def read_names(log: Log, session_id: str = "s") -> list[str]:
    return [fact.name for fact in await log.read(session_id) if isinstance(fact, Custom)]


# --- create


async def test_a_created_session_has_its_facts_in_order(log: Log, make) -> None:
    await log.create("t", [make.created("t"), make.message("one"), make.message("two")])
    facts = await log.read("t")
    assert [fact.seq for fact in facts] == [1, 2, 3]
    assert [type(fact) for fact in facts] == [SessionCreated, MessageReceived, MessageReceived]


async def test_creating_a_taken_id_is_a_conflict_and_changes_nothing(log: Log, make) -> None:
    with pytest.raises(Conflict, match="s already"):
        await log.create("s", [make.created("s"), make.message("x")])
    assert len(await log.read("s")) == 1


def describe(claim: Claim | None) -> tuple[str, str, float] | None:
    """Everything of a claim but its first epoch, which each log chooses."""
    return claim and (claim.session_id, claim.owner, claim.ttl)


async def test_a_session_must_begin_with_session_created(log: Log, make) -> None:
    for facts in ([], [make.message("x")]):
        with pytest.raises(BadInput, match="SessionCreated"):
            await log.create("t", facts)
    with pytest.raises(NotFound):
        await log.read("t")


async def test_a_fork_takes_copies_with_their_times_and_leaves_the_first_session_alone(log, make, clock, mine) -> None:
    await log.append(mine, 1, make.notes("a", "b"))
    clock.now = 2000.0
    original = await log.read("s")
    fork = SessionCreated(session_id="t", parent=Parent("s", 3))
    await log.create("t", [fork, Custom(name="extra"), *original[1:]])
    assert [(fact.seq, fact.at) for fact in await log.read("t")] == [(1, 2000.0), (2, 2000.0), (3, 1000.0), (4, 1000.0)]
    assert [fact.seq for fact in original] == [1, 2, 3]
    assert [fact.seq for fact in await log.read("s")] == [1, 2, 3]
    assert (await log.get_info("t")).parent == Parent("s", 3)


async def test_a_session_made_from_an_unfinished_run_is_not_shown_as_running(log, make) -> None:
    await log.create("t", [make.created("t"), RunStarted(run_id="r", limits=Limits())])
    assert (await log.get_info("t")).status == "idle"


# --- post


async def test_a_post_stores_and_stamps_its_facts(log: Log, make, clock) -> None:
    clock.now = 1001.0
    message = make.message("hello")
    posted = await log.post("s", [message])
    assert posted.is_new
    assert posted.facts == (message,)
    assert (message.seq, message.at) == (2, 1001.0)
    assert (await log.read("s"))[1] == message


async def test_a_post_with_a_used_key_adds_nothing_and_returns_what_was_stored(log, make, clock) -> None:
    first = await log.post("s", [make.message("one"), make.message("more")], "k")
    clock.now += 5
    again = await log.post("s", [make.message("two")], "k")
    assert again.facts == first.facts
    assert [fact.seq for fact in again.facts] == [2, 3]
    assert (first.is_new, again.is_new) == (True, False)
    assert len(await log.read("s")) == 3


async def test_a_repeated_post_does_not_wake_the_session(log: Log, make) -> None:
    await log.post("s", [make.message("one")], "k")
    mine = await claim(log)
    await log.release(mine, 2)
    await log.post("s", [make.message("one")], "k")
    assert await log.claim("me", 30) is None


async def test_the_same_key_may_be_used_in_another_session(log: Log, make) -> None:
    await log.create("t", [make.created("t")])
    await log.post("s", [make.message("one")], "k")
    assert (await log.post("t", [make.message("one")], "k")).is_new


async def test_a_post_makes_the_session_due_unless_asked_not_to(log: Log, make) -> None:
    await log.post("s", [make.message("quiet")], wake=False)
    assert await log.claim("me", 30) is None
    await log.post("s", [make.message("loud")])
    assert (await log.get_info("s")).wake_at == 1000.0
    assert describe(await log.claim("me", 30)) == ("s", "me", 30)


async def test_a_post_of_nothing_only_wakes(log: Log) -> None:
    watch = log.watch("s", after=1)
    assert await log.post("s", [], "k") == PostResult((), is_new=True)
    assert await log.post("s", [], "k") == PostResult((), is_new=False)
    assert (await log.get_info("s")).seq == 1
    assert await log.claim("me", 30) is not None
    watch.close()


async def test_the_listener_is_called_for_posts_to_sessions_claimed_here_and_for_no_others(log, make) -> None:
    called: list[str] = []
    log.listener = called.append
    await log.create("t", [make.created("t")])
    mine = await claim(log)
    await log.post("t", [make.message("x")])
    await log.append(mine, 1, make.notes("own"))
    assert called == []
    await log.post("s", [make.message("x")])
    assert called == ["s"]
    await log.release(mine, None)
    await log.post("s", [make.message("x")])
    assert called == ["s"]


# --- claim, renew, release


async def test_a_session_that_was_never_woken_is_not_due_but_can_be_claimed_by_id(log: Log) -> None:
    assert await log.claim("me", 30) is None
    assert describe(await log.claim("me", 30, "s")) == ("s", "me", 30)


async def test_a_live_owner_keeps_the_session_from_everybody_else(log: Log, make) -> None:
    await claim(log)
    await log.post("s", [make.message("x")])
    assert await log.claim("you", 30, "s") is None
    assert await log.claim("you", 30) is None
    assert await log.claim("me", 30, "s") is None
    assert (await log.get_info("s")).owner == "me"


@pytest.mark.parametrize("posts", [0, 1])
async def test_a_lapsed_claim_is_taken_over_with_the_next_epoch(log: Log, make, clock, posts: int) -> None:
    earlier = await claim(log, ttl=30)
    for _ in range(posts):
        await log.post("s", [make.message("x")])
    clock.now = 1029.9
    assert await log.claim("you", 30) is None
    clock.now = 1030.0
    assert await log.claim("you", 30) == Claim("s", "you", earlier.epoch + 1, 30)


async def test_a_renewed_claim_does_not_lapse(log: Log, clock, mine: Claim) -> None:
    clock.now = 1020.0
    await log.renew(mine)
    clock.now = 1049.0
    assert await log.claim("you", 30) is None
    clock.now = 1050.0
    assert await log.claim("you", 30) is not None


async def test_an_old_claim_can_neither_append_nor_renew_nor_release_after_a_takeover(log, make, clock, mine) -> None:
    await log.append(mine, 1, make.notes("a"), "k")
    clock.now = 1030.0
    yours = await claim(log, owner="you")
    repeat = log.append(mine, 1, make.notes("a"), "k")
    for attempt in (repeat, log.append(mine, 2, make.notes("zombie")), log.renew(mine), log.release(mine, None)):
        with pytest.raises(ClaimLost, match=f"epoch {mine.epoch}"):
            await attempt
    await log.append(yours, 2, make.notes("alive"))
    assert await read_names(log) == ["a", "alive"]
    assert (await log.get_info("s")).owner == "you"


async def test_a_write_that_belongs_to_an_old_claim_is_refused_after_a_takeover(log, make, clock, mine) -> None:
    await log.post("s", make.notes("early"), claim=mine)
    artifact = await log.put_artifact("s", b"early", claim=mine)
    await log.create("child", [make.created("child")], claim=mine)
    await log.post("child", make.notes("from its parent"), claim=mine)
    clock.now = 1030.0
    yours = await claim(log, owner="you")
    for attempt in (
        log.post("s", make.notes("late"), "k", claim=mine),
        log.post("child", make.notes("late"), claim=mine),
        log.put_artifact("s", b"late", claim=mine),
        log.create("late", [make.created("late")], claim=mine),
    ):
        with pytest.raises(ClaimLost, match=f"epoch {mine.epoch}"):
            await attempt
    assert (await log.post("s", make.notes("alive"), "k", claim=yours)).is_new
    assert await read_names(log) == ["early", "alive"]
    assert await read_names(log, "child") == ["from its parent"]
    assert (await log.get_artifact("s", artifact)).data == b"early"
    with pytest.raises(NotFound):
        await log.read("late")
    assert await log.release(yours, None)
    with pytest.raises(ClaimLost):
        await log.post("s", make.notes("after the release"), claim=yours)


async def test_a_store_has_a_secret_of_its_own_and_keeps_it(log: Log, make, clock, tmp_path: Path) -> None:
    key = await log.get_approval_key()
    assert len(key) == 32 and key == await log.get_approval_key()
    if isinstance(log, SqliteLog):
        async with SqliteLog(log.path) as same, SqliteLog(tmp_path / "other.db") as other:
            assert await same.get_approval_key() == key != await other.get_approval_key()
    else:
        assert await InMemoryLog().get_approval_key() != key


async def test_an_owner_whose_lease_lapsed_may_go_on_while_nobody_took_over(log, make, clock, mine: Claim) -> None:
    clock.now = 5000.0
    await log.append(mine, 1, make.notes("late"))
    await log.renew(mine)
    assert await log.claim("you", 30) is None


async def test_a_released_claim_is_worth_nothing(log: Log, make, mine: Claim) -> None:
    assert await log.release(mine, 1)
    with pytest.raises(ClaimLost):
        await log.append(mine, 1, make.notes("x"))
    assert (await claim(log)).epoch == mine.epoch + 1
    with pytest.raises(ClaimLost):
        await log.append(mine, 1, make.notes("x"))


async def test_a_release_is_refused_when_there_is_more_to_do(log: Log, make, mine: Claim) -> None:
    await log.post("s", [make.message("wait!")])
    assert not await log.release(mine, 1)
    await log.append(mine, 2, make.notes("still mine"))
    assert await log.release(mine, 3)
    assert (await log.get_info("s")).owner == ""


@pytest.mark.parametrize(
    ("posted", "position", "wake_at", "expected"),
    [
        pytest.param(True, 2, None, None, id="the post was seen"),
        pytest.param(True, None, None, 1000.0, id="the post came meanwhile"),
        pytest.param(True, None, 1500.0, 1000.0, id="the post is earlier"),
        pytest.param(False, None, 1500.0, 1500.0, id="no post"),
    ],
)
async def test_a_release_keeps_a_wake_up_that_was_not_seen(log, make, mine, posted, position, wake_at, expected):
    for message in [make.message("x")] * posted:
        await log.post("s", [message])
    assert await log.release(mine, position, wake_at)
    assert (await log.get_info("s")).wake_at == expected
    assert (await log.claim("me", 30) is not None) == (expected == 1000.0)


async def test_a_post_claims_a_session_that_nobody_runs(log: Log, make) -> None:
    posted = await log.post("s", [make.message("x")], claimant=Claimant("me", 30, ["agent"]))
    assert posted.claim is not None and describe(posted.claim) == ("s", "me", 30)
    info = await log.get_info("s")
    assert (info.owner, info.wake_at, log.get_head("s")) == ("me", None, 2)
    await log.append(posted.claim, 2, make.notes("mine"))
    assert await log.claim("you", 30, "s") is None


async def test_a_post_does_not_claim_what_its_claimant_may_not_run(log: Log, make, clock) -> None:
    assert (await log.post("s", [make.message("x")], claimant=Claimant("me", 30, ["other"]))).claim is None
    assert (await log.get_info("s")).wake_at == 1000.0, "it is due for others"
    mine = await claim(log)
    assert (await log.post("s", [make.message("y")], claimant=Claimant("you", 30))).claim is None
    clock.now = 1000.0 + mine.ttl
    taken = await log.post("s", [make.message("z")], claimant=Claimant("you", 30))
    assert taken.claim == Claim("s", "you", mine.epoch + 1, 30)


async def test_a_repeated_post_claims_nothing(log: Log, make) -> None:
    await log.post("s", [make.message("x")], "k")
    assert await log.post("s", [make.message("x")], "k", claimant=Claimant("me", 30)) == PostResult(
        tuple((await log.read("s"))[1:]), is_new=False
    )
    assert (await log.get_info("s")).owner == ""


async def test_the_last_append_can_give_the_session_back(log: Log, make, mine: Claim) -> None:
    await log.post("s", [make.message("seen")])
    await log.append(mine, 2, make.notes("the end"), release=True)
    info = await log.get_info("s")
    assert (info.owner, info.wake_at, info.seq) == ("", None, 3)
    assert await log.claim("you", 30) is None, "nothing is due"
    with pytest.raises(ClaimLost):
        await log.append(mine, 3, make.notes("x"))


async def test_an_append_that_is_refused_gives_nothing_back(log: Log, make, mine: Claim) -> None:
    await log.post("s", [make.message("not seen")])
    with pytest.raises(PositionMoved):
        await log.append(mine, 1, make.notes("the end"), release=True)
    assert (await log.get_info("s")).owner == mine.owner
    await log.append(mine, 2, make.notes("still mine"), "k")
    await log.append(mine, 2, make.notes("still mine"), "k", release=True)
    assert (await log.get_info("s")).owner == mine.owner, "what is repeated stores nothing"


async def test_a_session_is_due_at_its_wake_at_and_not_before(log: Log, clock, mine: Claim) -> None:
    assert await log.release(mine, 1, wake_at=1100.0)
    clock.now = 1099.0
    assert await log.claim("me", 30) is None
    clock.now = 1100.0
    assert (await claim(log, "")).session_id == "s"
    assert (await log.get_info("s")).wake_at is None


async def test_the_session_that_is_due_for_the_longest_time_comes_first(log: Log, make, clock) -> None:
    for at, session_id in ((1003.0, "late"), (1001.0, "early"), (1002.0, "middle")):
        clock.now = at
        await log.create(session_id, [make.created(session_id)])
        await log.post(session_id, [make.message("x")])
    clock.now = 1010.0
    await log.post("early", [make.message("again")])
    assert [(await claim(log, "")).session_id for _ in range(3)] == ["early", "middle", "late"]


async def test_agents_narrow_the_choice(log: Log, make) -> None:
    await log.create("t", [make.created("t", agent="writer")])
    await log.post("s", [make.message("x")])
    await log.post("t", [make.message("x")])
    assert await log.claim("me", 30, agents=[]) is None
    assert await log.claim("me", 30, agents=["painter"]) is None
    assert await log.claim("me", 30, "t", agents=["painter"]) is None
    assert describe(await log.claim("me", 30, agents=["painter", "writer"])) == ("t", "me", 30)


async def test_a_claim_can_be_limited_to_folders(log: Log, make) -> None:
    for name, workspace in (("t", "/work/app"), ("u", "/worker"), ("v", "/work")):
        await log.create(name, [make.created(name, workspace=workspace)])
        await log.post(name, [make.message("go")])
    assert await log.claim("me", 30, roots=[]) is None
    assert await log.claim("me", 30, roots=["/wor"]) is None
    assert await log.claim("me", 30, "u", roots=["/work"]) is None
    claimant = Claimant("me", 30, roots=["/work"])
    assert (await log.post("u", [make.message("more")], claimant=claimant)).claim is None
    assert describe(await log.claim("me", 30, roots=["/x", "/work/"])) == ("t", "me", 30)
    assert describe(await log.claim("me", 30, "v", roots=["/work"])) == ("v", "me", 30)
    assert describe(await log.claim("me", 30, roots=["/"])) == ("u", "me", 30)
    await log.post("s", [make.message("go")])
    assert describe(await log.claim("me", 30, roots=["/elsewhere"])) == ("s", "me", 30), "it has no workspace"


async def test_shared_values_are_taken_once_and_end_in_time(log: Log, clock) -> None:
    await log.shared.put("ticket", b"anna", 60)
    assert await log.shared.get("ticket") == b"anna"
    assert [await log.shared.take("ticket"), await log.shared.take("ticket")] == [b"anna", None]
    await log.shared.put("late", b"ben", 60)
    assert [await log.shared.count("wrong", 60), await log.shared.count("wrong", 60)] == [1, 2]
    assert await log.shared.read_count("wrong") == 2
    clock.now += 61
    assert await log.shared.take("late") is None
    assert await log.shared.read_count("wrong") == 0
    assert await log.shared.count("wrong", 60) == 1


async def test_a_post_wakes_a_waiting_session_before_its_wake_at_and_waiting_ends_with_the_claim(log, make, mine):
    await log.release(mine, 1, wake_at=9000.0, waiting=True)
    assert (await log.get_info("s")).status == "waiting"
    await log.post("s", [make.message("answer")])
    assert (await claim(log, "")).session_id == "s"
    assert (await log.get_info("s")).status == "running"


# --- append


async def test_an_append_stores_and_stamps_its_facts(log: Log, make, clock, mine: Claim) -> None:
    clock.now = 1007.0
    facts = make.notes("a", "b")
    await log.append(mine, 1, facts)
    assert [(fact.seq, fact.at) for fact in facts] == [(2, 1007.0), (3, 1007.0)]
    assert (await log.read("s"))[1:] == facts


async def test_an_append_of_nothing_writes_nothing(log: Log) -> None:
    await log.append(await claim(log), 1, [], "k")
    assert (await log.get_info("s")).seq == 1


async def test_an_append_to_a_log_that_moved_on_writes_nothing(log: Log, make, mine: Claim) -> None:
    await log.post("s", [make.message("x")])
    facts = make.notes("a")
    for wrong in (1, 3):
        with pytest.raises(PositionMoved, match="is at 2"):
            await log.append(mine, wrong, facts)
    assert len(await log.read("s")) == 2
    await log.append(mine, 2, facts)
    assert [fact.seq for fact in facts] == [3]


async def test_an_append_that_is_sent_again_with_its_key_is_stored_once(log: Log, make, clock, mine: Claim) -> None:
    await log.append(mine, 1, make.notes("a", "b"), "k")
    clock.now += 1
    again = make.notes("a", "b")
    await log.append(mine, 1, again, "k")
    assert [(fact.seq, fact.at) for fact in again] == [(2, 1000.0), (3, 1000.0)]
    await log.append(mine, 3, make.notes("a", "b"), "k")
    assert await read_names(log) == ["a", "b"]


async def test_an_append_with_a_key_that_was_used_for_other_facts_is_a_conflict(log: Log, make, mine: Claim) -> None:
    await log.append(mine, 1, make.notes("a", "b"), "k")
    with pytest.raises(Conflict, match="other facts"):
        await log.append(mine, 3, make.notes("c"), "k")


async def test_a_refused_append_does_not_use_its_key(log: Log, make, mine: Claim) -> None:
    with pytest.raises(PositionMoved):
        await log.append(mine, 9, make.notes("a"), "k")
    await log.append(mine, 1, make.notes("a"), "k")
    assert await read_names(log) == ["a"]


# --- read


async def test_reading_goes_on_after_a_position_and_stops_at_the_limit(log: Log, make, mine: Claim) -> None:
    await log.append(mine, 1, make.notes(*"abcde"))
    assert [fact.seq for fact in await log.read("s", 2)] == [3, 4, 5, 6]
    assert [fact.seq for fact in await log.read("s", 2, 2)] == [3, 4]
    assert await log.read("s", 2, 0) == []
    assert await log.read("s", 6) == []
    assert await log.read("s", 99) == []
    await log.create("t", [make.created("t")])
    for before in (-1, -5, -(2**32)):  # never those of another session, nor the last ones
        assert [fact.seq for fact in await log.read("s", before)] == [1, 2, 3, 4, 5, 6]
        assert [fact.seq for fact in await log.read("t", before, -1)] == [1]


async def test_sessions_do_not_mix(log: Log, make) -> None:
    for session_id in ("t", "u"):
        await log.create(session_id, [make.created(session_id)])
    for session_id in ("u", "s", "t", "s", "u"):
        await log.post(session_id, make.notes(session_id))
    for session_id, count in (("s", 2), ("t", 1), ("u", 2)):
        assert await read_names(log, session_id) == [session_id] * count


async def test_the_head_is_known_while_a_session_is_claimed_or_watched(log: Log, make) -> None:
    await log.post("s", make.notes("a"))
    assert log.get_head("s") == 0
    mine = await claim(log)
    assert log.get_head("s") == 2
    await log.append(mine, 2, make.notes("b"))
    await log.post("s", make.notes("c"))
    assert log.get_head("s") == 4
    await log.release(mine, None)
    assert log.get_head("s") == 0
    watch = log.watch("s")
    await anext(watch)  # a log that asks a server knows the head when it has read
    assert log.get_head("s") == 4
    watch.close()
    assert log.get_head("s") == 0


# --- unknown and deleted sessions


async def test_an_unknown_session_is_not_found_by_any_method(log: Log, make) -> None:
    nobody = Claim("nope", "me", 1, 30)
    for attempt in (
        lambda: log.post("nope", make.notes("x")),
        lambda: log.claim("me", 30, "nope"),
        lambda: log.renew(nobody),
        lambda: log.release(nobody, None),
        lambda: log.append(nobody, 0, make.notes("x")),
        lambda: log.read("nope"),
        lambda: log.get_info("nope"),
        lambda: log.put_artifact("nope", b"x"),
        lambda: log.get_artifact("nope", "x"),
        lambda: log.delete("nope"),
    ):
        with pytest.raises(NotFound, match="nope"):
            await attempt()
    with pytest.raises(NotFound):  # a log that asks a server raises when it reads
        await anext(log.watch("nope"))
    assert log.get_head("nope") == 0
    log.publish("nope", TextDelta(text="into the void"))


async def test_a_deleted_session_is_gone_with_all_it_had(log: Log, make) -> None:
    await log.post("s", [make.message("marmalade")], "k")
    artifact = await log.put_artifact("s", b"data")
    assert await log.search("marmalade")
    await log.delete("s")
    with pytest.raises(NotFound):
        await log.read("s")
    assert await log.search("marmalade") == []
    assert (await log.list_sessions(SessionQuery())).sessions == ()
    assert await log.claim("me", 30) is None
    await log.create("s", [make.created("s")])
    assert len(await log.read("s")) == 1
    assert (await log.post("s", [make.message("x")], "k")).is_new
    with pytest.raises(NotFound):
        await log.get_artifact("s", artifact)


async def test_deleting_one_session_leaves_its_neighbours_whole(log: Log, make) -> None:
    for session_id in ("t", "u"):
        await log.create(session_id, [make.created(session_id), make.message("marmalade")])
    await log.search("marmalade")
    await log.delete("t")
    assert len(await log.read("u")) == 2
    assert [hit.session_id for hit in await log.search("marmalade")] == ["u"]


async def test_a_session_with_a_live_owner_cannot_be_deleted(log: Log, clock) -> None:
    await claim(log, ttl=30)
    with pytest.raises(Conflict, match="running"):
        await log.delete("s")
    clock.now = 1030.0
    await log.delete("s")


async def test_a_claim_of_a_deleted_session_does_not_fit_the_next_one_of_that_name(log, make, clock, mine) -> None:
    clock.now = 1030.0
    await log.delete("s")
    with pytest.raises(NotFound):
        await log.append(mine, 1, make.notes("x"))
    await log.create("s", [make.created("s")])
    await claim(log, owner="you")
    with pytest.raises(ClaimLost):
        await log.append(mine, 1, make.notes("x"))
