"""Live text between the nodes of a PostgreSQL log: in order, without holes, and never after the reply it belongs to."""

from collections.abc import AsyncIterator, Sequence

import pytest

from tests.kit.postgres import needs_postgres
from tests.log.nodes import Nodes, run_session, say, until
from treadle.events import CallFinished, CallStarted, Custom, ModelReplied, OutputDelta, ReasoningDelta, TurnStarted
from treadle.log import postgres_live, postgres_wakeups
from treadle.log.postgres import PostgresLog
from treadle.log.postgres_wakeups import MAX_PAYLOAD, LivePiece, LiveWanted, NewsItem, decode_news, encode_news

pytestmark = needs_postgres


@pytest.fixture
async def nodes(postgres_url: str) -> AsyncIterator[Nodes]:
    async with Nodes(postgres_url) as nodes:
        yield nodes


def record_news(monkeypatch: pytest.MonkeyPatch) -> list[NewsItem]:
    """All that nodes send from now on."""
    sent: list[NewsItem] = []

    def encode(node: str, at: float, items: Sequence[NewsItem]) -> list[str]:
        sent.extend(items)
        return encode_news(node, at, items)

    monkeypatch.setattr(postgres_wakeups, "encode_news", encode)
    return sent


def lose_pieces(log: PostgresLog, monkeypatch: pytest.MonkeyPatch, count: int) -> list[LivePiece]:
    """Lose the next pieces that come to a node."""
    lost: list[LivePiece] = []
    receive = log._live.receive  # pyright: ignore

    def receive_rest(item: LiveWanted | LivePiece) -> None:
        if isinstance(item, LivePiece) and len(lost) < count:
            lost.append(item)
        else:
            receive(item)

    monkeypatch.setattr(log._live, "receive", receive_rest)  # pyright: ignore
    return lost


def decode_items(message: str) -> list[NewsItem]:
    decoded = decode_news(message)
    return decoded[2] if decoded is not None else []


async def test_text_shows_on_other_nodes_in_order_and_before_its_reply(nodes: Nodes) -> None:
    owner, other = await nodes.open(), await nodes.open()
    claim = await run_session(owner)
    screen = nodes.watch(other)
    await owner.append(claim, 1, [TurnStarted(turn=1)])
    await screen.shows("[1][2]")
    say(owner, "Hel", "lo ", after=2)
    await screen.shows("[1][2]Hello ")
    say(owner, "world", after=2)
    owner.publish("s", ReasoningDelta(text="hm", after=2))
    await owner.append(claim, 2, [ModelReplied(text="Hello world")])
    await screen.shows("[1][2]Hello worldhm[3]")


async def test_output_of_calls_shows_until_its_call_has_ended(nodes: Nodes) -> None:
    owner, other = await nodes.open(), await nodes.open()
    claim = await run_session(owner)
    screen = nodes.watch(other)
    await until(lambda: owner._live._sent)  # pyright: ignore
    calls = [CallStarted(call_id=name, tool="shell") for name in ("a", "b")]
    await owner.append(claim, 1, [ModelReplied(text=""), *calls])
    for call in ("a", "b"):
        owner.publish("s", OutputDelta(call_id=call, text=call, after=4))
    await screen.shows("[1][2][3][4]ab")
    await owner.append(claim, 4, [CallFinished(call_id="a", tool="shell", status="ok", output="a")])
    await screen.shows("[1][2][3][4]ab[5]")
    for call in ("a", "b"):
        owner.publish("s", OutputDelta(call_id=call, text=f"{call} late", after=4))
    await screen.shows("[1][2][3][4]ab[5]b late")


async def test_text_of_a_reply_is_not_shown_after_it(nodes: Nodes) -> None:
    owner, other = await nodes.open(), await nodes.open()
    claim = await run_session(owner)
    screen = nodes.watch(other)
    await screen.shows("[1]")
    await owner.append(claim, 1, [ModelReplied(text="all")])
    await screen.shows("[1][2]")
    say(owner, "late", after=1)
    say(owner, "new", after=2)
    await screen.shows("[1][2]new")


async def test_a_watcher_that_reads_the_reply_itself_sees_no_text_of_it_after_it(nodes: Nodes) -> None:
    owner, other = await nodes.open(), await nodes.open()
    claim = await run_session(owner)
    early = nodes.watch(other)
    say(owner, "said", after=1)
    await early.shows("[1]said")
    other._updates.handle = lambda heads: None  # pyright: ignore
    other._wakeups._on_heads = lambda heads: None  # pyright: ignore
    await owner.append(claim, 1, [ModelReplied(text="said")])
    late = nodes.watch(other)
    await late.shows("[1][2]")
    await early.shows("[1]said[2]")


async def test_a_watcher_that_joins_in_the_middle_sees_the_text_so_far(nodes: Nodes) -> None:
    owner, other, third = await nodes.open(), await nodes.open(), await nodes.open()
    await run_session(owner)
    local = nodes.watch(owner)
    early = nodes.watch(other)
    await early.shows("[1]")
    long = "wörd " * 2000
    say(owner, "begin ", long, after=1)
    await early.shows(f"[1]begin {long}")
    late = nodes.watch(third)
    await late.shows(f"[1]begin {long}")
    say(owner, "end", after=1)
    for screen in (late, early, local):
        await screen.shows(f"[1]begin {long}end")


