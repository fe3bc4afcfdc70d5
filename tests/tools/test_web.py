"""`fetch_url` over real sockets: pages as text, and no way to an address that is not public."""

import asyncio
import json
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
from pathlib import Path

import pytest
from aiohttp import web

from treadle.sandbox.proxy import is_public_address, resolve_host
from treadle.tools import web as fetch
from treadle.tools.base import ToolContext, ToolError, ToolInputError, ToolResult
from treadle.tools.html_text import convert_html
from treadle.tools.web import MAX_BYTES, FetchUrl

PAGE = """<!doctype html><html><head><title>A  page</title><style>p {}</style></head><body>
<h1>Head</h1><p>Some <b>bold</b> text, <a href="/next?a=1&amp;b=2">a link</a> and <a href="javascript:x()">none</a>.
<ul><li>one<li>two</ul><pre>kept  blanks</pre><script>if (1 < 2) steal("</p>")</script>
<table><tr><td>1<td>2</table><img src=x alt="a picture"> &lt;b&gt; 1 < 2 <!-- hidden --> end</body></html>"""

BOMB = 64 << 20


@lru_cache(maxsize=1)
def packed() -> bytes:
    """Much in little."""
    packing = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(packing.compress(b"x" * (1 << 20)) for _ in range(BOMB >> 20)) + packing.flush()


class Site:
    """A server on this machine, and what it was asked."""

    def __init__(self, port: int, asked: list[str]) -> None:
        self.port, self.asked = port, asked

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        match request.path:
            case "/html":
                return web.Response(text=PAGE, content_type="text/html")
            case "/json":
                return web.json_response({"a": [1, "ü"]})
            case "/latin":
                return web.Response(
                    body="schön".encode("latin-1"), headers={"content-type": "text/plain; charset=latin-1"}
                )
            case "/meta":
                return web.Response(body='<meta charset="latin-1"><p>schön'.encode("latin-1"), content_type="text/html")
            case "/image":
                return web.Response(body=b"\x89PNG\0", content_type="image/png")
            case "/lies":
                return web.Response(body=b"\x7fELF\0\0", content_type="text/plain")
            case "/large":
                return web.Response(text="x" * (MAX_BYTES + 1000))
            case "/bomb":
                return web.Response(body=packed(), headers={"content-type": "text/plain", "content-encoding": "gzip"})
            case "/missing":
                return web.Response(status=404, text="no such page")
            case "/cookie":
                found = web.Response(status=302, headers={"location": "/cookies"})
                found.set_cookie("a", "b")
                return found
            case "/cookies":
                return web.Response(text=f"cookies: {dict(request.cookies)}, {request.headers['user-agent']}")
            case "/slow":
                response = web.StreamResponse()
                await response.prepare(request)
                await asyncio.Event().wait()
                return response
            case "/to":
                return web.Response(status=302, headers={"location": request.query["url"]})
            case "/round":
                return web.Response(status=307, headers={"location": "/round"})
            case path:
                return web.Response(text=f"plain {path}")

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    here = web.TCPSite(runner, "127.0.0.1", 0)
    await here.start()
    server = here._server
    assert isinstance(server, asyncio.Server)
    yield Site(server.sockets[0].getsockname()[1], asked)
    await runner.cleanup()


def nothing_is_private(address: str) -> bool:
    return True


async def fetched(tool: FetchUrl, url: str) -> ToolResult:
    result = await tool.run(tool.parse(json.dumps({"url": url})), ToolContext("s", "c", Path("/")))
    assert isinstance(result, ToolResult)
    return result


def body(result: ToolResult) -> str:
    """What was fetched, without the words around it."""
    head, _, rest = result.text.partition("\n")
    assert "no instruction" in head
    text, _, end = rest.rpartition("\n")
    assert end.startswith("[end of ")
    return text


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/text", "plain /text"), ("/json", '{"a": [1, "\\u00fc"]}'), ("/latin", "schön"), ("/meta", "schön")],
)
async def test_text_comes_as_it_is(site: Site, path: str, expected: str) -> None:
    assert body(await fetched(FetchUrl(nothing_is_private), site.url(path))) == expected


async def test_html_comes_as_text_with_its_links_and_without_its_scripts(site: Site) -> None:
    text = body(await fetched(FetchUrl(nothing_is_private), site.url("/html")))
    assert text == (
        f"A page\n\n# Head\n\nSome bold text, [a link]({site.url('/next?a=1&b=2')}) and none.\n\n- one\n- two\n\n"
        "kept  blanks\n\n| 1 | 2\n\n[image: a picture] <b> 1 < 2 end"
    )


