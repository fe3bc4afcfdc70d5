"""Write the TypeScript types of the events and of the HTTP interface: web/src/generated/{events,api}.ts.

Run it after a change of an event or of a route: `make types`. With `--check` it writes nothing, and fails if a file is
not what it would write.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from treadle import Agent, Runtime
from treadle.export.event_schema import render_schema
from treadle.server.app import create_app
from treadle.server.config import ServerConfig
from treadle.testing import ScriptedModel

FOLDER = Path(__file__).resolve().parent.parent / "web" / "src" / "generated"
HEADER = "/** Written by scripts/write_web_types.py from {source}. Do not edit: run `make types`. */\n"
ALIASES = {"Access": ("SessionConfigured", "access"), "CallStatusFact": ("CallFinished", "status")}
"""Names for the types of fields, which the page uses by themselves."""
UNUSED_AREAS = re.compile("^(Chat|Completion|Embedding|OpenAi|Anthropic|Response|Conversation)")
_PLAIN_TYPES = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
_IDENTIFIER = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def render_type(schema: Any) -> str:
    """Render one JSON schema as a TypeScript type."""
    if not isinstance(schema, dict):  # `true` or `false`: a tuple of fixed length has no further items
        return "unknown"
    if "$ref" in schema:
        return name_type(schema["$ref"])
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " | ".join(dict.fromkeys(render_type(option) for option in schema[key]))
    match schema.get("type"):
        case "array" if "prefixItems" in schema:
            return "[" + ", ".join(map(render_type, schema["prefixItems"])) + "]"
        case "array":
            item = render_type(schema.get("items", {}))
            return f"({item})[]" if " | " in item else f"{item}[]"
        case "object" | None if "properties" in schema:
            return "{ " + " ".join(line.strip() for line in render_fields(schema, is_sent=False)) + " }"
        case "object":
            values = schema.get("additionalProperties")
            return f"Record<string, {render_type(values) if isinstance(values, dict) and values else 'unknown'}>"
        case None:
            return "unknown"
        case plain:
            return _PLAIN_TYPES[plain]


def name_type(reference: str) -> str:
    """The name of the type that a reference means."""
    return reference.rsplit("/", 1)[-1].replace("-", "")


def render_fields(schema: dict[str, Any], *, is_sent: bool, present: tuple[str, ...] = ()) -> Iterator[str]:
    """Render the fields of an object. `is_sent`: the server sends it, with every field, also those with a default."""
    required = {*schema.get("required", ()), *present}
    for name, field in schema["properties"].items():
        mark = "" if is_sent or name in required else "?"
        key = name if _IDENTIFIER.fullmatch(name) else json.dumps(name)
        yield f"  {key}{mark}: {render_type(field)};"


def render_interface(name: str, schema: dict[str, Any], *, is_sent: bool, present: tuple[str, ...] = ()) -> str:
    """Render a named schema, with its description."""
    about = schema.get("description", "").replace("*/", "* /")
    comment = "/** " + "\n * ".join(about.splitlines()) + " */\n" if about else ""
    if "properties" not in schema:
        return f"{comment}export type {name} = {render_type(schema)};\n"
    lines = "\n".join(render_fields(schema, is_sent=is_sent, present=present))
    return f"{comment}export interface {name} {{\n{lines}\n}}\n"


def render_events() -> str:
    """Render the types of all events. A fact in a log always has its position and its time."""
    schema = json.loads(render_schema())
    definitions: dict[str, Any] = schema["$defs"]
    kinds = [name_type(option["$ref"]) for option in schema["anyOf"]]
    facts = [name for name in kinds if "seq" in definitions[name]["properties"]]
    deltas = [name for name in kinds if name not in facts]
    parts = [HEADER.format(source="docs/events.schema.json")]
    for name, definition in definitions.items():
        present = ("seq", "at") if name in facts else ()
        parts.append(render_interface(name, definition, is_sent=False, present=present))
    parts.append("export type Part = TextPart | ImagePart | FilePart;\n")
    parts += [f'export type {name} = NonNullable<{owner}["{field}"]>;\n' for name, (owner, field) in ALIASES.items()]
    parts += [f"export type {name} =\n  | " + "\n  | ".join(names) + ";\n" for name, names in _unions(facts, deltas)]
    parts.append(render_default_limits(definitions["Limits"]))
    return "\n".join(parts)


def render_default_limits(limits: dict[str, Any]) -> str:
    """Render the limits of a run that names none: facts leave out what is a default."""
    values = {name: field["default"] for name, field in limits["properties"].items()}
    return f"export const DEFAULT_LIMITS: Required<Limits> = {json.dumps(values, indent=2)};\n"


def _unions(facts: list[str], deltas: list[str]) -> list[tuple[str, list[str]]]:
    return [("AnyFact", facts), ("AnyDelta", deltas), ("AnyEvent", ["AnyFact", "AnyDelta"])]


def render_api() -> str:
    """Render the types of the bodies of `/v1` routes that the page uses."""
    app = create_app(Runtime(":memory:", [Agent(ScriptedModel("hello"))]), ServerConfig(open_to_everyone=True))
    document = app.openapi()
    schemas: dict[str, Any] = document["components"]["schemas"]
    sent, received = set[str](), set[str]()
    for path, methods in document["paths"].items():
        if path.startswith("/v1/") or path in ("/health", "/login", "/logout"):
            for operation in methods.values():
                received |= find_names(operation.get("requestBody", {}), schemas)
                sent |= find_names(operation.get("responses", {}), schemas)
    names = sorted(name for name in sent | received if not UNUSED_AREAS.match(name))
    parts = [HEADER.format(source="the OpenAPI document")]
    parts += [render_interface(name_type(name), schemas[name], is_sent=name not in received) for name in names]
    return "\n".join(parts)


def find_names(node: Any, schemas: dict[str, Any]) -> set[str]:
    """Find the names of all schemas that a part of the document refers to, also through others."""
    found, waiting = set[str](), [node]
    while waiting:
        match waiting.pop():
            case {"$ref": str(reference)} if (name := reference.rsplit("/", 1)[1]) not in found:
                found.add(name)
                waiting.append(schemas[name])
            case dict() as mapping:
                waiting += [value for key, value in mapping.items() if key != "discriminator"]
            case list() as items:
                waiting += items
            case _:
                pass
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is stale")
    is_check = parser.parse_args().check
    stale: list[str] = []
    for name, text in (("events.ts", render_events()), ("api.ts", render_api())):
        path = FOLDER / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not is_check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if is_check and stale:
        print(f"stale: {', '.join(stale)} in {FOLDER}; run `make types`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
