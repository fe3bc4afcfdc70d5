"""The guard against hostile requests: tokens, hosts, origins, sizes, rates and rights."""

import asyncio
import json
import logging
import socket
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from websockets.exceptions import InvalidStatus

from tests.kit.server import OWNER, Client, create_token, serve_script
from tests.kit.sessions import PATIENCE, build_agent
from treadle import Grant, Runtime
from treadle.errors import BadInput
from treadle.log.shared_values import InMemoryValues
from treadle.server.app import create_app
from treadle.server.config import ServerConfig
from treadle.server.guard import Guard, is_too_deep
from treadle.server.login_link import is_loopback
from treadle.server.logins import COOKIE_NAME, Tokens
from treadle.server.serve import DrainingServer, ServeOptions, serve, serve_app
from treadle.server.tokens import Token, load_tokens
from treadle.testing import call


async def fetch_status(client: Client, method: str = "GET", path: str = "/v1/sessions", **options: Any) -> int:
    async with client.request(method, path, allow_redirects=False, **options) as answer:
        await answer.read()
        return answer.status


async def send_raw(client: Client, *lines: str, body: bytes = b"") -> int:
    """Send a request that no proper client would send. Returns its status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(client.base.rpartition(":")[2]))
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
    answer = await asyncio.wait_for(reader.readline(), PATIENCE)
    writer.close()
    return int(answer.split()[1])


async def test_requests_without_the_token_are_refused_and_their_bodies_are_not_read() -> None:
    async with serve_script() as client:
        assert await fetch_status(client) == 200
        async with Client(client.base, "") as anyone:
            for path in ("/v1/sessions", "/metrics", "/openapi.json", "/docs", "/ready", "/v1/config", "/v1/health"):
                async with anyone.request("GET", path) as answer:
                    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer"), path
            assert [await fetch_status(anyone, path=path) for path in ("/health", "/")] == [200, 200]
            for header in ("Bearer wrong", f"Basic {OWNER.value}", OWNER.value, "Bearer", f"Bearer {OWNER.value}x"):
                assert await fetch_status(anyone, headers={"authorization": header}) == 401
            assert await fetch_status(anyone, path=f"/v1/sessions?token={OWNER.value}") == 401
        host = f"Host: {client.base[7:]}"
        for path, status in {"/health": 401, "/": 401, "/login": 413, "/logout": 413}.items():
            assert await send_raw(client, f"POST {path} HTTP/1.1", host, "Content-Length: 8000000") == status


async def test_a_foreign_host_name_is_refused_even_with_the_token() -> None:
    async with serve_script(hosts=("box.example:8420",)) as client:
        port = client.base.rpartition(":")[2]
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", "127.0.0.1:1", f"127.0.0.1.evil:{port}", ""):
            assert await fetch_status(client, headers={"host": host}) == 403, host
        own = [f"{name}:{port}" for name in ("localhost", "127.0.0.1", "[::1]", "LOCALHOST")]
        for host in (*own, "box.example:8420"):
            assert await fetch_status(client, headers={"host": host}) == 200, host
        bearer = f"Authorization: Bearer {OWNER.value}"
        assert await send_raw(client, "GET /v1/sessions HTTP/1.0", bearer) in (400, 403)
        twice = ("GET /v1/sessions HTTP/1.1", f"Host: 127.0.0.1:{port}", "Host: evil.example", bearer)
        assert await send_raw(client, *twice) in (400, 403)


async def test_pages_of_other_origins_are_refused() -> None:
    async with serve_script() as client:
        port = client.base.rpartition(":")[2]
        hostile: list[dict[str, str]] = [
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": f"https://127.0.0.1:{port}"},
            {"origin": f"http://127.0.0.1:{port}.evil.example"},
            {"origin": "http://127.0.0.1:1"},
            {"origin": f"http://localhost:{port}"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {"origin": client.base, "sec-fetch-site": "cross-site"},
        ]
        for headers in hostile:
            assert await fetch_status(client, headers=headers) == 403, headers
            assert await fetch_status(client, "POST", json={}, headers=headers) == 403
            with pytest.raises(InvalidStatus):
                await client.socket("/v1/ws", headers=headers)
        fine: list[dict[str, str]] = [
            {"origin": client.base},
            {"origin": client.base, "sec-fetch-site": "same-origin"},
            {"sec-fetch-site": "none"},
        ]
        for headers in fine:
            assert await fetch_status(client, headers=headers) == 200
        assert (await client.json("GET", "/v1/sessions"))["sessions"] == []


async def test_cors_is_closed_unless_the_operator_opens_it_for_a_page() -> None:
    page = "https://app.example"
    async with serve_script() as client, client.request("OPTIONS", "/v1/sessions", headers={"origin": page}) as answer:
        assert answer.status == 403 and "access-control-allow-origin" not in answer.headers
    async with serve_script(origins=(page,)) as client:
        asked = {"origin": page, "sec-fetch-site": "cross-site", "access-control-request-method": "POST"}
        async with client.request("OPTIONS", "/v1/sessions", headers=asked) as answer:
            assert answer.status == 204 and answer.headers["access-control-allow-origin"] == page
            methods = {method.upper() for path in client.app.openapi()["paths"].values() for method in path}
            assert methods <= set(answer.headers["access-control-allow-methods"].split(", "))
        async with client.request("GET", "/v1/sessions", headers={"origin": page}) as answer:
            assert answer.status == 200 and answer.headers["access-control-allow-origin"] == page
        assert await fetch_status(client, headers={"origin": "https://other.example"}) == 403


async def test_a_body_must_be_json_of_an_allowed_size_and_depth() -> None:
    async with serve_script(body_bytes=10_000) as client:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
            assert await fetch_status(client, "POST", data=b'{"name":"x"}', headers={"content-type": kind}) == 415
        plain = {"content-type": "application/json"}
        assert await fetch_status(client, "POST", data=b" " * 10_001, headers=plain) == 413

        async def pieces() -> Any:
            for _ in range(20):
                yield b" " * 1000

        assert await fetch_status(client, "POST", data=pieces(), headers=plain) == 413
        deep = b'{"name":' + b"[" * 64 + b"]" * 64 + b"}"
        assert await fetch_status(client, "POST", data=deep, headers=plain) == 400
        assert await fetch_status(client, "POST", data=b'{"name":' + b'"' + b"[" * 500 + b'"}', headers=plain) == 422
        hidden = '{"name":"Ģ","x":' + "[" * 90 + "]" * 90 + ',"y":"Ģ"}'  # one byte of Ģ looks like a quote
        assert await fetch_status(client, "POST", data=hidden.encode("utf-16-le"), headers=plain) == 400
        assert await fetch_status(client, "POST", data='{"name":"x"}'.encode("utf-16"), headers=plain) == 400
        assert await fetch_status(client, path="/v1/sessions?q=" + "x" * 9000) == 414
        host, bearer = f"Host: {client.base[7:]}", f"Authorization: Bearer {OWNER.value}"
        size = "Content-Length: 999999999999"
        assert await send_raw(client, "POST /v1/sessions HTTP/1.1", host, bearer, size) == 413


def test_depth_counts_brackets_and_not_those_in_strings() -> None:
    assert is_too_deep(b"[" * 65 + b"]" * 65, 64) and not is_too_deep(b"[" * 64 + b"]" * 64, 64)
    assert not is_too_deep(b'["' + b"[" * 1000 + b'"]', 64)
    assert not is_too_deep(b'["\\"' + b"[" * 1000 + b'"]', 64)
    assert not is_too_deep(b"[]," * 1000, 64)
    assert is_too_deep(b'{"a":' * 65, 64)
    assert is_too_deep(b'["\\\\",' + b"[" * 64 + b"]" * 65, 64)


def test_a_hostile_body_or_cookie_is_read_in_linear_time() -> None:
    assert not is_too_deep(b"[]" * 65 + b'\\"' * 500_000, 64)  # each could open a string that never ends
    tokens = Tokens([OWNER])
    slashes = "\\" * 500_000
    hostile = f'other="{slashes}"; {COOKIE_NAME}="{slashes}"'
    assert tokens.find_by_headers({"cookie": hostile}) is None
    valid = f"{hostile[:20]}; {COOKIE_NAME}={tokens.sign_cookie(OWNER)}; last=1"
    assert tokens.find_by_headers({"cookie": valid}) == OWNER


async def refuse(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nothing is let through here")


async def test_no_route_is_given_a_cookie_to_read() -> None:
    seen = list[Any]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend(name for name, _ in scope["headers"])

    headers = [(b"host", b"localhost:1"), (b"cookie", b"a=b")]
    scope = {"type": "http", "method": "GET", "path": "/health", "query_string": b"", "headers": headers}
    await Guard(app, ServerConfig(tokens=[OWNER]), Tokens([OWNER]))(
        {**scope, "server": ("localhost", 1), "scheme": "http"}, refuse, refuse
    )
    assert seen == [b"host"]


async def test_a_frame_that_is_too_large_ends_the_socket() -> None:
    async with serve_script() as client, client.open_socket() as socket:
        await socket.send(type="user", content="x" * (1024 * 1024))
        await socket.check_closed(1009)


async def test_wrong_tokens_are_slowed_down_and_the_valid_one_is_not() -> None:
    async with serve_script() as client, Client(client.base, "wrong") as stranger:
        assert [await fetch_status(stranger) for _ in range(20)] == [401] * 20
        async with stranger.request("GET", "/v1/sessions") as answer:
            assert answer.status == 429 and 0 < int(answer.headers["retry-after"]) <= 60
        assert await fetch_status(client) == 200


async def test_x_api_key_is_a_token_on_every_route_and_on_sockets() -> None:
    async with serve_script() as client, Client(client.base, "") as stranger:
        key = {"x-api-key": OWNER.value}
        assert "sessions" in await stranger.json("GET", "/v1/sessions", headers=key)
        assert await stranger.json("GET", "/v1/config", headers={**key, "authorization": "Bearer other"})
        assert await stranger.json("GET", "/v1/config", headers={**client.headers, "x-api-key": "other"})
        async with stranger.socket("/v1/ws", headers=key):
            pass
        port, key_line = client.base.rpartition(":")[2], f"x-api-key: {OWNER.value}"
        lines = ("GET /v1/config HTTP/1.1", f"Host: 127.0.0.1:{port}", key_line)
        assert [await send_raw(client, *lines), await send_raw(client, *lines, key_line)] == [200, 401]


async def test_a_wrong_x_api_key_counts_as_a_wrong_token() -> None:
    async with serve_script(max_wrong_tokens=3) as client, Client(client.base, "") as stranger:
        for status in (401, 401, 401, 429):
            await stranger.problem("GET", "/v1/config", None, status, headers={"x-api-key": "wrong"})
        assert await fetch_status(client) == 200


async def test_the_probe_of_claude_code_needs_no_token() -> None:
    async with serve_script() as client, Client(client.base, "") as stranger:
        assert await fetch_status(stranger, "HEAD", "/api/hello") == 404


async def test_a_token_has_a_rate_and_so_many_requests_at_once() -> None:
    async with serve_script(rate=2) as client:

        async def request() -> tuple[int, str]:
            async with client.request("GET", "/v1/sessions") as answer:
                return answer.status, answer.headers.get("retry-after", "")

        answers = await asyncio.gather(*(request() for _ in range(40)))
        assert set(answers) == {(200, ""), (429, "1")} and answers.count((200, "")) >= 4
    async with serve_script(max_open_requests=2) as client:
        path = f"/v1/sessions/{await client.session()}/events"
        async with client.stream(path) as one, client.stream(path) as other:
            await anext(one), await anext(other)
            assert await fetch_status(client) == 429


async def test_viewing_sending_and_approving_are_separate_rights() -> None:
    rights = {right: create_token(right, right) for right in ("view", "send", "approve")}
    async with serve_script(call("drop", table="t"), "done", tokens=(OWNER, *rights.values())) as client:
        session_id, sending, asked = await client.start_run("approval_requested")
        approve = f"/v1/sessions/{session_id}/approvals/{asked['call_id']}"
        tries: list[tuple[str, str, str, Any]] = [
            ("view", "GET", f"/v1/sessions/{session_id}", None),
            ("view", "GET", "/v1/approvals", None),
            ("view", "GET", "/metrics", None),
            ("send", "POST", "/v1/sessions", {}),
            ("send", "POST", f"/v1/sessions/{session_id}/fork", {}),
            ("send", "PATCH", f"/v1/sessions/{session_id}", {"name": "x"}),
            ("approve", "POST", approve, {"decision": "deny"}),
        ]
        for needed, method, path, body in tries:
            for name, token in rights.items():
                async with Client(client.base, token.value) as caller:
                    code = await fetch_status(caller, method, path, json=body)
                    assert (code < 300) == (name == needed), (name, method, path, code)
        await sending


async def test_a_token_with_a_grant_creates_narrow_sessions_and_cannot_use_wider_ones() -> None:
    narrow, script = create_token("narrow", grant=Grant(tools=("read_*",))), (call("note", text="x"), "then not")
    async with serve_script(*script, tokens=(OWNER, narrow)) as client, Client(client.base, narrow.value) as caller:
        wide = await client.session()
        problem = await caller.problem("POST", f"/v1/sessions/{wide}/messages", {"content": "x"}, 403)
        assert problem["type"] == "wider_session"
        own = await caller.session(approve=["*"])
        assert (await caller.send(own, "note x"))["reply"] == "then not"
        assert not client.tables.done
        statuses = [fact["status"] for fact in await client.facts(own) if fact["type"] == "call_finished"]
        assert statuses == ["denied"]
        for method, path, body in (
            ("POST", f"/v1/sessions/{wide}/fork", {}),
            ("POST", f"/v1/sessions/{wide}/cancel", None),
            ("POST", f"/v1/approvals/{wide}.call_1", {"approved": True}),
            ("POST", f"/api/agent/{wide}/approve", {"call_id": "call_1", "decision": "approve"}),
            ("DELETE", f"/v1/sessions/{wide}", None),
        ):
            await caller.problem(method, path, body, 403)


async def test_a_login_link_works_once_and_sets_a_cookie_that_no_script_can_read() -> None:
    async with serve_script() as client:
        path = (await client.json("POST", "/v1/tickets", status=201))["path"]
        async with aiohttp.ClientSession(client.base, cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
            async with browser.get(path, allow_redirects=False) as answer:
                assert answer.status == 303
                cookie = answer.headers["set-cookie"]
                assert "HttpOnly" in cookie and "SameSite=strict" in cookie and OWNER.value not in cookie
            async with browser.get("/v1/sessions") as answer:
                assert answer.status == 200
            async with browser.get("/docs") as answer:
                assert answer.status == 200 and "/v1/sessions" in await answer.text()
            hostile = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
            async with browser.post("/v1/sessions", json={}, headers=hostile) as answer:
                assert answer.status == 403
        async with aiohttp.ClientSession(client.base) as other, other.get(path, allow_redirects=False) as answer:
            assert answer.status == 403
        value = cookie.partition("=")[2].partition(";")[0].strip('"')
        name, expires, signature = value.split("|")
        forged = (f"{name}|{int(expires) + 1}|{signature}", f"{name}|{expires}|{'0' * 64}", f"{name}|x|", "||", "")
        async with aiohttp.ClientSession(client.base) as other:
            for bad in forged:
                async with other.get("/v1/sessions", headers={"cookie": f"{COOKIE_NAME}={bad}"}) as answer:
                    assert answer.status == 401, bad
            async with other.get("/v1/sessions", headers={"cookie": f'{COOKIE_NAME}="{value}"'}) as answer:
                assert answer.status == 200


async def test_a_cookie_or_ticket_is_invalid_after_it_expires_or_its_token_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens = Tokens([OWNER], values=InMemoryValues(lambda: time.time()))
    cookie, ticket = tokens.sign_cookie(OWNER), await tokens.issue_ticket(OWNER)
    assert tokens.find_by_cookie(cookie) == OWNER
    assert tokens.find_by_cookie(cookie + "é") is None
    strange = Token('Zoë "phone"; a=b|c', "another-secret-of-tests")
    assert Tokens([strange]).find_by_cookie(Tokens([strange]).sign_cookie(strange)) == strange
    assert Tokens([strange]).sign_cookie(strange).isascii() and ";" not in Tokens([strange]).sign_cookie(strange)
    assert Tokens([Token("owner", "another-secret-of-tests")]).find_by_cookie(cookie) is None
    monkeypatch.setattr("time.time", lambda: 2e10)
    assert tokens.find_by_cookie(cookie) is None and await tokens.redeem_ticket(ticket) is None


def test_the_tokens_file_is_made_for_its_owner_only_and_refused_when_others_can_read_it(tmp_path: Path) -> None:
    file = tmp_path / "data" / "tokens.json"
    (token,) = load_tokens(file)
    assert file.stat().st_mode & 0o777 == 0o600 and len(token.value) >= 43
    assert load_tokens(file) == (token,) and token.value not in repr(token)
    file.chmod(0o644)
    with pytest.raises(BadInput, match="chmod 600"):
        load_tokens(file)
    file.chmod(0o600)
    for bad in ("nonsense", "[]", '[{"name":"a","value":"short"}]', f"[{token_json('a')},{token_json('a')}]"):
        file.write_text(bad)
        with pytest.raises(BadInput):
            load_tokens(file)


def token_json(name: str) -> str:
    return json.dumps({"name": name, "value": "x" * 20, "rights": ["view"]})


async def test_every_response_has_the_headers_that_keep_a_browser_safe() -> None:
    async with serve_script() as client:
        events = f"/v1/sessions/{await client.session()}/events?follow=false"
        for path, headers in (
            *((path, {}) for path in ("/health", "/v1/sessions", "/nowhere", events)),
            ("/v1/sessions", {"authorization": "Bearer no"}),
        ):
            async with client.request("GET", path, headers=headers) as answer:
                policy = answer.headers["content-security-policy"]
                assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert answer.headers["cache-control"] == "no-store"
                assert answer.headers["referrer-policy"] == "no-referrer"
                assert answer.headers["cross-origin-resource-policy"] == "same-origin"


async def test_an_internal_error_is_answered_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_script() as client:

        async def fail(*_: object, **__: object) -> None:
            raise ZeroDivisionError("with a detail that is nobody's business")

        monkeypatch.setattr(client.app.state.service.runtime.log, "list_sessions", fail)
        with caplog.at_level(logging.CRITICAL, "uvicorn.error"):
            problem = await client.problem("GET", "/v1/sessions", status=500)
        assert "nobody's business" not in json.dumps(problem)
        assert "nothing that was recorded is lost" in problem["message"]


async def test_no_log_line_has_an_id_a_query_a_token_or_a_body(caplog: pytest.LogCaptureFixture) -> None:
    async with serve_script("the answer") as client:
        with caplog.at_level(logging.INFO, "treadle"):
            session_id = await client.session(name="very secret name")
            await client.send(session_id, "very secret words")
            await client.json("GET", "/v1/sessions?q=secretquery")
    lines = [record.getMessage() for record in caplog.records if record.name == "treadle.server"]
    assert any("POST /v1/sessions/{session_id}/messages 200" in line for line in lines)
    for hidden in (session_id, "secret", OWNER.value, "the answer"):
        assert not any(hidden in line for line in lines)


async def test_an_address_that_others_can_reach_needs_a_token(tmp_path: Path) -> None:
    agent, _ = build_agent()
    with pytest.raises(BadInput, match="token"):
        await serve_app(create_app(Runtime(":memory:", [agent]), ServerConfig(open_to_everyone=True)), "0.0.0.0", 0)
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost")
    assert not is_loopback("0.0.0.0") and not is_loopback("192.0.2.1") and not is_loopback("example.org")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_responses_leave_at_once_on_every_accepted_connection(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    servers: list[DrainingServer] = []
    handle = DrainingServer.startup

    async def keep_server(server: DrainingServer, sockets: list[socket.socket] | None = None) -> None:
        servers.append(server)
        await handle(server, sockets)

    monkeypatch.setattr(DrainingServer, "startup", keep_server)
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    app = create_app(Runtime(":memory:", [build_agent()[0]]), ServerConfig(tokens=(OWNER,)))
    serving = asyncio.create_task(serve_app(app, host, 0, started.set_result))
    async with Client(await started) as client:
        assert await client.json("GET", "/v1/sessions")
        (connection,) = servers[0].server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    servers[0].should_exit = True
    await serving


async def test_serving_as_root_is_refused_unless_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    from treadle.app.settings import Settings

    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(BadInput, match="--allow-root"):
        await serve(Settings(), ServeOptions())


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (None, r"no token.*open_to_everyone=True"),
        (ServerConfig(), "no token"),
        (ServerConfig(tokens=[Token("owner", "")]), "guessed"),
        (ServerConfig(tokens=[Token("owner", "short")]), "guessed"),
        (ServerConfig(tokens=[OWNER, OWNER]), "same name"),
        (ServerConfig(tokens=[OWNER], open_to_everyone=True), "choose one"),
    ],
)
def test_an_application_is_not_made_open_by_accident(config: ServerConfig | None, problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        create_app(Runtime(":memory:", [build_agent()[0]]), config)


async def test_a_server_that_is_open_to_everyone_lets_everybody_on_this_machine_in() -> None:
    async with serve_script(tokens=(), open_to_everyone=True) as client, Client(client.base, "") as anyone:
        assert await fetch_status(anyone) == 200
        assert await fetch_status(anyone, headers={"host": "evil.example"}) == 403
