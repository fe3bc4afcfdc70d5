"""The agents of a workspace and its user, built from their files and the settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from treadle.app.settings import Settings, config_folder, data_folder
from treadle.errors import BadInput
from treadle.events import Grant
from treadle.secrets.keyring import Keyring

if TYPE_CHECKING:
    from treadle.agent import Agent
    from treadle.app.workspace_knowledge import WorkspaceKnowledge
    from treadle.models.base import Model
    from treadle.tools.base import Tool


class BuiltAgents(Struct, frozen=True):
    """The agents of a workspace and its user, built with these settings, and the problems in their files."""

    agents: dict[str, Agent]
    library: WorkspaceKnowledge
    problems: tuple[str, ...] = ()
    without_model: dict[str, Agent] = {}


def build_agents(
    settings: Settings, model: str | Model, more: Sequence[Tool] = (), keyring: Keyring | None = None
) -> BuiltAgents:
    """Build every agent with the model from `choose_model`. `more` are tools besides the ready-made ones."""
    from treadle.app.workspace_knowledge import AgentOptions, WorkspaceKnowledge
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
    library = WorkspaceKnowledge(settings.folder, config_folder())
    web = settings.web and (settings.web_proxy or True)
    tools = build_default_tools(web=web, network=settings.network, kept=data_folder() / "kept")
    for tool in tools:
        if isinstance(tool, Shell):
            tool.readable_folders = (config_folder() / "skills",)  # skills come with scripts
    options = AgentOptions(
        model=model,
        tools=[*tools, *more],
        grant=build_grant(settings),
        limits=settings.build_limits(),
        instructions=instructions,
        secrets=keyring if keyring is not None else (),
    )
    agents: dict[str, Agent] = {}
    without_model: dict[str, Agent] = {}
    problems = [str(problem) for problem in library.problems]
    for agent in library.build_all_agents(options):
        wanted = library.agents[agent.name].tools
        if wanted and not agent.toolbox:
            problems.append(f"agent {agent.name} has no tools: no tool here is named {', '.join(map(repr, wanted))}")
        try:
            agent.resolve_model()
        except BadInput as error:  # an agent whose model has no key must not stop the others
            problems.append(f"agent {agent.name} is not available: {error}")
            without_model[agent.name] = agent
        else:
            agents[agent.name] = agent
    return BuiltAgents(agents, library, tuple(problems), without_model)


def build_grant(settings: Settings) -> Grant:
    """Build the grant from these settings and the rules that the user saved."""
    from treadle.permissions.saved_rules import apply_rules, load_rules

    grant = Grant(
        tier=settings.access,
        approve=settings.approve,
        always=settings.always,
        ask=settings.ask,
        forbid=settings.forbid,
        yes=settings.yes,
    )
    return apply_rules(grant, load_rules(data_folder(), settings.folder))
