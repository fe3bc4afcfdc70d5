"""Skills drafted from what was done: proposed after the third time, with a diff, and active only when accepted."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from tests.kit.sessions import run_to_end
from tests.kit.strict import StrictModel
from treadle import Runtime, Session, tool
from treadle.app.skill_drafter import SkillDrafter
from treadle.app.workspace_knowledge import AgentOptions, WorkspaceKnowledge
from treadle.errors import Conflict, NotFound
from treadle.events import Custom, Parent, SessionCreated
from treadle.knowledge.skill_drafts import SkillProposals
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


ASKS = [f"write the release notes for version {number}" for number in (1, 2, 3, 4)]


class Drafting(NamedTuple):
    """A runtime that drafts skills from what its sessions do."""

    runtime: Runtime
    knowledge: WorkspaceKnowledge

    async def run(self, *asks: str, workspace: Path | None = None, new: bool = True) -> Session:
        """Do what is asked, in a new session each time, and wait for the drafts."""
        folder = workspace or self.knowledge.workspace
        for ask in asks:
            async with self.runtime.session("default", new=new, workspace=folder) as session:
                await run_to_end(session, ask)
                while self.runtime._background:  # pyright: ignore[reportPrivateUsage]
                    await next(iter(self.runtime._background))  # pyright: ignore[reportPrivateUsage]
        return session


@asynccontextmanager
async def open_drafting(folder: Path, model: ScriptedModel) -> AsyncIterator[Drafting]:
    knowledge = WorkspaceKnowledge(folder, folder / "own")
    agent = knowledge.build_agent("default", AgentOptions(StrictModel(model), [look]))
    async with Runtime(folder / "s.db", [agent], recover=False) as runtime:
        runtime.after_answer.append(SkillDrafter(knowledge))
        yield Drafting(runtime, knowledge)


async def work(folder: Path, model: ScriptedModel, *asks: str, new: bool = True) -> WorkspaceKnowledge:
    async with open_drafting(folder, model) as drafting:
        await drafting.run(*asks, new=new)
    return drafting.knowledge


async def test_the_third_time_a_skill_is_proposed_and_it_is_active_when_it_is_accepted(tmp_path: Path) -> None:
    model = Writer(DRAFT)
    async with open_drafting(tmp_path, model) as (runtime, knowledge):
        session = await Drafting(runtime, knowledge).run(*ASKS[:3])
        [fact] = [fact for fact in await runtime.log.read(session.id) if isinstance(fact, Custom)]
    assert (fact.name, fact.data["name"]) == ("treadle.skill_proposed", "release-notes") and "+++" in fact.data["diff"]
    [proposal] = knowledge.proposals.list()
    assert proposal.name == "release-notes" and "+1. Read the log." in proposal.diff and len(model.drafts) == 1
    knowledge.refresh()
    assert knowledge.skills == {}
    path = knowledge.proposals.accept("release-notes")
    knowledge.refresh()
    assert path == tmp_path / "own" / "skills" / "release-notes" / "SKILL.md" and knowledge.proposals.list() == []
    assert knowledge.skills["release-notes"].description == "Writes the release notes. Use it before a release."
    assert find_triggered(knowledge.skills, "Write the release notes for version 9")
    assert not find_triggered(knowledge.skills, "water the garden")


async def test_the_public_validator_accepts_a_drafted_skill(tmp_path: Path) -> None:
    validator = pytest.importorskip("skills_ref.validator", reason="THE VALIDATOR OF SKILLS IS MISSING: skills-ref")
    draft = (
        'A "quoted": thing! #1\nDoes it: \'all\' --- & {more} \\ [x] *y.\n1. Read: the log.\n---\n2. Write "notes".\n'
    )
    knowledge = await work(tmp_path, Writer(draft), *ASKS[:3])
    [proposal] = knowledge.proposals.list()
    assert validator.validate(knowledge.proposals.accept(proposal.name).parent) == []
    knowledge.refresh()
    assert knowledge.skills[proposal.name].body.endswith('2. Write "notes".') and knowledge.problems == ()


@pytest.mark.parametrize(
    ("asks", "new", "drafts"),
    [([*ASKS[:2], "water the garden and feed the cat"], True, 0), (ASKS[:3], False, 1), (ASKS, True, 1)],
    ids=["twice", "three times in one session", "while a proposal waits"],
)
async def test_a_skill_is_drafted_once_after_three_times(
    tmp_path: Path, asks: list[str], new: bool, drafts: int
) -> None:
    model = Writer(DRAFT)
    knowledge = await work(tmp_path, model, *asks, new=new)
    assert len(model.drafts) == len(knowledge.proposals.list()) == drafts


async def test_an_answer_without_any_call_is_no_skill(tmp_path: Path) -> None:
    model = ScriptedModel("One.", "Two.", "Three.", DRAFT)
    knowledge = await work(tmp_path, model, *ASKS[:3], new=False)
    assert len(model.requests) == 3 and knowledge.proposals.list() == []


async def test_work_in_another_workspace_or_by_helpers_does_not_count(tmp_path: Path) -> None:
    model, there = Writer(DRAFT), tmp_path / "there"
    there.mkdir()
    async with open_drafting(tmp_path, model) as (runtime, knowledge):
        drafting = Drafting(runtime, knowledge)
        session = await drafting.run(ASKS[0], workspace=there)
        first, *rest = await runtime.log.read(session.id)
        assert isinstance(first, SessionCreated)
        helper = replace(first, session_id="helper", workspace=str(tmp_path), parent=Parent(session.id, 1, "call_1"))
        await runtime.log.create("helper", [helper, *rest])
        await drafting.run(*ASKS[1:3])
    assert model.drafts == [] and knowledge.proposals.list() == []


@pytest.mark.parametrize("decide", [SkillProposals.accept, SkillProposals.decline], ids=["accepted", "declined"])
async def test_a_skill_that_was_accepted_or_declined_is_not_drafted_again(
    tmp_path: Path, decide: Callable[[SkillProposals, str], object]
) -> None:
    model = Writer(DRAFT)
    decide((await work(tmp_path, model, *ASKS[:3])).proposals, "release-notes")
    knowledge = await work(tmp_path, model, ASKS[3])
    assert len(model.drafts) == 1 and knowledge.proposals.list() == []
    assert set(knowledge.skills) == ({"release-notes"} if decide is SkillProposals.accept else set())
    with pytest.raises(Conflict, match="already"):
        knowledge.proposals.accept("release-notes")
    with pytest.raises(NotFound):
        knowledge.proposals.accept("nothing")


@pytest.mark.parametrize("draft", ["", "no steps", "# \n", "# x\nThe password is hunter22.\nlog in", "# ../../etc\n\n"])
async def test_a_bad_draft_is_thrown_away(tmp_path: Path, draft: str) -> None:
    assert (await work(tmp_path, Writer(draft), *ASKS[:3])).proposals.list() == []
