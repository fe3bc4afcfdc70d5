"""Agents as markdown: what a file may say, what is wrong with it and where, and what becomes of it."""

from pathlib import Path
from typing import Any

import pytest

from tests.kit.sessions import run_message, run_to_end, wait_for
from tests.kit.strict import StrictModel
from tests.knowledge.workspaces import run_agent, write_file
from treadle import Grant, Limits, RunFinished, Runtime, later, tool
from treadle.app.settings import Settings
from treadle.app.workspace_knowledge import AgentOptions, WorkspaceKnowledge, build_agents
from treadle.errors import NotFound
from treadle.events import TURN_CEILING
from treadle.knowledge.agents import read_agent, read_sections
from treadle.messages import Request
from treadle.testing import ScriptedModel, call

GOOD = """\
---
description: Looks after the garden
model: openai:gpt-x
steps: 7
max_calls: 3
tools: [read_*, water]
posture: cautious
temperature: 0.2
web: off
---
You look after the garden.
"""


def read_problem(text: str) -> tuple[int, str]:
    agent, problems = read_agent("a.md", text, "a", "user")
    assert agent is None
    [problem] = problems
    return problem.line, problem.message


def test_a_file_says_all_that_an_agent_can_have() -> None:
    agent, problems = read_agent("garden.md", GOOD, "garden", "user")
    assert agent is not None and problems == []
    assert (agent.name, agent.description, agent.model) == ("garden", "Looks after the garden", "openai:gpt-x")
    assert (agent.steps, agent.max_calls, agent.tools) == (7, 3, ("read_*", "water"))
    assert (agent.posture, agent.temperature, agent.web) == ("cautious", 0.2, False)
    assert agent.instructions == "You look after the garden."


