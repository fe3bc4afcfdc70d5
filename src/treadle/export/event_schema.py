"""The JSON schema of all events, for programs that read them in another language."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import msgspec

from treadle.events import Event


def render_schema() -> str:
    """Render the JSON schema of all events, for docs/events.schema.json."""
    kinds: Iterable[Any] = Event.__args__
    (schema,), components = msgspec.json.schema_components([Event], ref_template="#/$defs/{name}")
    for component in components.values():  # a docstring's indentation depends on the version of Python
        if "description" in component:
            component["description"] = inspect.cleandoc(component["description"])
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"treadle events ({len(tuple(kinds))} kinds)",
        **schema,
        "$defs": dict(sorted(components.items())),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
