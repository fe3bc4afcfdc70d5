"""A tool of an MCP server as one of ours. It is named `server__tool` and never safer than `caution`."""

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
_INVISIBLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)
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
        self._listed = listed
        self._safety: Safety = "destructive"
        hints = listed.annotations
        if connection.server.safety != "annotated":
            self._safety = connection.server.safety
        elif hints is not None and not hints.destructive_hint:  # a server is believed only when it warns
            is_harmless = hints.destructive_hint is False or hints.read_only_hint is True
            self._safety = "caution" if is_harmless else "destructive"
        schema = {**_remove_invisible(listed.input_schema), "type": "object"}
        schema.setdefault("properties", {})
        description = _remove_invisible(listed.description or listed.title or listed.name.replace("_", " ")).strip()
        self.spec = ToolSpec(
            name=build_tool_name(connection.server.name, listed.name),
            description=description[:MAX_DESCRIPTION_CHARACTERS],
            parameters=schema,
        )

    @property
    def version(self) -> str:
        return compute_version(self._listed)

    def assess_safety(self, arguments: Mapping[str, Json]) -> Safety:
        return self._safety

    def assess(self, parsed: ParsedArguments, workspace: Path, tier: Tier = "sandbox") -> Assessment:
        if self._listed.name in self._connection.changed:
            why = "its server says something else of it than at first"
            return Assessment("destructive", why, asks_each_time=True)
        return Assessment(self._safety)

    def list_traits(self, tier: Tier) -> frozenset[Trait]:
        """Others write what a server returns, and it can send data on. With credentials it acts as the user."""
        has_credentials = bool(self._connection.server.find_secrets())
        return frozenset(("untrusted", "way_out", "private") if has_credentials else ("untrusted", "way_out"))

    def parse(self, arguments: str) -> ParsedArguments:
        """Check what every server needs: an object with the required arguments, of the right types."""
        try:
            decoded: Json = msgspec.json.decode(arguments or "{}")
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise ToolInputError(
                f"The arguments of {self.name} are not valid JSON ({error}). Send them again."
            ) from None
        schema, problems = self.spec.parameters, list[str]()
        known: dict[str, Json] = schema["properties"]
        if isinstance(decoded, dict):
            given = cast("dict[str, Json]", decoded)
            problems += [f"{name}: is missing" for name in schema.get("required", ()) if name not in given]
            for name, value in given.items():
                if name in known and not _has_type(known[name], value):
                    shown = msgspec.json.encode(value).decode()[:80]
                    problems.append(f"{name}: must be {known[name]['type']}, not {shown}")
                elif name not in known and schema.get("additionalProperties") is False:
                    problems.append(f"{name}: is not known")
        else:
            given = {}
            problems.append("they must be a JSON object")
        if problems:
            raise ToolInputError(
                f"The arguments of {self.name} do not fit: {'; '.join(problems[:5])}. "
                f"Its parameters: {', '.join(known) or 'none'}."
            )
        return ParsedArguments(given, given)

    async def run(self, parsed: ParsedArguments, context: ToolContext) -> object:
        answer = await self._connection.call(self._listed.name, parsed.arguments, context.progress)
        result = convert_result(answer)
        return replace(result, text=self._connection.redact_text(result.text))


def build_tool_name(server: str, tool: str) -> str:
    """Build `server__tool` from characters that every provider allows. A name that must be changed gets a digest."""
    wanted = f"{server}__{tool}"
    name = re.sub(r"[^A-Za-z0-9_-]", "_", wanted)
    if name == wanted and len(name) <= MAX_NAME_CHARACTERS:
        return name
    digest = hashlib.sha256(wanted.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{name[: MAX_NAME_CHARACTERS - 9]}_{digest}"


def _remove_invisible(value: Json) -> Json:
    """Remove characters that the model would read and a person would not see."""
    if isinstance(value, str):
        return _INVISIBLE.sub("", value)
    if isinstance(value, list):
        return [_remove_invisible(one) for one in cast("list[Json]", value)]
    if isinstance(value, dict):
        return {name: _remove_invisible(one) for name, one in cast("dict[str, Json]", value).items()}
    return value


def _has_type(schema: Json, value: Json) -> bool:
    kind = cast("dict[str, Json]", schema).get("type") if isinstance(schema, dict) else None
    if not isinstance(kind, str) or kind not in _TYPES:
        return True
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind])
