"""Skills drafted from what was done: proposed after the third time, with a diff, and active only when accepted."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.kit.sessions import run_to_end, wait_for
from tests.kit.strict import StrictModel
from treadle import Runtime, tool
from treadle.app.skill_drafter import SkillDrafter
from treadle.app.workspace_knowledge import AgentOptions, WorkspaceKnowledge
from treadle.errors import NotFound
from treadle.events import Custom, Parent, SessionCreated
from treadle.knowledge.skills import find_triggered
from treadle.messages import Request, UserMessage
from treadle.testing import ScriptedModel, call

DRAFT = "# Release Notes!\nWrites the release notes. Use it before a release.\n1. Read the log.\n2. Write notes.\n"


@tool(safety="safe")
def look(what: str) -> str:
    """Look at something."""
    return f"seen {what}"


class Writer(ScriptedModel):
    """Looks once and answers; drafts when it is asked to."""

    def __init__(self, draft: str) -> None:
        super().__init__()
        self.draft, self.drafts = draft, list[Request]()

    async def stream(self, request: Request) -> Any:
        if request.system.startswith("You write down how"):
            self.drafts.append(request)
            line: Any = self.draft
        else:
            line = call("look", what="log") if isinstance(request.messages[-1], UserMessage) else "Written."
        async for event in ScriptedModel(line).stream(request):
            yield event


async def work(folder: Path, model: Writer, asks: list[str]) -> WorkspaceKnowledge:
    library = WorkspaceKnowledge(folder, folder / "own")
    agent = library.build_agent("default", AgentOptions(StrictModel(model), [look]))
    async with Runtime(folder / "s.db", [agent], recover=False) as runtime:
        runtime.after_answer.append(SkillDrafter(library))
        for ask in asks:
            async with runtime.session("default", new=True, workspace=folder) as session:
                await run_to_end(session, ask)
                while runtime._background:  # pyright: ignore[reportPrivateUsage]
                    await next(iter(runtime._background))  # pyright: ignore[reportPrivateUsage]
    return library


ASKS = [f"write the release notes for version {number}" for number in (1, 2, 3)]


async def test_the_third_time_a_skill_is_proposed_and_nothing_is_active_yet(tmp_path: Path) -> None:
    model = Writer(DRAFT)
    library = await work(tmp_path, model, ASKS)
    assert len(model.drafts) == 1
    [proposal] = library.proposals.list()
    assert proposal.name == "release-notes" and "+1. Read the log." in proposal.diff
    library.refresh()
    assert library.skills == {}
    path = library.proposals.accept("release-notes")
    library.refresh()
    assert path == tmp_path / "own" / "skills" / "release-notes" / "SKILL.md"
    skill = library.skills["release-notes"]
    assert skill.description == "Writes the release notes. Use it before a release." and library.proposals.list() == []
    assert find_triggered(library.skills, "Write the release notes for version 9")
    assert not find_triggered(library.skills, "water the garden")


async def test_the_public_validator_accepts_a_drafted_skill(tmp_path: Path) -> None:
    validator = pytest.importorskip("skills_ref.validator", reason="THE VALIDATOR OF SKILLS IS MISSING: skills-ref")
    draft = (
        'A "quoted": thing! #1\nDoes it: \'all\' --- & {more} \\ [x] *y.\n1. Read: the log.\n---\n2. Write "notes".\n'
    )
    library = await work(tmp_path, Writer(draft), ASKS)
    [proposal] = library.proposals.list()
    assert validator.validate(library.proposals.accept(proposal.name).parent) == []
    library.refresh()
    assert library.skills[proposal.name].body.endswith('2. Write "notes".') and library.problems == ()


async def test_twice_or_different_things_propose_nothing(tmp_path: Path) -> None:
    model = Writer(DRAFT)
    library = await work(tmp_path, model, [*ASKS[:2], "water the garden and feed the cat"])
    assert model.drafts == [] and library.proposals.list() == []


async def test_what_was_only_talked_about_is_no_skill(tmp_path: Path) -> None:
    library, model = WorkspaceKnowledge(tmp_path, tmp_path / "own"), ScriptedModel("One.", "Two.", "Three.", DRAFT)
    agent = library.build_agent("default", AgentOptions(StrictModel(model)))
    async with Runtime(":memory:", [agent], recover=False) as runtime:
        runtime.after_answer.append(SkillDrafter(library))
        async with runtime.session("default", workspace=tmp_path) as session:
            for ask in ASKS:
                await run_to_end(session, ask)
            while runtime._background:  # pyright: ignore[reportPrivateUsage]
                await next(iter(runtime._background))  # pyright: ignore[reportPrivateUsage]
    assert len(model.requests) == 3 and library.proposals.list() == []


async def test_what_was_done_in_another_workspace_or_by_helpers_does_not_count(tmp_path: Path) -> None:
    model = Writer(DRAFT)
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    library = WorkspaceKnowledge(here, tmp_path / "own")
    agent = library.build_agent("default", AgentOptions(StrictModel(model), [look]))
    async with Runtime(tmp_path / "s.db", [agent], recover=False) as runtime:
        runtime.after_answer.append(SkillDrafter(library))
        async with runtime.session("default", new=True, workspace=there) as session:
            await run_to_end(session, ASKS[0])
            facts = await session.facts()
        first = facts[0]
        assert isinstance(first, SessionCreated)
        helped = replace(first, session_id="helper", workspace=str(here), parent=Parent(session.id, 1, "call_1"))
        await runtime.log.create("helper", [helped, *facts[1:]])
        for ask in ASKS[1:]:
            async with runtime.session("default", new=True, workspace=here) as session:
                await run_to_end(session, ask)
                while runtime._background:  # pyright: ignore[reportPrivateUsage]
                    await next(iter(runtime._background))  # pyright: ignore[reportPrivateUsage]
    assert model.drafts == [] and library.proposals.list() == []


async def test_what_a_skill_is_for_already_is_not_drafted_again(tmp_path: Path) -> None:
    model = Writer(DRAFT)
    (await work(tmp_path, model, ASKS)).proposals.accept("release-notes")
    library = await work(tmp_path, model, ["write the release notes for version 4"])
    assert len(model.drafts) == 1 and library.proposals.list() == []


@pytest.mark.parametrize("draft", ["", "no steps", "# \n", "# x\nThe password is hunter22.\nlog in", "# ../../etc\n\n"])
async def test_a_bad_draft_is_thrown_away(tmp_path: Path, draft: str) -> None:
    assert (await work(tmp_path, Writer(draft), ASKS)).proposals.list() == []


async def test_three_times_in_one_session_are_three_times(tmp_path: Path) -> None:
    library = WorkspaceKnowledge(tmp_path, tmp_path / "own")
    agent = library.build_agent("default", AgentOptions(Writer(DRAFT), [look]))
    async with Runtime(":memory:", [agent], recover=False) as runtime:
        runtime.after_answer.append(SkillDrafter(library))
        async with runtime.session("default", workspace=tmp_path) as session:
            for ask in ASKS:
                await run_to_end(session, ask)
            await wait_for(session, Custom, lambda fact: fact.name == "treadle.skill_proposed")
    assert [one.name for one in library.proposals.list()] == ["release-notes"]


async def test_while_a_proposal_waits_nobody_is_asked_for_another(tmp_path: Path) -> None:
    model = Writer(DRAFT)
    library = await work(tmp_path, model, [*ASKS, "write the release notes for version 4"])
    assert len(model.drafts) == 1 and len(library.proposals.list()) == 1


async def test_a_proposal_can_be_declined_and_is_not_made_again(tmp_path: Path) -> None:
    model = Writer(DRAFT)
    library = await work(tmp_path, model, ASKS)
    library.proposals.decline("release-notes")
    assert library.proposals.list() == []
    library = await work(tmp_path, model, ["write the release notes for version 4"])
    assert library.proposals.list() == [] and library.skills == {} and len(model.drafts) == 1
    with pytest.raises(NotFound):
        library.proposals.accept("release-notes")


async def test_the_session_tells_of_the_proposal(tmp_path: Path) -> None:
    library = WorkspaceKnowledge(tmp_path, tmp_path / "own")
    agent = library.build_agent("default", AgentOptions(Writer(DRAFT), [look]))
    async with Runtime(":memory:", [agent], recover=False) as runtime:
        runtime.after_answer.append(SkillDrafter(library))
        for ask in ASKS:
            async with runtime.session("default", new=True, workspace=tmp_path) as session:
                await run_to_end(session, ask)
                if ask == ASKS[-1]:
                    fact = await wait_for(session, Custom, lambda fact: fact.name == "treadle.skill_proposed")
                    assert fact.data["name"] == "release-notes" and "+++" in fact.data["diff"]
