"""`search_tools` and `call_tool`: many MCP tools behind two short descriptions.

The descriptions at the start of a prompt stay the same, whatever the model finds later. A call through `call_tool` is
authorized, shown and recorded under the name of the tool that it calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from treadle.events import Safety
from treadle.messages import Json, ToolSpec
from treadle.tools.base import Arguments, ParsedArguments, Tool, ToolContext, ToolError, ToolInputError
from treadle.tools.mcp.connection import McpHealth
from treadle.tools.mcp.mcp_tool import McpTool

Catalog = Callable[[], Mapping[str, McpTool]]

MAX_SHOWN = 8
MAX_RESULT_CHARACTERS = 12_000
_WORD = re.compile(r"[a-z0-9]+")


class _SearchArguments(Arguments):
    query: str = ""


class _CallArguments(Arguments):
    name: str
    arguments: dict[str, Json] | str = msgspec.field(default_factory=dict[str, Json])


class SearchTools(Tool):
    """Finds tools by what they are for."""

    timeout = 30.0

    def __init__(self, servers: Sequence[str], catalog: Catalog, get_health: Callable[[], list[McpHealth]]) -> None:
        self._catalog, self._get_health = catalog, get_health
        self.spec = ToolSpec(
            name="search_tools",
            description=(
                f"Find more tools by what they are for. They belong to: {', '.join(servers)}. The result gives their "
                'names and parameters; run one with call_tool. Example: {"query": "create issue"}. '
                "An empty query lists all names."
            ),
            parameters={
                "type": "object",
                "properties": {"query": {"type": "string", "description": "a few words on what is wanted"}},
                "required": ["query"],
            },
            examples=(("find a tool for calendars", {"query": "calendars"}),),
        )

    def assess_safety(self, arguments: Mapping[str, Json]) -> Safety:
        return "safe"

    def parse(self, arguments: str) -> ParsedArguments:
        return _SearchArguments.decode(self.name, arguments)

    async def run(self, parsed: ParsedArguments, context: ToolContext) -> object:
        tools, query = self._catalog(), parsed.arguments["query"]
        found = rank_tools(query, tools)
        down = [f"{health.server} is down: {health.error}." for health in self._get_health() if health.state == "down"]
        if not found:
            names = list(tools)[:300]
            more = [f"and {len(tools) - len(names)} more"] if len(tools) > len(names) else []
            nothing = "Nothing fits these words. " if query.strip() else ""
            return "\n".join([f"{nothing}The tools are: {', '.join([*names, *more]) or 'none'}.", *down])
        lines, space = list[str](), MAX_RESULT_CHARACTERS
        for tool in found[:MAX_SHOWN]:
            schema = msgspec.json.encode(tool.spec.parameters).decode()
            line = f"{tool.name}: {tool.spec.description[:500]}\n  parameters: {schema}"
            if lines and len(line) > space:
                break
            lines.append(line)
            space -= len(line)
        rest = [tool.name for tool in found[len(lines) :]]
        more = [f"Also: {', '.join(rest[:30])}"] if rest else []
        return "\n".join([*lines, *more, *down, "Run one with call_tool(name, arguments)."])


class CallTool(Tool):
    """Calls the tool that its arguments name."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.spec = ToolSpec(
            name="call_tool",
            description=(
                "Run a tool that search_tools has found. "
                'Example: {"name": "tracker__create_issue", "arguments": {"title": "It is slow"}}.'
            ),
            parameters={
                "type": "object",
                "properties": {
                    "name": {"type": "string", "description": "the tool's name, as it was found"},
                    "arguments": {"type": "object", "description": "what its parameters ask for"},
                },
                "required": ["name", "arguments"],
            },
        )

    def assess_safety(self, arguments: Mapping[str, Json]) -> Safety:
        return "destructive"

    def parse(self, arguments: str) -> ParsedArguments:
        return _CallArguments.decode(self.name, arguments)

    def resolve_call(self, parsed: ParsedArguments, notes: Mapping[str, Json]) -> tuple[Tool, ParsedArguments]:
        name, arguments = parsed.arguments["name"], parsed.arguments["arguments"]
        tool = self._catalog().get(name)
        if tool is None:
            raise ToolInputError(f"There is no tool named {name!r} to call. Find its name with search_tools.")
        return tool, tool.parse_call(
            arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        )

    def find_hidden_tool(self, name: str) -> Tool | None:
        return self._catalog().get(name)

    async def run(self, parsed: ParsedArguments, context: ToolContext) -> object:
        raise ToolError("call_tool is run as the tool that it names, not by itself")


def rank_tools(query: str, tools: Mapping[str, McpTool]) -> list[McpTool]:
    """Return the tools that have any of the words, the best first. A word in the name counts more."""
    words = set(_WORD.findall(query.lower()))
    scores: dict[str, int] = {}
    for name, tool in tools.items():
        in_name, in_text = _WORD.findall(name.lower()), set(_WORD.findall(tool.spec.description.lower()))
        scores[name] = sum(3 * _score_word(word, in_name) + _score_word(word, in_text) for word in words)
    found = [name for name in tools if scores[name] > 0]
    return [tools[name] for name in sorted(found, key=lambda name: (-scores[name], len(name), name))]


def _score_word(word: str, others: Collection[str]) -> int:
    """Return 2 for the word itself, 1 for a word that begins alike (`issue`, `issues`)."""
    if word in others:
        return 2
    return int(
        any(min(len(word), len(other)) > 3 and (word.startswith(other) or other.startswith(word)) for other in others)
    )
