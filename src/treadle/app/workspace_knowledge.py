"""What a workspace and its user have written for agents, ready for use: agents, skills, memory, helpers.

`WorkspaceKnowledge(workspace, user_folder).build_agent("coder", AgentOptions(model, tools))` is a normal `Agent`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from treadle.agent import Agent
from treadle.engine.setup import Gate
from treadle.errors import NotFound
from treadle.events import Grant, Limits
from treadle.knowledge.agents import AgentFile
from treadle.knowledge.base import Problem, Skill
from treadle.knowledge.file_knowledge import Definitions, FileKnowledge
from treadle.memory.base import Embed
from treadle.messages import Sampling
from treadle.models.base import Model
from treadle.permissions.patterns import covers_call
from treadle.permissions.policy import apply_posture
from treadle.tools.base import Tool
from treadle.tools.function import tool as made_tool

__all__ = ["AgentFile", "AgentOptions", "FileKnowledge", "WorkspaceKnowledge", "Problem", "Skill", "Definitions"]

WEB_TOOLS = ("fetch_url", "web_*", "search_web")


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What the operator gives every agent; a file can narrow it. `instructions` replace those of the default agent."""

    model: str | Model | None = None
    tools: Sequence[Tool | Callable[..., Any]] = ()  # a function of the user may take anything
    grant: Grant = Grant()
    limits: Limits = Limits()
    gate: Gate | None = None
    instructions: str = ""
    embed: Embed | None = None
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])


class WorkspaceKnowledge:
    """The agents and skills of one workspace. `refresh` reads the files again."""

    def __init__(self, workspace: str | Path, user_folder: str | Path | None = None) -> None:
        self.workspace = Path(workspace).absolute()
        self.knowledge = FileKnowledge(Path(user_folder).absolute() if user_folder is not None else None)
        self.refresh()

    def refresh(self) -> None:
        """Read the files again; agents that were made before stay as they are."""
        written = self.knowledge.read_all(self.workspace)
        self.agents: Mapping[str, AgentFile] = written.agents
        self.skills: Mapping[str, Skill] = written.skills
        self.problems: tuple[Problem, ...] = written.problems

    def enable_skill(self, skill: str, *, on: bool) -> None:
        """Enable or disable a skill."""
        if skill not in self.skills:
            raise NotFound(f"there is no skill named {skill!r}; there are: {', '.join(self.skills) or 'none'}")
        self.knowledge.enable_skill(skill, on=on)
        self.refresh()

    def build_agent(self, name: str = "default", options: AgentOptions | None = None) -> Agent:
        """The agent of that name, with memory, skills and helpers besides the tools that the operator gives it."""
        if name not in self.agents:
            raise NotFound(f"there is no agent named {name!r}; there are: {', '.join(self.agents)}")
        return self._made(self.agents[name], options or AgentOptions())

    def build_all_agents(self, options: AgentOptions | None = None) -> list[Agent]:
        """Every agent, for a runtime in which each can help the others."""
        return [self.build_agent(name, options) for name in self.agents]

    def _made(self, written: AgentFile, options: AgentOptions) -> Agent:
        chosen = options.instructions if written.name == "default" and written.origin == "builtin" else ""
        sampling = Sampling(temperature=written.temperature) if written.temperature is not None else Sampling()
        tools = self._tools(written, options)
        return Agent(
            written.model or options.model,
            tools=tools,
            instructions=chosen or written.instructions,
            name=written.name,
            limits=narrow_limits(written, options.limits),
            grant=narrow_grant(written, options.grant, [one.name for one in tools]),
            sampling=sampling,
            gate=options.gate,
            knowledge=self.knowledge,
            **options.more,
        )

    def _tools(self, written: AgentFile, options: AgentOptions) -> list[Tool]:
        from treadle.tools.delegate import build_delegate_tool
        from treadle.tools.remember import build_memory_tools
        from treadle.tools.use_skill import build_skill_tool

        given = [one if isinstance(one, Tool) else made_tool(one) for one in options.tools]
        others = {one.name: one.description for one in self.agents.values()}
        own = [*build_memory_tools(options.embed), build_skill_tool(self.knowledge), build_delegate_tool(others)]
        names = {one.name for one in given}
        tools = [*given, *(one for one in own if one.name not in names)]
        wanted = written.tools if written.tools is not None else ("*",)
        unwanted = WEB_TOOLS if written.web is False else ()
        return [one for one in tools if _named(wanted, one.name) and not _named(unwanted, one.name)]


def _named(patterns: Sequence[str], name: str) -> bool:
    return any(covers_call(pattern, name, {}) for pattern in patterns)


def narrow_limits(written: AgentFile, given: Limits) -> Limits:
    """The operator's limits, narrowed by what the file says; only a file of the user's own may have more turns."""
    turns = given.turns if written.steps is None else written.steps
    calls = given.calls if written.max_calls is None else written.max_calls
    if written.origin == "workspace":
        turns, calls = min(turns, given.turns), min(calls, given.calls)
    return replace(given, turns=turns, calls=calls)


def narrow_grant(written: AgentFile, given: Grant, tools: Sequence[str]) -> Grant:
    """The operator's grant as the agent's posture and `tools` have it; never wider for a file of a workspace.

    Only the user's own files can make an agent trusting.
    """
    if written.tools is not None:
        given = replace(given, tools=tuple(name for name in tools if _named(given.tools, name)))
    if written.web is False:
        given = replace(given, forbid=(*given.forbid, *WEB_TOOLS))
    if written.posture == "trusting" and written.origin != "user":
        return given
    return apply_posture(given, written.posture)
