"""The agents and skills of a workspace and its user, built from their files and the settings.

`WorkspaceKnowledge(workspace, user_folder).build_agent("coder", AgentOptions(model, tools))` is a normal `Agent`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from treadle.agent import Agent
from treadle.app.settings import Settings, config_folder, data_folder
from treadle.engine.setup import Gate, Middleware
from treadle.errors import BadInput, NotFound
from treadle.events import Grant, Limits
from treadle.knowledge.agents import AgentFile
from treadle.knowledge.base import Problem, Skill
from treadle.knowledge.file_knowledge import FileKnowledge
from treadle.knowledge.skill_drafts import SkillProposals
from treadle.messages import Sampling
from treadle.models.base import Model
from treadle.permissions.patterns import covers_call
from treadle.permissions.policy import WEB_TOOLS, apply_posture
from treadle.secrets.keyring import Keyring
from treadle.tools.base import Tool
from treadle.tools.function import tool as build_tool


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """The options of the operator for every agent. An agent's file can narrow them.

    `instructions` replace those of the default agent. `limits` apply to every agent. Without them a built-in agent has
    the usual ones, and an agent of a file without `steps` has as many turns as its calls allow, up to the ceiling.
    `file_limits` are for agents of files only. Worktrees of helpers are created in `worktree_folder`. Every agent has
    the `middleware`.
    """

    model: str | Model | None = None
    tools: Sequence[Tool | Callable[..., object]] = ()
    grant: Grant = Grant()
    limits: Limits | None = None
    file_limits: Limits | None = None
    gate: Gate | None = None
    instructions: str = ""
    secrets: Sequence[str] | Keyring = ()
    worktree_folder: Path | None = None
    middleware: Sequence[Middleware] = ()


class WorkspaceKnowledge:
    """The agents and skills of one workspace. `refresh` reads the files again."""

    def __init__(self, workspace: str | Path, user_folder: str | Path | None = None) -> None:
        self.workspace = Path(workspace).absolute()
        self.knowledge = FileKnowledge(Path(user_folder).absolute() if user_folder is not None else None)
        if self.knowledge.user_folder is not None:
            self.knowledge.proposals = SkillProposals(self.knowledge.user_folder)
        self.refresh()

    @property
    def proposals(self) -> SkillProposals:
        """The skills that were drafted and wait for a decision. They are in the user's own folder."""
        if self.knowledge.user_folder is None:
            raise BadInput("proposed skills are in the user's own folder, and there is none here")
        return SkillProposals(self.knowledge.user_folder)

    def refresh(self) -> None:
        """Read the files again. Agents that were built before stay as they are."""
        found = self.knowledge.read_all(self.workspace)
        self.agents: Mapping[str, AgentFile] = found.agents
        self.skills: Mapping[str, Skill] = found.skills
        self.problems: tuple[Problem, ...] = found.problems

    def enable_skill(self, skill: str, *, on: bool) -> None:
        """Enable or disable a skill."""
        if skill not in self.skills:
            raise NotFound(f"there is no skill named {skill!r}; there are: {', '.join(self.skills) or 'none'}")
        self.knowledge.enable_skill(skill, on=on)
        self.refresh()

    def build_agent(self, name: str = "default", options: AgentOptions | None = None) -> Agent:
        """Build an agent with memory, skills and helpers besides the operator's tools."""
        if name not in self.agents:
            raise NotFound(f"there is no agent named {name!r}; there are: {', '.join(self.agents)}")
        file, options = self.agents[name], options or AgentOptions()
        is_plain_default = file.name == "default" and file.origin == "builtin"
        limits = options.limits or Limits()
        if file.origin != "builtin":
            limits = options.file_limits or options.limits or Limits(turns=Limits().ceiling)
        tools = self._choose_tools(file, options)
        return Agent(
            file.model or options.model,
            tools=tools,
            instructions=(options.instructions if is_plain_default else "") or file.instructions,
            name=file.name,
            limits=narrow_limits(file, limits),
            grant=narrow_grant(file, options.grant, [tool.name for tool in tools]),
            sampling=Sampling(temperature=file.temperature) if file.temperature is not None else Sampling(),
            gate=options.gate,
            middleware=options.middleware,
            knowledge=self.knowledge,
            secrets=options.secrets,
        )

    def build_all_agents(self, options: AgentOptions | None = None) -> list[Agent]:
        """Build every agent, for a runtime in which each can help the others."""
        return [self.build_agent(name, options) for name in self.agents]

    def _choose_tools(self, file: AgentFile, options: AgentOptions) -> list[Tool]:
        from treadle.tools.delegate import build_delegate_tool
        from treadle.tools.remember import MEMORY_TOOLS
        from treadle.tools.use_skill import build_skill_tool

        given = [tool if isinstance(tool, Tool) else build_tool(tool) for tool in options.tools]
        others = {agent.name: agent.description for agent in self.agents.values()}
        own = [
            *MEMORY_TOOLS,
            build_skill_tool(self.knowledge),
            build_delegate_tool(others, worktree_folder=options.worktree_folder),
        ]
        names = {tool.name for tool in given}
        tools = [*given, *(tool for tool in own if tool.name not in names)]
        wanted = file.tools if file.tools is not None else ("*",)
        unwanted = WEB_TOOLS if file.web is False else ()
        return [tool for tool in tools if _covers_name(wanted, tool.name) and not _covers_name(unwanted, tool.name)]


