"""The published schema of the events. The file in docs is its own snapshot: `make schema` rewrites it."""

from pathlib import Path

from tests.pins.conftest import generate_event_schema

PUBLISHED = Path(__file__).parents[2] / "docs" / "events.schema.json"


def test_the_published_event_schema_is_what_the_code_generates() -> None:
    assert generate_event_schema() == PUBLISHED.read_text("utf-8")
