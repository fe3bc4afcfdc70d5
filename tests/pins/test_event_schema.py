"""The published schema of the events. `make schema` rewrites the file in docs."""

import json
from pathlib import Path

from tests.pins.conftest import check_json_snapshot, generate_event_schema, hide_prose

PUBLISHED = Path(__file__).parents[2] / "docs" / "events.schema.json"


def test_the_published_event_schema_is_what_the_code_generates() -> None:
    assert generate_event_schema() == PUBLISHED.read_text("utf-8")


def test_the_event_schema_is_kept_whatever_its_descriptions_say() -> None:
    check_json_snapshot("event_schema.json", hide_prose(json.loads(PUBLISHED.read_text("utf-8"))))
