"""Search of memories by meaning: vectors are made when they are needed, and words alone decide without them."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kit.sessions import Store, build_agent, either_store, run_agent
from treadle.errors import ModelError
from treadle.log.sqlite import SqliteLog
from treadle.memory import search as meaning
from treadle.memory.base import Memories, Memory
from treadle.testing import call
from treadle.tools.remember import MEMORY_TOOLS

store = either_store


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine must not look like a slow embedding."""
    monkeypatch.setattr(meaning, "EMBED_TIMEOUT", 60.0)
    monkeypatch.setattr(meaning, "BACKFILL_SECONDS", 60.0)


@pytest.fixture
def memories(store: Store) -> Memories:
    return store.open().memories


RED, BREAD = "A vehicle of crimson colour.", "Bread needs salt."


class Colours:
    """An embedding that knows one thing of a text: whether it is about red. `asked` is what it was given."""

    def __init__(self, name: str = "colours") -> None:
        self.name, self.asked = name, list[str]()

    async def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        await asyncio.sleep(0)
        self.asked.extend(texts)
        return [[1.0, 0.1] if "red" in text or "crimson" in text else [-1.0, 0.0] for text in texts]


async def test_meaning_and_words_are_fused_by_rank(memories: Memories) -> None:
    word = await memories.add(Memory("The red car is old."))
    near = await memories.add(Memory(RED))
    await memories.add(Memory(BREAD))
    assert await memories.search("car") == [word]
    assert await memories.search("car in red", embed=Colours()) == [word, near]


async def test_each_text_is_embedded_once_and_again_when_it_has_changed(memories: Memories) -> None:
    embed = Colours()
    red, bread = await memories.add(Memory(RED)), await memories.add(Memory(BREAD))
    memories.embed = embed
    assert await memories.search("anything red") == [red]
    assert await memories.search("anything red") == [red]
    assert sorted(embed.asked) == sorted([RED, BREAD, "anything red", "anything red"])
    await memories.edit(bread.id, "Bread is red here.")
    assert {one.id for one in await memories.search("anything red")} == {red.id, bread.id}
    await memories.delete(red.id)
    assert [one.id for one in await memories.search("anything red")] == [bread.id]
    assert embed.asked.count(RED) == 1 and embed.asked.count("Bread is red here.") == 1


async def test_another_embedding_makes_its_own_vectors(memories: Memories) -> None:
    other = Colours("other")
    red = await memories.add(Memory(RED))
    assert await memories.search("anything red", embed=Colours()) == [red]
    assert await memories.search("anything red", embed=other) == [red] and RED in other.asked


async def test_many_memories_get_their_vectors_a_few_at_a_time(
    memories: Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meaning, "BACKFILL_SECONDS", 0.0)
    embed = Colours()
    for number in range(20):
        await memories.add(Memory(f"{number}: crimson"))
    assert await memories.search("anything red", embed=embed) == [] and embed.asked == ["anything red"]
    monkeypatch.setattr(meaning, "BACKFILL_SECONDS", 60.0)
    assert len(await memories.search("anything red", embed=embed)) == 20
    assert embed.asked[2] == "19: crimson" and len(embed.asked) == 22


async def test_where_the_embedding_fails_or_is_slow_the_words_decide(
    memories: Memories, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(texts: Sequence[str]) -> list[list[float]]:
        raise ModelError("no such model")

    async def slow(texts: Sequence[str]) -> list[list[float]]:
        await asyncio.Event().wait()
        return []

    red = await memories.add(Memory(RED))
    monkeypatch.setattr(meaning, "EMBED_TIMEOUT", 0.01)
    for embed in (broken, slow):
        assert await memories.search("which vehicle", embed=embed) == [red]
    assert "no such model" in caplog.text and "words only" in caplog.text


async def test_a_text_that_changes_while_it_is_embedded_keeps_no_vector_of_the_old_one(memories: Memories) -> None:
    inner = Colours()
    red = await memories.add(Memory(RED))

    async def embed(texts: Sequence[str]) -> list[list[float]]:
        if RED in texts:
            await memories.edit(red.id, BREAD)
        return await inner(texts)

    assert await memories.search("anything red", embed=embed) == []
    assert inner.asked == ["anything red", RED, BREAD]


async def test_vectors_are_kept_from_one_process_to_the_next(tmp_path: Path) -> None:
    for number in range(2):
        embed = Colours()
        async with SqliteLog(tmp_path / "m.db") as log:
            red = await log.memories.add(Memory(RED))
            assert await log.memories.search("anything red", embed=embed) == [red]
        assert embed.asked == ["anything red", *([RED] if not number else [])]


async def test_agents_recall_by_meaning_and_remember_without_waiting_for_it(store: Store, tmp_path: Path) -> None:
    log = store.open()
    log.memories.embed = embed = Colours()
    remember = [call("remember", text="The gate is crimson."), call("remember", text=BREAD)]
    recall = call("recall", id="r", query="anything red")
    agent, _ = build_agent(*remember, recall, "Done.", tools=MEMORY_TOOLS)
    shown = (await run_agent(agent, log=log, workspace=tmp_path)).messages["r"].text
    assert "crimson" in shown and "Bread" not in shown and embed.asked[0] == "anything red"
