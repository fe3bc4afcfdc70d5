"""Two `treadle serve` with tokens of their own on one database: tokens, logins and wrong tokens count on both."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import aiohttp
import psycopg
import pytest

from tests.kit.postgres import PostgresServer, needs_postgres
from tests.kit.processes import wait_until
from tests.kit.serve_process import ServeProcess, start_process, write_tokens
from tests.kit.server import Client
from tests.kit.sessions import PATIENCE
from treadle.server.logins import COOKIE_NAME

pytestmark = needs_postgres

QUICK = (
    *(sys.executable, "-c"),
    "import sys; from treadle.cli.main import main; from treadle.server import shared_tokens, token_file; "
    "token_file.REFRESH_SECONDS = shared_tokens.RECENT_SECONDS = 0.5; shared_tokens.VALID_SECONDS = 3.0; "
    "sys.exit(main())",
)
"""treadle, whose nodes tell each other of their tokens twenty times as often."""
FIRST = {"name": "first", "value": "secret-of-the-first-node"}
READER = {"name": "reader", "value": "reader-of-the-first-node", "rights": ["view"]}
SECOND = {"name": "second", "value": "secret-of-the-second-node"}


def start_node(home: Path, url: str) -> AbstractAsyncContextManager[ServeProcess]:
    return start_process(home, None, "--store", url, program=QUICK)


@asynccontextmanager
async def start_pair(tmp_path: Path, url: str) -> AsyncIterator[tuple[ServeProcess, ServeProcess]]:
    """A node with two tokens, and one with another token."""
    write_tokens(tmp_path / "one", FIRST, READER)
    write_tokens(tmp_path / "two", SECOND)
    async with start_node(tmp_path / "one", url) as one, start_node(tmp_path / "two", url) as two:
        await wait_for_status(two, str(READER["value"]), 200)
        yield one, two


async def ask(node: ServeProcess, token: str) -> tuple[int, dict[str, object]]:
    async with Client(node.address, token) as client, client.request("GET", "/v1/me") as answer:
        return answer.status, await answer.json()


async def wait_for_status(node: ServeProcess, token: str, status: int) -> None:
    """Wait until a node answers so. Refused tokens are no reason to wait for a minute."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if (await ask(node, token))[0] == status:
                return
            await asyncio.sleep(0.3)


async def test_a_token_has_its_rights_on_every_node_and_the_store_has_no_value(
    tmp_path: Path, postgres_url: str, postgres_server: PostgresServer
) -> None:
    async with start_pair(tmp_path, postgres_url) as (one, two):
        assert (await ask(two, str(FIRST["value"])))[1]["rights"] == ["view", "send", "approve"]
        assert (await ask(one, str(SECOND["value"])))[1]["name"] == "second"
        async with Client(two.address, str(READER["value"])) as reader:
            listed = await reader.json("GET", "/v1/tokens")
            assert [(one["name"], one["current"]) for one in listed] == [("second", False), ("reader", True)]
            await reader.problem("POST", "/v1/sessions", {}, 403)
            assert await reader.json("GET", "/v1/sessions")
        with psycopg.connect(postgres_url) as connection:
            rows = connection.execute("SELECT key, convert_from(value, 'UTF8') FROM treadle.shared_values").fetchall()
        assert "reader" in str(rows)
        for token in (FIRST, READER, SECOND):
            assert str(token["value"]) not in str(rows) + one.read_log() + two.read_log() + postgres_server.read_log()


async def test_a_browser_logs_in_by_a_link_of_another_node_and_stays_logged_in_on_all(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        start_pair(tmp_path, postgres_url) as (one, two),
        Client(one.address, str(READER["value"])) as reader,
        aiohttp.ClientSession() as browser,
    ):
        link = (await reader.json("POST", "/v1/tickets", status=201))["path"]
        async with browser.get(two.address + link, allow_redirects=False) as answer:
            assert answer.status == 303
            cookie = answer.cookies[COOKIE_NAME].value
        async with browser.get(one.address + link, allow_redirects=False) as answer:
            assert answer.status == 403
        headers = {"cookie": f"{COOKIE_NAME}={cookie}"}
        async with aiohttp.ClientSession(headers=headers) as logged_in:
            for node in (one, two):
                async with logged_in.get(f"{node.address}/v1/me") as answer:
                    assert (answer.status, (await answer.json())["name"]) == (200, "reader")
        with psycopg.connect(postgres_url) as connection:
            rows = connection.execute("SELECT key, value FROM treadle.shared_values").fetchall()
        assert cookie not in str(rows)
        body = {"token": READER["value"]}
        async with browser.post(f"{two.address}/login", json=body) as answer:
            assert answer.status == 204


async def test_wrong_tokens_add_up_over_the_nodes(tmp_path: Path, postgres_url: str) -> None:
    async with start_pair(tmp_path, postgres_url) as (one, two):
        statuses = [(await ask((one, two)[number % 2], f"wrong-{number}"))[0] for number in range(24)]
        assert statuses[:18] == [401] * 18 and statuses[-2:] == [429] * 2, statuses
        assert (await ask(one, str(FIRST["value"])))[0] == 200


@pytest.mark.parametrize("how", ["edited", "restarted", "killed"])
async def test_a_removed_token_stops_to_work_on_every_node(tmp_path: Path, postgres_url: str, how: str) -> None:
    async with start_pair(tmp_path, postgres_url) as (one, two):
        reader = str(READER["value"])
        if how == "killed":
            one.process.kill()
            await one.process.wait()
            await wait_for_status(two, reader, 401)
            return
        file = one.home / "tokens.json"
        if how == "edited":
            file.write_text("not a list of tokens")
            await asyncio.to_thread(wait_until, lambda: "stay as they were" in one.read_log())
            assert (await ask(one, reader))[0] == 200
            file.write_text(json.dumps([FIRST]))
            await wait_for_status(one, reader, 401)
            await wait_for_status(two, reader, 401)
            assert (await ask(two, str(FIRST["value"])))[0] == 200
            return
        one.process.terminate()
        await one.process.wait()
        file.write_text(json.dumps([FIRST]))
        async with start_node(one.home, postgres_url) as again:
            await wait_for_status(two, reader, 401)
            assert (await ask(again, reader))[0] == 401
