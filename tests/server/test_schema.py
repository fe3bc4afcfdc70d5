"""The OpenAPI document is true: requests that are generated from it get a documented response, never a 5xx."""

import asyncio
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.kit.server import OWNER, listen
from tests.kit.sessions import PATIENCE, note
from treadle import Agent, Runtime
from treadle.server.app import ServerApp, create_app
from treadle.server.config import ServerConfig
from treadle.testing import ScriptedModel

EXAMPLES = 4
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
ASKING: Any = {"headers": {"authorization": f"Bearer {OWNER.value}"}, "timeout": PATIENCE}
STREAMS = ("stream", "/events", "/api/agent/run", "/continue")


def build_app() -> ServerApp:
    agent = Agent(ScriptedModel(*["hello"] * 100_000, keep=False), tools=[note])
    return create_app(Runtime(":memory:", [agent]), ServerConfig(tokens=(OWNER,), rate=1e6))


def check_operation(base: str, schema: Any, operation: Any) -> None:
    """Send a few requests that the schema allows, and check that the schema describes the responses."""
    query = {"wait": 0.05} if operation.path.endswith("/messages") else None
    making = schema["/v1/sessions"]["POST"].Case(body={}, media_type="application/json")
    session_id = making.call(base, **ASKING).json()["id"]
    asking = schema["/v1/responses"]["POST"].Case(
        body={"model": "scripted", "input": "hi"}, media_type="application/json"
    )
    conversing = schema["/v1/conversations"]["POST"].Case(body={}, media_type="application/json")
    known = {
        "session_id": session_id,
        "response_id": asking.call(base, **ASKING).json()["id"],
        "conversation_id": conversing.call(base, **ASKING).json()["id"],
    }

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def check(case: Any) -> None:
        case.path_parameters = {name: known.get(name, value) for name, value in (case.path_parameters or {}).items()}
        if isinstance(case.body, dict) and isinstance(case.body.get("model"), str) and "unload" not in operation.path:
            case.body["model"] = "scripted"
        case.call_and_validate(base, params=query, checks=CHECKS, **ASKING)

    check()


async def test_whatever_the_schema_allows_gets_a_documented_answer_and_never_a_5xx() -> None:
    app = build_app()
    schema = schemathesis.openapi.from_dict(app.openapi(), config=SchemathesisConfig())
    operations = [result.ok() for result in schema.get_all_operations()]
    finite = [one for one in operations if not any(part in one.path for part in STREAMS)]
    assert len(finite) > 30  # endless answers are tested as streams
    # Given the application itself, schemathesis would let it run in a thread of its own until the process ends.
    async with listen(app) as base:
        for operation in finite:
            await asyncio.to_thread(check_operation, base, schema, operation)


def test_the_schema_names_every_error_the_token_and_the_bodies_that_others_rely_on() -> None:
    schema = build_app().openapi()
    assert schema["components"]["securitySchemes"]["token"] == {"type": "http", "scheme": "bearer"}
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            assert {"400", "401", "403", "404", "413", "429"} <= set(about["responses"]), (method, path)
            assert about["description"], (method, path)
    for path in ("/v1/sessions", "/v1/chat/completions", "/api/agent/run"):
        assert schema["paths"][path]["post"]["requestBody"]
