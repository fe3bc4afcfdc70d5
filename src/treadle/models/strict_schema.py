"""JSON schemas as providers accept them: checks whether one is strict, and narrows one until it is. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from treadle.messages import Json

_KEPT_KEYWORDS = ("type", "title", "description", "enum", "const", "default", "required", "$ref")
_KEPT_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"))


def is_strict(schema: Mapping[str, Any]) -> bool:
    """Whether every object in a schema names all its properties, requires them, and allows no others."""
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties")
        if schema.get("additionalProperties") is not False or not isinstance(properties, Mapping):
            return False
        if set(cast("Mapping[str, Any]", properties)) != set(schema.get("required", ())):
            return False
    inner: list[Any] = [schema.get("items")]
    for name in ("properties", "$defs", "definitions"):
        inner += cast("Mapping[str, Any]", schema.get(name) or {}).values()
    for name in ("anyOf", "oneOf", "allOf"):
        inner += cast("Sequence[Any]", schema.get(name) or ())
    return all(is_strict(cast("Mapping[str, Any]", each)) for each in inner if isinstance(each, Mapping))


def describe_output(schema: Mapping[str, Any], strict: bool | None) -> dict[str, Json]:
    """Describe the wanted output in OpenAI's form. Without `strict` it depends on the schema."""
    return {"name": "answer", "schema": schema, "strict": is_strict(schema) if strict is None else strict}


def narrow_schema(schema: Mapping[str, Any]) -> dict[str, Json]:
    """The schema without keywords that a constrained decoder cannot guarantee. The description names those."""
    out: dict[str, Json] = {name: schema[name] for name in _KEPT_KEYWORDS if name in schema}
    dropped: list[str] = []
    for name, value in schema.items():
        match name:
            case "properties" | "$defs" | "definitions":
                out[name] = {key: narrow_schema(inner) for key, inner in value.items()}
            case "anyOf" | "oneOf" | "allOf":
                out["allOf" if name == "allOf" else "anyOf"] = [narrow_schema(inner) for inner in value]
            case "items" if isinstance(value, Mapping):
                out[name] = narrow_schema(cast("Mapping[str, Any]", value))
            case "format" if value in _KEPT_FORMATS:
                out[name] = value
            case "additionalProperties":
                pass
            case _:
                if name not in _KEPT_KEYWORDS:
                    dropped.append(f"{name}: {value}")
    if out.get("type") == "object" or "properties" in out:
        out["additionalProperties"] = False
    if dropped:
        out["description"] = f"{out.get('description', '')} ({', '.join(dropped)})".strip()
    return out
