"""`POST /v1/sessions` with an `Idempotency-Key` creates one session, also after a restart and on several nodes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.kit.postgres import needs_postgres
from tests.kit.serve_process import start_nodes
from tests.kit.server import OWNER, Client, create_token, serve_script
from treadle.server.keyed_requests import REQUEST_NOTE

KEY = {"idempotency-key": "order 7"}
BODY = {"name": "keyed", "limits": {"turns": 3}}


async def create(client: Client, body: Any = None, status: int = 201, **headers: str) -> Any:
    return await client.json("POST", "/v1/sessions", body or BODY, status, headers=headers or KEY)


@pytest.mark.parametrize("is_stored", [True, False])
async def test_the_same_key_creates_one_session_also_after_a_restart(tmp_path: Path, *, is_stored: bool) -> None:
    store = str(tmp_path / "store.db") if is_stored else ":memory:"
    async with serve_script("one", store=store) as client:
        created = await asyncio.gather(*(create(client) for _ in range(8)))
        (session_id,) = {one["id"] for one in created}
        assert {one["name"] for one in created} == {"keyed"}
        assert (await client.send(session_id, "go"))["reply"] == "one"
        assert (await create(client))["status"] == "answered"
        assert len((await client.json("GET", "/v1/sessions"))["sessions"]) == 1
        names = [fact.get("name") for fact in await client.facts(session_id) if fact["type"] == "custom"]
        assert names == [REQUEST_NOTE]
    if is_stored:
        async with serve_script("two", store=store) as client:
            assert (await create(client))["id"] == session_id
            assert (await client.problem("POST", "/v1/sessions", {}, 409, headers=KEY))["type"] == "key_reused"


async def test_another_body_is_refused_and_another_key_or_token_creates_another_session() -> None:
    other = create_token("other")
    async with serve_script("one", tokens=(OWNER, other)) as client, Client(client.base, other.value) as second:
        first = await create(client)
        problem = await client.problem("POST", "/v1/sessions", {"name": "changed"}, 409, headers=KEY)
        assert (problem["type"], problem["param"]) == ("key_reused", "Idempotency-Key")
        equal = {"limits": {"turns": 3}, "name": "keyed", "model": ""}
        assert (await create(client, equal))["id"] == first["id"]
        ids = {
            first["id"],
            (await create(second))["id"],
            (await create(client, **{"idempotency-key": "order 8"}))["id"],
        }
        ids |= {(await client.json("POST", "/v1/sessions", BODY, 201))["id"] for _ in range(2)}
        assert len(ids) == 5
        await client.json("DELETE", f"/v1/sessions/{first['id']}", status=204)
        assert (await create(client, {"name": "changed"}))["name"] == "changed"
        await client.problem("POST", "/v1/sessions", BODY, 422, headers={"idempotency-key": "x" * 201})


@needs_postgres
async def test_the_same_key_creates_one_session_on_two_nodes_at_once(tmp_path: Path, postgres_url: str) -> None:
    async with (
        start_nodes(tmp_path, None, postgres_url) as (_, (one, two)),
        Client(one.address, one.token) as first,
        Client(two.address, two.token) as second,
    ):
        for number in range(3):
            key = {"idempotency-key": f"order {number}"}
            created = await asyncio.gather(*(create(client, **key) for client in (first, second) * 4))
            assert len({session["id"] for session in created}) == 1
            asked = [
                client.request("POST", "/v1/sessions", json={"name": "x"}, headers=key) for client in (first, second)
            ]
            assert [answer.status for answer in await asyncio.gather(*asked)] == [409, 409]