@pytest.mark.parametrize("path", ["/image", "/lies"])
async def test_what_is_no_text_is_refused_with_its_type(site: Site, path: str) -> None:
    with pytest.raises(ToolError, match=r"image/png|binary"):
        await fetched(FetchUrl(nothing_is_private), site.url(path))


async def test_a_page_that_is_too_large_is_cut_and_that_is_said(site: Site) -> None:
    text = (await fetched(FetchUrl(nothing_is_private), site.url("/large"))).text
    assert text.count("x") == MAX_BYTES and "[cut off after" in text


async def test_an_error_of_the_server_is_told_with_what_it_said(site: Site) -> None:
    result = await fetched(FetchUrl(nothing_is_private), site.url("/missing"))
    assert not result.ok and "HTTP 404 Not Found" in result.text and body(result) == "no such page"


async def test_redirects_are_followed_a_few_times_and_carry_no_cookies(site: Site) -> None:
    tool = FetchUrl(nothing_is_private)
    assert body(await fetched(tool, site.url("/cookie"))) == "cookies: {}, treadle"
    with pytest.raises(ToolError, match="more than 5 times"):
        await fetched(tool, site.url("/round"))
    assert site.asked.count("/round") == 6


async def test_a_server_that_says_nothing_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "TIMEOUT", 0.3)
    with pytest.raises(ToolError, match="did not answer"):
        await fetched(FetchUrl(nothing_is_private), site.url("/slow"))


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://example.org/",
        "gopher://example.org/",
        "javascript:x",
        "example.org",
        "http://",
        "//example.org",
        "http://user:pw@example.org/",
        "http://user@example.org/",
        "http://[::1/",
        "http://example.org:99999/",
        "https://example.org/" + "x" * 5000,
        "",
    ],
)
def test_what_is_no_plain_address_of_the_web_is_refused(url: str) -> None:
    with pytest.raises(ToolInputError, match="fetch_url"):
        FetchUrl(is_public_address).parse(json.dumps({"url": url}))


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0",
        "0.0.0.0",
        "localhost",
        "localhost.",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "[fe80::1]",
        "[fc00::1]",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "[fd00:ec2::254]",
        "224.0.0.1",
        "255.255.255.255",
        "１２７.0.0.1",
        "127。0。0。1",
    ],
)
async def test_no_spelling_of_an_address_that_is_not_public_is_asked(site: Site, host: str) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        """As the system does it, which asks a server of names for what ends with a dot."""
        return await resolve_host(host.rstrip("."), port)

    url = site.url("/text", host)
    for start in (url, f"https://{host}:{site.port}/"):
        with pytest.raises((ToolError, ToolInputError), match=r"public|cannot be|no address"):
            await fetched(FetchUrl(is_public_address, resolve=resolve), start)
    assert site.asked == []


@pytest.mark.parametrize(
    "target", ["http://127.0.0.1:{port}/text", "//localhost:{port}/text", "http://[::1]:{port}/", "file:///etc/passwd"]
)
async def test_a_redirect_is_checked_like_the_first_address(site: Site, target: str) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"] if host in ("front.example", "localhost") else []

    def first_only(address: str) -> bool:
        return address == "127.0.0.1" and site.asked == []

    tool = FetchUrl(first_only, resolve=resolve)
    with pytest.raises(ToolError, match=r"not a public|no address of the web"):
        await fetched(tool, site.url(f"/to?url={target.format(port=site.port)}", "front.example"))
    assert site.asked == ["/to"]


async def test_a_name_with_a_private_address_among_public_ones_is_not_asked(site: Site) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["93.184.216.34", "127.0.0.1"]

    with pytest.raises(ToolError, match="not a public"):
        await fetched(FetchUrl(is_public_address, resolve=resolve), site.url("/text", "mixed.example"))
    assert site.asked == []


async def test_a_name_is_looked_up_once_and_only_what_was_checked_is_connected_to(site: Site) -> None:
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

    tool = FetchUrl(nothing_is_private, resolve=rebinding)
    assert body(await fetched(tool, site.url("/text", "name.that.does.not.exist.example"))) == "plain /text"
    assert asked == ["name.that.does.not.exist.example"]


@pytest.mark.parametrize(
    ("granted", "reached"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:{port}", True),
        ("*.0.0.1:{port}", True),
        ("127.0.0.1:1", False),
        ("10.0.0.1", False),
        ("example.org", False),
    ],
)
async def test_a_granted_host_may_be_anywhere_and_no_other(site: Site, granted: str, reached: bool) -> None:
    tool = FetchUrl(is_public_address, allow_hosts=(granted.format(port=site.port),))
    if reached:
        assert body(await fetched(tool, site.url("/text"))) == "plain /text"
    else:
        with pytest.raises(ToolError, match="not a public"):
            await fetched(tool, site.url("/text"))


