"""What this server allows, without secrets, and the health of its MCP servers."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

from treadle.app.approval_preview import find_reachable_hosts
from treadle.events import Tier
from treadle.permissions.patterns import covers_call
from treadle.permissions.policy import COMMAND_TOOL, WEB_TOOLS
from treadle.server.service import CurrentService, Viewer

router = APIRouter(prefix="/v1", tags=["catalogue"])


class ConfigView(BaseModel):
    """The configuration of the default agent, and what the operator allows.

    `access` is the most that a session may have. `hosts` are those that commands reach without a question; `*` stands
    for all public ones. Every workspace is in one of the `workspaces`.
    """

    provider: str
    model: str
    max_iterations: int
    skill_autogen: bool
    workspaces: list[str]
    access: Tier
    web: bool
    hosts: list[str]


class McpView(BaseModel):
    """An MCP server: `status` is starting, up, restarting, down or closed, and `error` the last one."""

    name: str
    status: str
    error: str
    tools: list[str]


@router.get("/config")
async def get_config(service: CurrentService, token: Viewer) -> ConfigView:
    """Show the configuration, without secrets, and what this server allows."""
    agent = service.default_agent
    name = agent.resolve_model().name
    provider, colon, _ = name.partition(":")
    allowed = [tool for tool in agent.toolbox if not _covers(agent.grant.forbid, tool)]
    return ConfigView(
        provider=provider if colon or name in ("local", "none") else "custom",
        model=name,
        max_iterations=agent.limits.turns,
        skill_autogen=service.config.skill_autogen,
        workspaces=[str(root) for root in service.list_roots()],
        access=agent.grant.tier,
        web=any(_covers(WEB_TOOLS, tool) for tool in allowed),
        hosts=list(find_reachable_hosts(agent.toolbox.get(COMMAND_TOOL)) or ()),
    )


@router.get("/mcp")
async def list_mcp_servers(service: CurrentService, token: Viewer) -> list[McpView]:
    """List the MCP servers, their health and their tools."""
    return [
        McpView(name=one.name, status=one.status, error=one.error, tools=list(one.tools))
        for one in service.config.list_mcp()
    ]


def _covers(patterns: tuple[str, ...], tool: str) -> bool:
    return any(covers_call(pattern, tool, {}) for pattern in patterns)
