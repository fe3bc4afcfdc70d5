"""A tool of an MCP server as one of ours. It is named `server__tool` and never safer than `caution`.

Nothing in an answer of the server is trusted.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
from msgspec.structs import replace

from treadle.events import Safety, Tier
from treadle.messages import FilePart, ImagePart, Json, Part, ToolSpec
from treadle.permissions.data_flow import Trait
from treadle.permissions.policy import Assessment
from treadle.tools.base import ParsedArguments, Tool, ToolContext, ToolInputError, ToolResult
from treadle.tools.mcp.connection import Connection, compute_version

if TYPE_CHECKING:
    from mcp.types import CallToolResult
    from mcp.types import Tool as ListedTool

MAX_NAME_CHARACTERS = 64
MAX_DESCRIPTION_CHARACTERS = 2000
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The images that providers take. Any other image becomes a file, so that it cannot spoil the next request."""

MAX_PART_BYTES = 5 * 1024 * 1024
MAX_PARTS = 20
_INVISIBLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)
_JSON_TYPES: dict[type, tuple[str, ...]] = {
    str: ("string",),
    int: ("integer", "number"),
    float: ("number",),
    bool: ("boolean",),
    list: ("array",),
    dict: ("object",),
    type(None): ("null",),
}
_KNOWN_TYPES = [name for names in _JSON_TYPES.values() for name in names]


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
        elif connection.server.trusted and hints is not None and not hints.destructive_hint:
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
    def party(self) -> str:
        return self._connection.server.name

    @property
    def version(self) -> str:
        """What the server says of the tool now. The model may still see what it said at first."""
        return self._connection.versions.get(self._listed.name) or compute_version(self._listed)

    def assess_safety(self, arguments: Mapping[str, Json]) -> Safety:
        return self._safety

    def assess(self, parsed: ParsedArguments, workspace: Path, tier: Tier = "sandbox") -> Assessment:
        if self._listed.name in self._connection.changed:
            why = "it is new, or its server says something else of it than before"
            return Assessment("destructive", why, is_changed=True)
        return Assessment(self._safety)

    def describe_sandbox(self, tier: Tier) -> str:
        return self._connection.sandbox

    def list_traits(self, tier: Tier) -> frozenset[Trait]:
        """Others write what a server returns. What else it can do follows from its configuration."""
        server, traits = self._connection.server, set[Trait](("untrusted",))
        if server.url or server.hosts or not server.sandbox:
            traits.add("way_out")
        if server.find_secrets() or server.cwd or server.folders:  # with credentials it acts as the user
            traits.add("private")
        if server.writable:
            traits.add("lasting")
        return frozenset(traits)

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
                if name not in known and schema.get("additionalProperties") is False:
                    problems.append(f"{name}: is not known")
                wanted = known[name].get("type") if name in known and isinstance(known[name], dict) else None
                is_whole = isinstance(value, float) and value.is_integer()
                types = (*_JSON_TYPES[type(value)], *(("integer",) if is_whole else ()))
                if wanted in _KNOWN_TYPES and wanted not in types:
                    problems.append(f"{name}: must be {wanted}, not {msgspec.json.encode(value).decode()[:80]}")
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
        self._connection.accept(self._listed.name)  # a changed tool runs only when that was allowed
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


def convert_result(answer: CallToolResult) -> ToolResult:
    """Join the texts and convert images and files to parts. Structured content is JSON when no text says the same."""
    texts: list[str] = []
    parts: list[Part] = []
    for block in answer.content:
        match block.type:
            case "text":
                converted = block.text
            case "image" | "audio":
                converted = _convert_data(block.type, block.data, block.mime_type)
            case "resource_link":
                converted = f"[{block.title or block.name}: {block.uri}]"
            case "resource":
                resource = block.resource
                name = str(resource.uri).rstrip("/").rpartition("/")[2] or "resource"
                media_type = resource.mime_type or "application/octet-stream"
                if hasattr(resource, "text"):
                    converted = f"[{resource.uri}]\n{getattr(resource, 'text', '')}"
                else:
                    converted = _convert_data(name, getattr(resource, "blob", ""), media_type)
        if isinstance(converted, str):
            texts.append(converted)
        elif len(parts) < MAX_PARTS:
            parts.append(converted)
        else:
            texts.append("[a part was left out: there are too many]")
    if answer.structured_content is not None and not any(block.type == "text" for block in answer.content):
        texts.append(msgspec.json.encode(answer.structured_content).decode())
    return ToolResult("\n".join(texts), tuple(parts), ok=not answer.is_error)


def _convert_data(name: str, data: str, media_type: str) -> str | Part:
    media_type = media_type.lower().partition(";")[0].strip()
    if len(data) > MAX_PART_BYTES * 4 // 3:
        return f"[{name}, {media_type}: left out, it is larger than {MAX_PART_BYTES // 1024**2} MB]"
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return f"[{name}, {media_type}: left out, it cannot be read]"
    clean = base64.b64encode(raw).decode()
    return ImagePart(clean, media_type) if media_type in IMAGE_TYPES else FilePart(name, clean, media_type)
