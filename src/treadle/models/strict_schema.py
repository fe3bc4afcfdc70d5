"""JSON schemas as providers take them: whether one can be guaranteed, and one narrowed until it can. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from treadle.messages import Json

_KEPT = ("type", "title", "description", "enum", "const", "default", "required", "$ref")
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"))


def is_strict(schema: Mapping[str, Any]) -> bool:
    """Whether every object in a schema names all its properties, requires them, and allows no others."""
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties")
        if schema.get("additionalProperties") is not False or not isinstance(properties, Mapping):
            return False
        if set(cast("Mapping[str, Any]", properties)) != set(schema.get("required", ())):
            return False
    return all(is_strict(inner) for inner in _inside(schema))


def narrow_schema(schema: Mapping[str, Any]) -> dict[str, Json]:
    """The same schema without what a constrained decoder cannot keep; that is told in the description."""
    out: dict[str, Json] = {name: schema[name] for name in _KEPT if name in schema}
    left: list[str] = []
    for name, value in schema.items():
        match name:
            case "properties" | "$defs" | "definitions":
                out[name] = {key: narrow_schema(inner) for key, inner in value.items()}
            case "anyOf" | "oneOf" | "allOf":
                out["allOf" if name == "allOf" else "anyOf"] = [narrow_schema(inner) for inner in value]
            case "items" if isinstance(value, Mapping):
                out[name] = narrow_schema(cast("Mapping[str, Any]", value))
            case "format" if value in _FORMATS:
                out[name] = value
            case "additionalProperties":
                pass
            case _:
                if name not in _KEPT:
                    left.append(f"{name}: {value}")
    if out.get("type") == "object" or "properties" in out:
        out["additionalProperties"] = False
    if left:
        out["description"] = f"{out.get('description', '')} ({', '.join(left)})".strip()
    return out


def _inside(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The schemas directly within a schema."""
    found: list[Any] = []
    for name in ("properties", "$defs", "definitions"):
        found += cast("Mapping[str, Any]", schema.get(name) or {}).values()
    for name in ("anyOf", "oneOf", "allOf"):
        found += cast("Sequence[Any]", schema.get(name) or ())
    found.append(schema.get("items"))
    return [inner for inner in found if isinstance(inner, Mapping)]