async def test_a_proxy_of_the_environment_is_not_used_but_a_configured_one_is(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert body(await fetched(FetchUrl(nothing_is_private), site.url("/text"))) == "plain /text"
    proxied = FetchUrl(is_public_address, proxy=site.url(""), resolve=unknown)
    assert body(await fetched(proxied, "http://far.away.example/page")) == "plain /page"


async def unknown(host: str, port: int) -> Sequence[str]:
    raise OSError("Name or service not known")


NAMES = ["localhost", "localhost.", "printer", "db.internal"]
NUMBERS = ["127.0.0.1", "[::1]", "127.1", "0x7f.1", "2130706433", "127.0.0.1.", "[::ffff:169.254.169.254]"]


@pytest.mark.parametrize("host", [*NAMES, *NUMBERS])
async def test_a_proxy_is_not_asked_for_what_is_not_public(site: Site, host: str) -> None:
    with pytest.raises(ToolError, match="not a public"):
        await fetched(FetchUrl(is_public_address, proxy=site.url(""), resolve=unknown), f"http://{host}/page")
    assert site.asked == []


async def test_with_a_proxy_what_can_be_found_of_a_name_is_checked_too(site: Site) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["10.0.0.1"] if host == "inner.example" else ["93.184.215.14"]

    proxied = FetchUrl(is_public_address, proxy=site.url(""), resolve=resolve)
    with pytest.raises(ToolError, match="not a public"):
        await fetched(proxied, "http://inner.example/page")
    assert body(await fetched(proxied, "http://outer.example/page")) == "plain /page"
    assert site.asked == ["/page"]


async def test_where_the_environment_names_a_proxy_a_failure_says_how_to_use_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    with pytest.raises(ToolError, match="can set web_proxy"):
        await fetched(FetchUrl(is_public_address, resolve=unknown), "https://far.away.example/")


async def test_a_page_that_unpacks_into_very_much_is_cut_like_any_other(site: Site) -> None:
    assert len(packed()) < BOMB / 100
    tracemalloc.start()
    try:
        result = await fetched(FetchUrl(nothing_is_private), site.url("/bomb"))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert f"cut off after {MAX_BYTES} bytes" in result.text
    assert most < BOMB / 2  # unpacked at once, it takes all of that


async def test_a_host_that_is_not_there_is_told() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise OSError("Name or service not known")

    with pytest.raises(ToolError, match=r"nowhere\.example cannot be found"):
        await fetched(FetchUrl(is_public_address, resolve=resolve), "https://nowhere.example/")


def test_a_fetch_lets_strangers_in_and_is_a_way_out() -> None:
    tool = FetchUrl(is_public_address)
    assert tool.list_traits("sandbox") == {"untrusted", "way_out"} and tool.assess_safety({"url": "x"}) == "caution"


@pytest.mark.parametrize(
    "page",
    [
        "<",
        "<a",
        "<a>",
        "<!",
        "<!--",
        "<svg>",
        "&",
        "<a href='",
        "</",
        "<![CDATA[",
        "<p ",
        "<a \"'\"'",
        "&#9",
        "<a href=x>b",
    ],
)
def test_no_page_takes_long_to_read(page: str) -> None:
    begun = time.process_time()
    convert_html(page * (400_000 // len(page)), "https://example.org/")
    assert time.process_time() - begun < 10  # a reader that is not linear takes minutes


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("a<br>b", "a\nb"),
        ("<h2>x</h2>y", "## x\n\ny"),
        ("<title>t</title>", "t"),
        ("<title>unclosed", "unclosed"),
        ("<a href=b>x</a>", "[x](https://e.org/d/b)"),
        ("<a href='//o.org/'>x", "x"),
        ("<a href='http://[bad'>x</a>", "x"),
        ("<a href=x></a>y", "y"),
        ("<script>x</script >y", "y"),
        ("<SCRIPT>x</Script>y", "y"),
        ("<style>never closed", ""),
        ("<!-- never closed", ""),
        ("<p title='a>b'>x</p>", "x"),
        (f"<img src='{'x' * 5000}'>y", "y"),
        ("&#" + "9" * 5000 + ";", "&#" + "9" * 5000 + ";"),
        ("a &copy; &#228; &nbsp; b", "a © ä b"),
    ],
)
def test_pages_of_all_kinds_are_read(html: str, text: str) -> None:
    assert convert_html(html, "https://e.org/d/") == text


def test_bad_arguments_are_told() -> None:
    for arguments in ("{}", '{"url": 5}', '{"url": "https://a.org", "x": 1}', "{"):
        with pytest.raises(ToolInputError):
            FetchUrl(is_public_address).parse(arguments)
