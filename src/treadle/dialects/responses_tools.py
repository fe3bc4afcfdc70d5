"""Tools of Responses requests as plain functions for a provider, and calls of these functions as the client's calls.

A namespace becomes functions with longer names. A custom tool becomes a function with one text argument. Tools of
other kinds would run at OpenAI: they are left out and named.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

import msgspec
from msgspec import Struct

from treadle.dialects.request_content import ToolChoice, get_object, get_text
from treadle.errors import BadInput
from treadle.messages import Json, ToolSpec

MAX_NAME_LENGTH = 64
_NO_PARAMETERS: dict[str, Json] = {"type": "object", "properties": {}}


class NamedTool(Struct, frozen=True):
    """A function, or a custom tool, which takes text in a `format`."""

    type: str = "function"
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Json] | None = None
    strict: bool | None = None
    format: dict[str, Json] | None = None


class ResponsesTool(NamedTool, frozen=True):
    """A tool of a request. A namespace has `tools`."""

    tools: list[NamedTool] | None = None


class ClientTool(NamedTuple):
    """How the client knows a tool."""

    name: str
    namespace: str = ""
    is_custom: bool = False


class ToolTable:
    """The tools that a provider is offered, and how the client knows them."""

    def __init__(self, tools: Iterable[ResponsesTool] = ()) -> None:
        self._specs: dict[str, ToolSpec] = {}
        self._clients: dict[str, ClientTool] = {}
        self._flat_names: dict[tuple[str, str], str] = {}
        self.ignored: list[str] = []
        """The kinds of the tools that are left out."""
        for tool in tools:
            if tool.type == "namespace":
                for member in tool.tools or ():
                    self._add(member, tool.name or "")
            else:
                self._add(tool, "")

    def _add(self, tool: NamedTool, namespace: str) -> None:
        if tool.type not in ("function", "custom"):
            self.ignored += [tool.type] if tool.type not in self.ignored else []
            return
        if not tool.name:
            raise BadInput(f"tools: a tool of type {tool.type!r} needs a name", param="tools")
        client = ClientTool(tool.name, namespace, tool.type == "custom")
        flat = self.flatten_name(tool.name, namespace)
        known = self._clients.get(flat)
        if known is not None and known[:2] != client[:2]:
            flat = _add_digest(flat, f"{namespace}.{tool.name}")
        self._flat_names[tool.name, namespace] = flat
        self._clients[flat] = client
        if client.is_custom:
            self._specs[flat] = ToolSpec(flat, _describe_input(tool), _INPUT_PARAMETERS)
        else:
            parameters = tool.parameters or _NO_PARAMETERS
            self._specs[flat] = ToolSpec(flat, tool.description or "", parameters, strict=tool.strict)

    def flatten_name(self, name: str, namespace: str) -> str:
        """The name that a provider knows a tool by, also a tool of an earlier request."""
        known = self._flat_names.get((name, namespace))
        if known is not None or not namespace:
            return known or name
        flat = f"{namespace}__{name}"
        return flat if len(flat) <= MAX_NAME_LENGTH else _add_digest(flat, f"{namespace}.{name}")

    def find_client_tool(self, flat_name: str) -> ClientTool:
        """How the client knows a tool that a provider called."""
        return self._clients.get(flat_name) or ClientTool(flat_name)

    def choose(self, choice: str | dict[str, Json] | None) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
        """The tools to offer, and whether the model may or must call them. A choice of some leaves only those."""
        every = tuple(self._specs.values())
        kind = choice.get("type", "function") if isinstance(choice, dict) else ""
        match choice:
            case None | "auto":
                return every, "auto"
            case "none" | "required":
                return every, choice if every else "auto"
            case dict() if kind in ("function", "custom"):
                return self._find_specs([choice]), "required"
            case dict() if kind == "allowed_tools":
                allowed = choice.get("tools")
                listed = cast("list[Json]", allowed) if isinstance(allowed, list) else []
                named = [get_object(one) for one in listed]
                own = [one for one in named if one.get("type", "function") in ("function", "custom")]
                specs = self._find_specs(own)
                return specs, "required" if choice.get("mode") == "required" and specs else "auto"
            case dict():  # a tool that is left out
                return every, "auto"
            case _:
                raise BadInput(f"tool_choice: {choice!r} is not auto, none, required or a tool", param="tool_choice")

    def _find_specs(self, named: Sequence[dict[str, Json]]) -> tuple[ToolSpec, ...]:
        found: dict[str, ToolSpec] = {}
        for one in named:
            name, namespace = get_text(one, "name"), get_text(one, "namespace")
            spec = self._specs.get(self.flatten_name(name, namespace))
            if spec is None:
                raise BadInput(f"tool_choice: there is no tool {name!r} among the tools", param="tool_choice")
            found[spec.name] = spec
        return tuple(found.values())


_INPUT_PARAMETERS: dict[str, Json] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input of the tool, as plain text."}},
    "required": ["input"],
    "additionalProperties": False,
}


def write_custom_input(text: str) -> str:
    """Write the input of a custom tool as the arguments of its function."""
    return msgspec.json.encode({"input": text}).decode()


def read_custom_input(arguments: str) -> str:
    """Read the input of a custom tool from the arguments that a model wrote, which may be invalid."""
    try:
        given = get_object(msgspec.json.decode(arguments)).get("input")
    except (msgspec.DecodeError, RecursionError):
        return arguments
    return given if isinstance(given, str) else arguments


def _describe_input(tool: NamedTool) -> str:
    form = tool.format or {}
    if form.get("type") != "grammar":
        return tool.description or ""
    rule = f"The input must follow this {form.get('syntax', '')} grammar:\n{form.get('definition', '')}"
    return f"{tool.description}\n\n{rule}" if tool.description else rule


def _add_digest(name: str, identity: str) -> str:
    digest = hashlib.blake2b(identity.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{name[: MAX_NAME_LENGTH - 9]}_{digest}"