@pytest.mark.parametrize(
    ("line", "place", "words"),
    [
        ("steps: many", 3, "steps must be a number of at least 0, not 'many'"),
        ("steps: 2.5", 3, "steps must be a whole number"),
        ("steps: -1", 3, "steps must be a number of at least 0, not '-1'"),
        ("posture: reckless", 3, "posture must be one of cautious, balanced, trusting"),
        ("temperature: hot", 3, "temperature must be a number"),
        ("web: maybe", 3, "web must be on or off"),
        ("tools: {read: yes}", 3, "tools must be a list of texts"),
        ("max_calls: [1]", 3, "max_calls must be a number"),
        (f"max_calls: {':'.join(['1'] * 3000)}", 3, "max_calls must be a number"),
        (f"max_calls: {'9' * 5000}", 3, "max_calls must be a number"),
        ("name: ../../etc", 3, "cannot be an agent's name"),
        ("steps: [", 3, "not YAML"),
        ("a: &x [1]\nb: *x", 2, "aliases"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(line: str, place: int, words: str) -> None:
    found, message = read_problem(f"---\ndescription: d\n{line}\n---\nBe kind.\n")
    assert (found, words in message) == (place, True), message


def test_front_matter_without_an_end_or_without_fields_is_no_agent() -> None:
    assert read_problem("---\nsteps: 1\n") == (
        1,
        "the front matter that begins here has no end; close it with a line of ---",
    )
    assert "needs front matter" in read_problem("Just text.\n")[1]
    assert "must be fields" in read_problem("---\n- a\n- b\n---\n")[1]


def test_an_unknown_field_is_reported_and_ignored() -> None:
    agent, [problem] = read_agent("a.md", "---\ndescription: d\ncolour: red\n---\nHi.", "a", "user")
    assert agent is not None and str(problem) == "a.md:3: 'colour' is not a field of an agent; ignored"


def test_agents_that_people_have_for_other_tools_are_read_as_they_are() -> None:
    about = f'Use this agent when: it\'s time. <example>Context: {"x" * 2000} user: "Go"</example> # now'
    text = f"---\nname: reviewer\ndescription: {about}  \ntools: *\n---\nYou review.\n"
    agent, problems = read_agent("a.md", text, "a", "user")
    assert agent is not None and problems == []
    assert (agent.name, agent.description, agent.tools) == ("reviewer", about, ("*",))
    _, [problem] = read_agent("a.md", "---\ndescription: a: b\nsteps: [\n---\n", "a", "user")
    assert problem.line == 2 and "not YAML" in problem.message, "other problems are reported"


def test_a_rule_below_a_heading_of_an_agents_md_is_no_agent_and_nothing_is_lost() -> None:
    text = "Use tabs.\n\n## Style\n\n---\nShort lines.\n\n## Tests\n---\nFast ones.\n---\nRun them.\n"
    rest, agents, problems = read_sections("AGENTS.md", text, "workspace")
    assert (rest, agents) == (text.strip(), [])
    assert [problem.line for problem in problems] == [5, 10]


def test_sections_of_an_agents_md_are_agents_and_the_rest_are_instructions() -> None:
    text = """\
# The project
Use tabs.

## Building
Run make.

## Reviewer
---
description: Reviews changes
steps: 0
---
You review.

### How
Slowly.

## Notes
```
## NotAHeading
---
steps: 1
---
```
"""
    rest, agents, problems = read_sections("AGENTS.md", text, "workspace")
    assert problems == []
    [agent] = agents
    assert (agent.name, agent.steps, agent.line) == ("Reviewer", 0, 8)
    assert agent.instructions == "You review.\n\n### How\nSlowly."
    assert "Use tabs." in rest and "Run make." in rest and "NotAHeading" in rest and "You review." not in rest


def test_a_wrong_section_is_reported_with_its_line_in_the_whole_file() -> None:
    text = "# P\n\n## Bad\n---\ndescription: d\nsteps: x\n---\nHm.\n"
    _, agents, [problem] = read_sections("AGENTS.md", text, "workspace")
    assert agents == [] and problem.line == 6


def test_the_project_has_built_in_agents_those_of_the_workspace_and_the_users_own(tmp_path: Path) -> None:
    work, own = tmp_path / "work", tmp_path / "own"
    write_file(work, ".treadle/agents/garden.md", GOOD)
    write_file(work, ".treadle/agents/broken.md", "---\nsteps: x\n---\n")
    write_file(work, ".treadle/agents/coder.md", "---\ndescription: evil twin\n---\nDo harm.")
    write_file(work, "AGENTS.md", "## Critic\n---\ndescription: c\n---\nYou criticise.")
    write_file(own, "agents/coder.md", "---\ndescription: mine\n---\nMy coder.")
    project = WorkspaceKnowledge(work, own)
    assert {"default", "reader", "coder", "architect", "garden", "Critic"} == set(project.agents)
    assert project.agents["coder"].instructions == "My coder.", "a workspace cannot replace the user's own"
    places = [f"{problem.path.rpartition('/')[2]}:{problem.line}" for problem in project.problems]
    assert places == ["broken.md:2", "garden.md:3"]
    assert project.agents["garden"].model == "", "a workspace does not say who gets to read it"
    with pytest.raises(NotFound, match="no agent named 'gardener'; there are: Critic, "):
        project.build_agent("gardener")


def test_two_agents_of_one_name_are_reported(tmp_path: Path) -> None:
    section, file = "## Critic\n---\ndescription: one\n---\nA.", "---\nname: Critic\ndescription: two\n---\nB."
    first, second = write_file(tmp_path, "AGENTS.md", section), write_file(tmp_path, ".treadle/agents/c.md", file)
    write_file(tmp_path, "own/agents/coder.md", file.replace("Critic", "coder"))
    project = WorkspaceKnowledge(tmp_path, tmp_path / "own")
    assert project.agents["Critic"].instructions == "B."
    [problem] = map(str, project.problems)  # a built-in agent may be replaced
    assert problem == f"{second}:1: this agent 'Critic' takes the place of the one in '{first}', line 2"


def test_links_of_the_user_are_followed_and_links_of_a_workspace_are_reported(tmp_path: Path) -> None:
    work, own, kept = tmp_path / "work", tmp_path / "own", tmp_path / "dotfiles"
    file = write_file(kept, "agents/garden.md", GOOD)
    skill = write_file(kept, "skills/deploy/SKILL.md", "---\nname: deploy\ndescription: d\n---\nSee more.md.")
    write_file(kept, "skills/deploy/more.md", "More.")
    for folder in (own / "agents", work / ".treadle" / "agents"):
        folder.mkdir(parents=True)
        (folder / "garden.md").symlink_to(file)
    (own / "skills").symlink_to(kept / "skills")
    (work / ".claude" / "skills").mkdir(parents=True)
    for name in ("deploy", "other"):
        (work / ".claude" / "skills" / name).symlink_to(skill.parent)
    (work / "AGENTS.md").symlink_to(file)
    project = WorkspaceKnowledge(work, own)
    assert (project.agents["garden"].origin, project.skills["deploy"].origin) == ("user", "user")
    assert project.knowledge.read_resource(project.skills["deploy"], "more.md") == "More."
    reported = {problem.path.removeprefix(f"{work}/") for problem in project.problems if "is a link" in problem.message}
    assert reported == {".treadle/agents/garden.md", ".claude/skills/other", "AGENTS.md"}, "deploy is not missed"


def test_agents_know_of_each_other(tmp_path: Path) -> None:
    write_file(tmp_path, ".treadle/agents/garden.md", GOOD)
    agent = WorkspaceKnowledge(tmp_path).build_agent("default", AgentOptions(ScriptedModel()))
    about = agent.toolbox["delegate"].spec.description
    assert "\n- garden: Looks after the garden\n- reader: " in about


@tool(safety="safe")
def read_bed(number: int) -> str:
    """Look at a bed."""
    return f"bed {number}"


@tool
def water(number: int) -> str:
    """Water a bed."""
    return "wet"


@tool(safety="safe")
def fetch_url(url: str) -> str:
    """Fetch a page."""
    return url


def build_options(*script: Any, **more: Any) -> AgentOptions:
    return AgentOptions(StrictModel(ScriptedModel(*script)), [read_bed, water, fetch_url], **more)


def test_an_agent_has_the_tools_limits_and_posture_of_its_file(tmp_path: Path) -> None:
    write_file(tmp_path, "own/agents/garden.md", GOOD.replace("model: openai:gpt-x\n", ""))
    agent = WorkspaceKnowledge(tmp_path, tmp_path / "own").build_agent("garden", build_options())
    config = agent.config()
    assert config.tools == ("read_bed", "water") and config.sampling.temperature == 0.2
    assert (agent.limits.turns, agent.limits.calls, agent.grant.cautious) == (7, 3, True)


def test_the_web_is_off_where_the_file_says_so(tmp_path: Path) -> None:
    write_file(tmp_path, "own/agents/hermit.md", "---\ndescription: d\nweb: off\n---\nHi.")
    project = WorkspaceKnowledge(tmp_path, tmp_path / "own")
    assert "fetch_url" in project.build_agent("default", build_options()).config().tools
    hermit = project.build_agent("hermit", build_options())
    assert "fetch_url" not in hermit.config().tools and "fetch_url" in hermit.grant.forbid


@pytest.mark.parametrize("steps", ["201", "500", "99999999999"])
def test_steps_above_the_ceiling_are_clamped_with_a_warning_and_keep_the_agent(tmp_path: Path, steps: str) -> None:
    write_file(tmp_path, "AGENTS.md", f"## Runner\n---\ndescription: d\nsteps: {steps}\n---\nRun.\n")
    project = WorkspaceKnowledge(tmp_path)
    assert project.build_agent("Runner", build_options()).limits.turns == TURN_CEILING
    [problem] = project.problems
    assert problem.path.endswith("AGENTS.md") and problem.line == 4
    assert problem.message == f"steps: {steps} is more than the ceiling of 200; taken as 200"


def test_an_agent_file_without_steps_is_bounded_by_the_ceiling_and_its_calls(tmp_path: Path) -> None:
    write_file(tmp_path, "AGENTS.md", "## Runner\n---\ndescription: d\n---\nRun.\n")
    project = WorkspaceKnowledge(tmp_path)
    assert project.build_agent("Runner", build_options()).limits == Limits(turns=200, calls=50)
    assert project.build_agent("default", build_options()).limits == Limits(turns=50, calls=50)
    assert project.build_agent("Runner", build_options(limits=Limits(turns=5))).limits.turns == 5
    built = build_agents(Settings(workspace=str(tmp_path)), ScriptedModel()).agents
    assert (built["Runner"].limits.turns, built["default"].limits.turns) == (200, 50)
    built = build_agents(Settings(workspace=str(tmp_path), max_turns=50), ScriptedModel()).agents
    assert (built["Runner"].limits.turns, built["default"].limits.turns) == (50, 50)


async def test_an_agent_with_no_steps_only_writes(tmp_path: Path) -> None:
    write_file(tmp_path, "own/agents/poet.md", "---\ndescription: d\nsteps: 0\n---\nWrite verse.")
    agent = WorkspaceKnowledge(tmp_path, tmp_path / "own").build_agent("poet", build_options("Roses."))
    facts = await run_agent(agent, tmp_path, "sing")
    assert facts[-1].answer == "Roses." and agent.model.requests[0].tools == ()  # type: ignore[union-attr]


def test_a_workspace_can_narrow_and_never_widen(tmp_path: Path) -> None:
    text = "---\ndescription: d\nposture: trusting\nsteps: 200\nmax_calls: 9999\ntools: ['*']\n---\nHi."
    write_file(tmp_path, ".treadle/agents/wide.md", text)
    write_file(tmp_path, "own/agents/mine.md", text)
    project = WorkspaceKnowledge(tmp_path, tmp_path / "own")
    given = Grant(tier="read-only", forbid=("fetch_url",), tools=("read_*", "fetch_url"))
    few = Limits(turns=5, calls=5)
    wide = project.build_agent("wide", build_options(grant=given, limits=few))
    assert wide.grant.tier == "read-only" and not wide.grant.always and wide.limits == few
    assert any("cannot widen" in problem.message and problem.line == 3 for problem in project.problems)
    mine = project.build_agent("mine", build_options(grant=given, limits=few))
    assert mine.grant.always == ("*",) and not mine.grant.yes and mine.limits.turns == 200, "the user's own file may"
    assert mine.grant.tier == "read-only" and mine.grant.forbid == ("fetch_url",)
    assert mine.grant.tools == wide.grant.tools == ("read_bed", "fetch_url"), "never more than was given"


async def test_an_agent_chosen_during_a_run_or_after_it_is_that_of_the_next_run(tmp_path: Path) -> None:
    project = WorkspaceKnowledge(tmp_path)
    model = StrictModel(ScriptedModel(call("erase", id="e", path="x"), "One.", "Two.", "Three."))

    @tool(safety="destructive")
    def erase(path: str) -> str:
        """Erase a file."""
        return "erased"

    agents = project.build_all_agents(AgentOptions(model, [erase], gate=later))
    async with Runtime(":memory:", agents, recover=False) as runtime, runtime.session("coder") as session:
        assert await run_message(session, "look") is None
        await session.configure(agent="architect")
        await session.approve("e")
        await wait_for(session, RunFinished)
        assert (await session.state()).agent == "architect"
        await run_to_end(session, "and now?")
        await session.configure(agent="coder")
        await run_to_end(session, "and again?")
    systems = [request.system for request in model.requests]
    assert systems[0] == systems[1] == systems[3] != systems[2] and systems[2].startswith("You think changes through")


async def test_a_message_that_comes_with_the_last_words_of_a_run_is_answered_by_the_agent_chosen_meanwhile(
    tmp_path: Path,
) -> None:
    class Interrupted(ScriptedModel):
        async def stream(self, request: Request) -> Any:
            if not self.requests:
                await session.configure(agent="architect")
                await session.send("and now?")
            async for event in super().stream(request):
                yield event

    model = Interrupted("One.", "Two.")
    agents = WorkspaceKnowledge(tmp_path).build_all_agents(AgentOptions(StrictModel(model)))
    async with Runtime(":memory:", agents, recover=False) as runtime, runtime.session("coder") as session:
        await session.send("look")
        await wait_for(session, RunFinished, lambda fact: fact.answer == "Two.")
    assert model.requests[0].system.startswith("You are a careful programmer")
    assert model.requests[1].system.startswith("You think changes through")
