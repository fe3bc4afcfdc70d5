"""Logging in by a link or a token, logging out, and what the page learns about who is logged in."""

import time

import aiohttp
import pytest

from tests.kit.server import OWNER, Client, create_token, serve_script
from tests.kit.sessions import PATIENCE
from treadle import Grant, __version__
from treadle.errors import StoreAway
from treadle.log.shared_values import InMemoryValues
from treadle.server.logins import COOKIE_NAME, MAX_TICKETS, Tokens, WrongTokens
from treadle.server.tokens import Token

HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


class Browser(Client):
    """A client that has no token and keeps cookies."""

    async def __aenter__(self) -> "Browser":
        self.headers = {}
        jar, timeout = aiohttp.CookieJar(unsafe=True), aiohttp.ClientTimeout(total=PATIENCE)
        self.http = aiohttp.ClientSession(self.base, cookie_jar=jar, timeout=timeout)
        self.request = self.http.request
        return self


async def test_a_token_logs_a_browser_in_until_it_logs_out() -> None:
    reader = create_token("reader", "view")
    async with serve_script(tokens=(OWNER, reader)) as client, Browser(client.base) as browser:
        await browser.problem("GET", "/v1/me", status=401)
        async with browser.request("POST", "/login", json={"token": f" {reader.value}\n"}) as answer:
            assert (answer.status, await answer.read()) == (204, b"")
            cookie = answer.headers["set-cookie"].lower()
        for part in ("httponly", "samesite=strict", "max-age=2592000", "path=/"):
            assert part in cookie, part
        assert reader.value not in cookie
        assert await browser.json("GET", "/v1/me") == {"name": "reader", "rights": ["view"], "version": __version__}
        await browser.problem("POST", "/v1/sessions", {}, 403)
        await browser.json("POST", "/logout", status=204)
        assert not [cookie for cookie in browser.http.cookie_jar if cookie.key == COOKIE_NAME]
        await browser.problem("GET", "/v1/me", status=401)
        await browser.json("POST", "/logout", status=204)


async def test_wrong_tokens_at_the_login_are_limited_as_elsewhere() -> None:
    async with serve_script(max_wrong_tokens=3) as client, Browser(client.base) as browser:
        for _ in range(2):
            problem = await browser.problem("POST", "/login", {"token": "wrong"}, 401)
            assert problem["param"] == "token" and "wrong" not in problem["message"]
        await browser.problem("GET", "/v1/me", status=401, headers={"authorization": "Bearer wrong"})
        async with browser.request("POST", "/login", json={"token": "wrong"}) as answer:
            assert answer.status == 429 and int(answer.headers["retry-after"]) > 0
            assert "set-cookie" not in answer.headers
        # Somebody else at this address, or a page with an old cookie, keeps nobody with a right token out.
        await browser.json("POST", "/login", {"token": OWNER.value}, 204)
        await browser.json("GET", "/v1/me")


async def test_a_link_on_another_site_leads_to_the_page_and_to_nothing_else() -> None:
    visit = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    async with serve_script() as client:
        for path in ("/", "/s/1a2b", "/inbox"):
            async with client.request("GET", path, headers=visit) as answer:
                assert answer.status == 200 and answer.headers["x-frame-options"] == "DENY"
        for path in ("/v1/sessions", "/docs", "/login?ticket=x", "/assets/app.js"):
            assert (await client.problem("GET", path, status=403, headers=visit))["type"] == "wrong_origin"
        for change in ({"sec-fetch-mode": "cors"}, {"sec-fetch-dest": "iframe"}, {"origin": "https://evil.example"}):
            await client.problem("GET", "/", status=403, headers=visit | change)
        await client.problem("POST", "/", {}, 403, headers=visit)


async def test_only_the_last_login_links_of_a_token_work() -> None:
    reader = create_token("reader", "view")
    tokens = Tokens((OWNER, reader))
    first = await tokens.issue_ticket(OWNER)
    links = [await tokens.issue_ticket(reader) for _ in range(MAX_TICKETS + 5)]
    redeemed = [await tokens.redeem_ticket(link) for link in links]
    assert redeemed == [None] * 5 + [reader] * MAX_TICKETS and await tokens.redeem_ticket(first) == OWNER