def _covers_name(patterns: Sequence[str], name: str) -> bool:
    return any(covers_call(pattern, name, {}) for pattern in patterns)


def narrow_limits(file: AgentFile, given: Limits) -> Limits:
    """Narrow the operator's limits by the agent's file. Only a file of the user may allow more turns."""
    turns = given.turns if file.steps is None else min(file.steps, given.ceiling)
    calls = given.calls if file.max_calls is None else file.max_calls
    if file.origin == "workspace":
        turns, calls = min(turns, given.turns), min(calls, given.calls)
    return replace(given, turns=turns, calls=calls)


def narrow_grant(file: AgentFile, given: Grant, tools: Sequence[str]) -> Grant:
    """Narrow the operator's grant by the agent's posture and tools. A file of a workspace never widens it.

    Only the user's own files can make an agent trusting.
    """
    if file.tools is not None:
        given = replace(given, tools=tuple(name for name in tools if _covers_name(given.tools, name)))
    if file.web is False:
        given = replace(given, forbid=(*given.forbid, *WEB_TOOLS))
    if file.posture == "trusting" and file.origin != "user":
        return given
    return apply_posture(given, file.posture)


class BuiltAgents(Struct, frozen=True):
    """The agents of a workspace and its user, built with these settings, and the problems in their files."""

    agents: dict[str, Agent]
    knowledge: WorkspaceKnowledge
    problems: tuple[str, ...] = ()
    without_model: dict[str, Agent] = {}


def build_agents(
    settings: Settings, model: str | Model, more: Sequence[Tool] = (), keyring: Keyring | None = None
) -> BuiltAgents:
    """Build every agent with the model from `choose_model`. `more` are tools besides the ready-made ones."""
    from treadle.app.command_hooks import build_command_hooks
    from treadle.sandbox.registries import expand_hosts
    from treadle.tools.builtin import build_default_tools
    from treadle.tools.shell import Shell

    instructions = settings.system_prompt
    if instructions.startswith("@"):
        file = Path(instructions[1:]).expanduser()
        try:
            instructions = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise BadInput(f"system_prompt: {file} cannot be read: {why}") from None
    knowledge = WorkspaceKnowledge(settings.folder, config_folder())
    web = settings.web and (settings.web_proxy or True)
    own = settings.sandbox.registries
    network = expand_hosts(settings.network, own)
    tools = build_default_tools(web=web, network=network, kept=data_folder() / "kept")
    for tool in tools:
        if isinstance(tool, Shell):
            tool.readable_folders = (config_folder() / "skills",)  # skills come with scripts
            tool.own_registries = own
            tool.shown_folders, tool.writable_folders = resolve_sandbox_folders(settings)
    hooks, hook_note = build_command_hooks(settings, keyring)
    options = AgentOptions(
        model=model,
        tools=[*tools, *more],
        grant=build_grant(settings),
        limits=settings.build_limits(),
        file_limits=settings.build_limits(settings.turn_ceiling),
        instructions=instructions,
        secrets=keyring if keyring is not None else (),
        worktree_folder=settings.worktree_parent,
        middleware=hooks,
    )
    agents: dict[str, Agent] = {}
    without_model: dict[str, Agent] = {}
    problems = [*filter(None, [hook_note]), *map(str, knowledge.problems)]
    for agent in knowledge.build_all_agents(options):
        wanted = knowledge.agents[agent.name].tools
        if wanted and not agent.toolbox:
            problems.append(f"agent {agent.name} has no tools: no tool here is named {', '.join(map(repr, wanted))}")
        try:
            agent.resolve_model()
        except BadInput as error:  # an agent whose model has no key must not stop the others
            problems.append(f"agent {agent.name} is not available: {error}")
            without_model[agent.name] = agent
        else:
            agents[agent.name] = agent
    return BuiltAgents(agents, knowledge, tuple(problems), without_model)


def resolve_sandbox_folders(settings: Settings) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return the real paths of the folders that commands may read and change; raises `BadInput` for a bad one."""
    from treadle.sandbox.extra_folders import resolve_extra_folder

    folders = settings.sandbox
    try:
        writable = [resolve_extra_folder(name, settings.folder, is_writable=True) for name in folders.writable]
        shown = [resolve_extra_folder(name, settings.folder, is_writable=False) for name in folders.read_only]
    except BadInput as error:
        raise BadInput(f"[sandbox] in the configuration: {error}") from None
    return tuple(one for one in dict.fromkeys(shown) if one not in writable), tuple(dict.fromkeys(writable))


def build_grant(settings: Settings) -> Grant:
    """Build the grant from these settings. A runtime adds the rules that the user saved."""
    flow = settings.approve_flow
    return Grant(
        tier=settings.access,
        approve=settings.approve,
        always=settings.always,
        ask=settings.ask,
        forbid=settings.forbid,
        yes=settings.yes,
        approve_flow=flow if isinstance(flow, tuple) else ("*",) if flow else (),
    )
