"""A tool of an MCP server as a tool of ours: named `server__tool`, and no less dangerous than `caution`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
from msgspec.structs import replace

from treadle.events import Safety, Tier
from treadle.messages import Json, ToolSpec
from treadle.permissions.data_flow import Trait
from treadle.permissions.policy import Assessment
from treadle.tools.base import ParsedArguments, Tool, ToolContext, ToolInputError
from treadle.tools.mcp.connection import Connection, compute_version
from treadle.tools.mcp.mcp_result import convert_result

if TYPE_CHECKING:
    from mcp.types import Tool as ListedTool

MAX_NAME_CHARACTERS = 64
MAX_DESCRIPTION_CHARACTERS = 2000
_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]")
_OPEN: tuple[Trait, ...] = ("untrusted", "way_out")
_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


class McpTool(Tool):
    """One tool of one server."""

    def __init__(self, connection: Connection, listed: ListedTool) -> None:
        self.timeout = connection.server.timeout
        self._connection = connection
        self._listed, self._listed_name = listed, listed.name
        self._safety: Safety = _safety(connection, listed)
        schema = {**_shown(listed.input_schema), "type": "object"}
        schema.setdefault("properties", {})
        said = _shown(listed.description or listed.title or listed.name.replace("_", " ")).strip()
        self.spec = ToolSpec(
            name=build_tool_name(connection.server.name, listed.name),
            description=said[:MAX_DESCRIPTION_CHARACTERS],
            parameters=schema,
        )

    @property
    def version(self) -> str:
        return compute_version(self._listed)

    def assess_safety(self, arguments: Mapping[str, Json]) -> Safety:
        return self._safety

    def assess(self, parsed: ParsedArguments, workspace: Path, tier: Tier = "sandbox") -> Assessment:
        if self._listed_name in self._connection.changed:
            return Assessment("destructive", "its server says something else of it than at first", asks_each_time=True)
        return Assessment(self._safety)

    def list_traits(self, tier: Tier) -> frozenset[Trait]:
        """Others write what a server gives, and it passes on what it is given; with credentials it acts as the user."""
        return frozenset(("untrusted", "way_out", "private") if self._connection.server.find_secrets() else _OPEN)

    def parse(self, arguments: str) -> ParsedArguments:
        """What every server wants: an object, with what is required, of the right types. The rest is its own affair."""
        try:
            given: Json = msgspec.json.decode(arguments or "{}")
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise ToolInputError(
                f"The arguments of {self.name} are not valid JSON ({error}). Send them again."
            ) from None
        problems = _problems(self.spec.parameters, given)
        if problems:
            takes = ", ".join(self.spec.parameters["properties"]) or "none"
            raise ToolInputError(
                f"The arguments of {self.name} do not fit: {'; '.join(problems)}. Its parameters: {takes}."
            )
        return ParsedArguments(given, given)

    async def run(self, parsed: ParsedArguments, context: ToolContext) -> object:
        def progressed(message: str, done: float, total: float | None) -> None:
            context.progress(message, done, total)

        result = convert_result(await self._connection.call(self._listed_name, parsed.arguments, progressed))
        return replace(result, text=self._connection.redact_text(result.text))


def build_tool_name(server: str, tool: str) -> str:
    """`server__tool` in the letters that every provider allows; a name that must be changed gets a mark of its own."""
    wanted = f"{server}__{tool}"
    name = re.sub(r"[^A-Za-z0-9_-]", "_", wanted)
    if name == wanted and len(name) <= MAX_NAME_CHARACTERS:
        return name
    mark = hashlib.sha256(wanted.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{name[: MAX_NAME_CHARACTERS - 9]}_{mark}"


def _shown(value: Json) -> Json:
    """What a server tells a model, without letters that a person would not see."""
    if isinstance(value, str):
        return _HIDDEN.sub("", value)
    if isinstance(value, list):
        return [_shown(one) for one in cast("list[Json]", value)]
    if isinstance(value, dict):
        return {name: _shown(one) for name, one in cast("dict[str, Json]", value).items()}
    return value


def _safety(connection: Connection, listed: ListedTool) -> Safety:
    """What the config says, else what the server says of itself, which can only be believed when it is a warning."""
    if connection.server.safety != "annotated":
        return connection.server.safety
    hints = listed.annotations
    harmless = hints is not None and (hints.destructive_hint is False or hints.read_only_hint is True)
    return "caution" if harmless and not (hints and hints.destructive_hint) else "destructive"


def _problems(schema: Mapping[str, Json], given: Json) -> list[str]:
    if not isinstance(given, dict):
        return ["they must be a JSON object"]
    arguments = cast("dict[str, Json]", given)
    known: dict[str, Json] = schema["properties"]
    problems = [f"{name}: is missing" for name in schema.get("required", ()) if name not in arguments]
    for name, value in arguments.items():
        if name not in known:
            if schema.get("additionalProperties") is False:
                problems.append(f"{name}: is not known")
        elif not _fits(known[name], value):
            problems.append(f"{name}: must be {known[name]['type']}, not {msgspec.json.encode(value).decode()[:80]}")
    return problems[:5]


def _fits(schema: Json, value: Json) -> bool:
    kind = cast("dict[str, Json]", schema).get("type") if isinstance(schema, dict) else None
    if not isinstance(kind, str) or kind not in _TYPES:
        return True
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind])