async def test_a_login_link_of_one_node_works_once_on_any_node_of_the_same_tokens() -> None:
    values = InMemoryValues(time.time)
    one, other = Tokens((OWNER,), values=values), Tokens((OWNER,), values=values)
    ticket = await one.issue_ticket(OWNER)
    assert [await other.redeem_ticket(ticket), await one.redeem_ticket(ticket)] == [OWNER, None]
    ticket = await one.issue_ticket(OWNER)
    assert await Tokens((Token("owner", "another-secret-of-tests"),), values=values).redeem_ticket(ticket) is None
    assert other.find_by_cookie(one.sign_cookie(OWNER)) == OWNER


async def test_the_store_gets_no_ticket_and_no_token() -> None:
    written: list[str] = []

    class Recorder(InMemoryValues):
        async def put(self, key: str, value: bytes, seconds: float) -> None:
            written.append(f"{key} {value!r}")

    ticket = await Tokens((OWNER,), values=Recorder(time.time)).issue_ticket(OWNER)
    assert len(written) == 1 and ticket not in written[0] and OWNER.value not in written[0]


async def test_wrong_tokens_add_up_over_nodes_also_while_the_store_is_away() -> None:
    class Values(InMemoryValues):
        is_away = False

        async def count(self, key: str, seconds: float) -> int:
            if self.is_away:
                raise StoreAway("the database cannot be reached")
            return await super().count(key, seconds)

    values, one, other = Values(time.monotonic), WrongTokens(3), WrongTokens(3)
    one.shared = other.shared = values
    assert [await node.record("client") for node in (one, other, one)] == [0.0, 0.0, 0.0]
    assert 0 < await other.record("client") <= 60 and 0 < one.seconds_until_retry("client") <= 60
    assert one.seconds_until_retry("another") == 0 == await one.record("another")
    values.is_away = True
    assert [await one.record("third") > 0 for _ in range(4)] == [False, False, False, True]


async def test_a_login_needs_a_small_json_body_from_this_page() -> None:
    async with serve_script() as client, Browser(client.base) as browser:
        body = {"token": OWNER.value}
        hostile: list[dict[str, str]] = [{"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}]
        for headers in hostile:
            for path in ("/login", "/logout"):
                async with browser.request("POST", path, json=body, headers=headers) as answer:
                    assert answer.status == 403 and "set-cookie" not in answer.headers
        async with browser.request("POST", "/login", data=body) as answer:
            assert answer.status == 415
        await browser.problem("POST", "/login", {"token": "x" * 5000}, 413)
        for wrong in ({}, {"token": ""}, {"token": 1}, {"token": OWNER.value, "more": 1}):
            assert (await browser.problem("POST", "/login", wrong, 422))["type"]


async def test_the_login_link_leads_to_a_path_of_the_page() -> None:
    async with serve_script() as client, Browser(client.base) as browser:
        for path, address in {"": "./", "&next=/s/ses_1": "./s/ses_1", "&next=//evil.example": "./"}.items():
            link = (await client.json("POST", "/v1/tickets", status=201))["path"]
            async with browser.request("GET", link + path, allow_redirects=False) as answer:
                assert (answer.status, answer.headers["location"]) == (303, address)
            await browser.problem("GET", link, status=403)
            async with browser.request("GET", link + path, headers=HTML, allow_redirects=False) as answer:
                assert (answer.status, answer.headers["location"]) == (303, f"{address}?login=used-up")
                assert "set-cookie" not in answer.headers
        async with browser.request("GET", "/login", headers=HTML, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["location"]) == (303, "./")
        assert (await browser.json("GET", "/v1/me"))["rights"] == ["view", "send", "approve"]


async def test_tokens_are_listed_without_their_values() -> None:
    narrow = create_token("narrow", "view", "send", grant=Grant(tier="read-only", forbid=("shell",)))
    async with serve_script(tokens=(OWNER, narrow)) as client:
        async with client.request("GET", "/v1/tokens") as answer:
            text = await answer.text()
        assert OWNER.value not in text and narrow.value not in text
        owner, other = await client.json("GET", "/v1/tokens")
        assert owner == {"name": "owner", "rights": ["view", "send", "approve"], "grant": None, "current": True}
        assert (other["rights"], other["current"]) == (["view", "send"], False)
        assert (other["grant"]["tier"], other["grant"]["forbid"]) == ("read-only", ["shell"])


@pytest.mark.parametrize("path", ["/login", "/v1/tickets"])
async def test_a_server_that_is_open_to_everyone_needs_no_login(path: str) -> None:
    async with serve_script(tokens=(), open_to_everyone=True) as client:
        assert (await client.json("GET", "/v1/me"))["name"] == "anyone"
        assert await client.json("GET", "/v1/tokens") == []
        await client.problem("POST", path, {"token": "x"}, 409)