async def test_text_that_was_lost_on_the_way_is_sent_again(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_live, "ASK_AGAIN_SECONDS", 0.0)
    owner, other = await nodes.open(), await nodes.open()
    await run_session(owner)
    screen = nodes.watch(other)
    say(owner, "one ", after=1)
    await screen.shows("[1]one ")
    lost = lose_pieces(other, monkeypatch, 1)
    say(owner, "two ", after=1)
    await until(lambda: lost)
    assert screen.text == "[1]one ", "no text is better than text with a hole"
    say(owner, "three", after=1)
    await screen.shows("[1]one two three")


async def test_text_that_nobody_watches_elsewhere_is_not_sent(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, other = await nodes.open(), await nodes.open()
    await run_session(owner)
    sent = record_news(monkeypatch)
    local = nodes.watch(owner)
    await local.shows("[1]")
    say(owner, "quiet", after=1)
    await owner.post("s", [Custom(name="n")])
    await local.shows("[1]quiet[2]")
    await until(lambda: sent)
    assert not [item for item in sent if isinstance(item, LivePiece)]
    await nodes.watch(other).shows("[1][2]quiet")
    assert [item for item in sent if isinstance(item, LivePiece)]


async def test_text_is_sent_no_more_when_nobody_watches_any_longer(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_live, "INTEREST_SECONDS", 0.05)
    monkeypatch.setattr(postgres_live, "REFRESH_SECONDS", 1e9)
    owner, other = await nodes.open(), await nodes.open()
    claim = await run_session(owner)
    screen = nodes.watch(other)
    sent_to = owner._live._sent  # pyright: ignore
    await until(lambda: "s" in sent_to)
    await screen.close()

    def is_sent() -> bool:
        owner._live._pending.clear()  # pyright: ignore
        say(owner, "word", after=1)
        return "s" in owner._live._pending  # pyright: ignore

    await until(lambda: not is_sent())
    await owner.append(claim, 1, [ModelReplied(text="")])


async def test_after_a_takeover_only_the_new_owner_is_shown(nodes: Nodes) -> None:
    frozen, fresh, other = await nodes.open(), await nodes.open(), await nodes.open()
    await run_session(frozen, ttl=0.01)
    early = nodes.watch(other)
    say(frozen, "old", after=1)
    await early.shows("[1]old")
    claim = None
    while claim is None:
        claim = await fresh.claim("you", 600, "s")
    say(fresh, "new text", after=1)
    await until(lambda: other._live._shown["s"].epoch == claim.epoch)  # pyright: ignore
    late = nodes.watch(other)
    await late.shows("[1]new text")
    say(frozen, " of a zombie", after=1)
    await fresh.append(claim, 1, [ModelReplied(text="new text")])
    say(fresh, "next", after=2)
    await late.shows("[1]new text[2]next")
    await early.shows("[1]old[2]next")


async def test_whoever_watched_a_reply_here_is_not_shown_another_beginning_of_it_by_the_same_node(nodes: Nodes) -> None:
    dead, heir = await nodes.open(), await nodes.open()
    await run_session(dead, ttl=0.01)
    early = nodes.watch(heir)
    say(dead, "old", after=1)
    await early.shows("[1]old")
    claim = None
    while claim is None:
        claim = await heir.claim("you", 600, "s")
    say(heir, "new", after=1)
    late = nodes.watch(heir)
    await late.shows("[1]new")
    await heir.append(claim, 1, [ModelReplied(text="new")])
    say(heir, "next", after=2)
    await early.shows("[1]old[2]next")


async def test_a_watcher_sees_the_live_text_of_whoever_runs_the_session_next(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_live, "REFRESH_SECONDS", 1e9)
    first, second = await nodes.open(), await nodes.open()
    claim = await run_session(first)
    screen = nodes.watch(first)
    say(first, "one", after=1)
    await first.append(claim, 1, [ModelReplied(text="one")], release=True)
    assert await second.claim("you", 600, "s") is not None
    say(second, "two", after=2)
    await screen.shows("[1]one[2]two")


async def test_a_node_that_cannot_send_keeps_little(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_live, "MAX_PENDING", 10_000)
    owner, other = await nodes.open(), await nodes.open()
    await run_session(owner)
    screen = nodes.watch(other)
    await until(lambda: "s" in owner._live._sent)  # pyright: ignore
    for _ in range(1000):  # in one go, so that nothing is sent meanwhile
        say(owner, "x" * 100, after=1)
    assert sum(len(piece.delta.text) for piece in owner._live._pending["s"]) < 12_000  # pyright: ignore
    await until(lambda: len(screen.text) > 10_000)
    monkeypatch.undo()
    say(owner, "end", after=1)
    await screen.shows(f"[1]{'x' * 100_000}end")


def test_messages_fit_and_hold_everything_that_fits() -> None:
    delta = OutputDelta(call_id="c", text='"\x01ß€😀\\' * 2000, after=1)
    pieces = postgres_live.split_piece(LivePiece("s", 1, 0, delta))
    assert "".join(piece.delta.text for piece in pieces) == delta.text  # pyright: ignore
    wanted = [LiveWanted(f"session-{number}") for number in range(1000)]
    half = LivePiece("s", 1, 0, OutputDelta(call_id="c", text="\ud800", after=1))
    messages = encode_news("n", 1.0, [*pieces, half, *wanted])
    assert all(len(message.encode()) <= MAX_PAYLOAD for message in messages)
    assert [item for message in messages for item in decode_items(message)] == [*pieces, *wanted]


def test_items_that_this_release_does_not_know_are_left_out() -> None:
    message = encode_news("n", 1.0, [LiveWanted("s")])[0]
    newer = message.replace('["wanted"', '["dreamt","s"],["live","s",1,0,{"type":"dream_delta"}],["wanted"')
    assert decode_items(newer) == [LiveWanted("s")]
    assert decode_items("gossip") == []
