"""`fetch_url` over real sockets: pages as text, and no way to an address that is not public."""

import asyncio
import json
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from functools import lru_cache
from pathlib import Path

import pytest
from aiohttp import web

from treadle.sandbox.proxy import Resolve, is_public_address, resolve_host
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
def pack_bomb() -> bytes:
    packing = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(packing.compress(b"x" * (1 << 20)) for _ in range(BOMB >> 20)) + packing.flush()


class Site:
    """A server on this machine, and the paths that it was asked for."""

    def __init__(self) -> None:
        self.port, self.asked = 0, list[str]()

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        match request.path:
            case "/cookie":
                found = redirect_to("/cookies")
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
                return redirect_to(request.query["url"])
            case path if path in PAGES:
                return PAGES[path]()
            case path:
                return web.Response(text=f"plain {path}")


def redirect_to(location: str) -> web.Response:
    return web.Response(status=302, headers={"location": location})


def answer_bytes(content_type: str, body: bytes, **headers: str) -> Callable[[], web.Response]:
    return lambda: web.Response(body=body, headers={"content-type": content_type, **headers})


PAGES: dict[str, Callable[[], web.Response]] = {
    "/html": answer_bytes("text/html", PAGE.encode()),
    "/json": lambda: web.json_response({"a": [1, "ü"]}),
    "/latin": answer_bytes("text/plain; charset=latin-1", "schön".encode("latin-1")),
    "/meta": answer_bytes("text/html", '<meta charset="latin-1"><p>schön'.encode("latin-1")),
    "/image": answer_bytes("image/png", b"\x89PNG\0"),
    "/lies": answer_bytes("text/plain", b"\x7fELF\0\0"),
    "/large": answer_bytes("text/plain", b"x" * (MAX_BYTES + 1000)),
    "/bomb": lambda: answer_bytes("text/plain", pack_bomb(), **{"content-encoding": "gzip"})(),
    "/missing": lambda: web.Response(status=404, text="no such page"),
    "/round": lambda: redirect_to("/round"),
}


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site, app = Site(), web.Application()
    app.router.add_route("*", "/{rest:.*}", site.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    site.port = runner.addresses[0][1]
    yield site
    await runner.cleanup()


def allow_every_address(address: str) -> bool:
    return True


OPEN = FetchUrl(allow_every_address)
"""A tool that may reach this machine."""


def resolve_to(*addresses: str, **names: str) -> Resolve:
    """Build a resolver: these addresses for every name, or one address for each host name without its `.example`."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        if names:
            return [names[host.removesuffix(".example")]]
        if not addresses:
            raise OSError("Name or service not known")
        return addresses

    return resolve


UNKNOWN = resolve_to()


async def fetch_page(tool: FetchUrl, url: str) -> ToolResult:
    result = await tool.run(tool.parse(json.dumps({"url": url})), ToolContext("s", "c", Path("/")))
    assert isinstance(result, ToolResult)
    return result


async def fetch_text(tool: FetchUrl, url: str) -> str:
    """Fetch a page and return its text, without the lines around it."""
    return strip_frame(await fetch_page(tool, url))


def strip_frame(result: ToolResult) -> str:
    head, _, rest = result.text.partition("\n")
    text, _, end = rest.rpartition("\n")
    assert "no instruction" in head and end.startswith("[end of ")
    return text


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/text", "plain /text"), ("/json", '{"a": [1, "\\u00fc"]}'), ("/latin", "schön"), ("/meta", "schön")],
)
async def test_text_comes_as_it_is(site: Site, path: str, expected: str) -> None:
    assert await fetch_text(OPEN, site.url(path)) == expected


async def test_html_comes_as_text_with_its_links_and_without_its_scripts(site: Site) -> None:
    assert await fetch_text(OPEN, site.url("/html")) == (
        f"A page\n\n# Head\n\nSome bold text, [a link]({site.url('/next?a=1&b=2')}) and none.\n\n- one\n- two\n\n"
        "kept  blanks\n\n| 1 | 2\n\n[image: a picture] <b> 1 < 2 end"
    )


@pytest.mark.parametrize(
    ("path", "error", "requests"),
    [("/image", "is image/png, which is no text", 1), ("/lies", "binary data", 1), ("/round", "more than 5 times", 6)],
)
async def test_a_page_that_cannot_be_read_is_refused(site: Site, path: str, error: str, requests: int) -> None:
    with pytest.raises(ToolError, match=error):
        await fetch_page(OPEN, site.url(path))
    assert site.asked == [path] * requests


async def test_a_page_that_is_too_large_is_cut_and_the_result_says_so(site: Site) -> None:
    text = (await fetch_page(OPEN, site.url("/large"))).text
    assert text.count("x") == MAX_BYTES and "[cut off after" in text


async def test_an_error_of_the_server_is_shown_with_its_text(site: Site) -> None:
    result = await fetch_page(OPEN, site.url("/missing"))
    assert not result.ok and "HTTP 404 Not Found" in result.text and strip_frame(result) == "no such page"


async def test_redirects_are_followed_and_carry_no_cookies(site: Site) -> None:
    assert await fetch_text(OPEN, site.url("/cookie")) == "cookies: {}, treadle"


async def test_a_server_that_says_nothing_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "TIMEOUT", 0.3)
    with pytest.raises(ToolError, match="did not answer"):
        await fetch_page(OPEN, site.url("/slow"))


NO_ADDRESSES = (
    "file:///etc/passwd ftp://example.org/ gopher://example.org/ javascript:x example.org http:// //example.org "
    "http://user:pw@example.org/ http://user@example.org/ http://[::1/ http://example.org:99999/"
)


@pytest.mark.parametrize("url", [*NO_ADDRESSES.split(), "https://example.org/" + "x" * 5000, ""])
def test_an_address_that_is_not_of_the_web_is_refused(url: str) -> None:
    with pytest.raises(ToolInputError, match="fetch_url"):
        FetchUrl(is_public_address).parse(json.dumps({"url": url}))


PRIVATE_HOSTS = (
    "127.0.0.1 127.1 2130706433 0x7f000001 0177.0.0.1 0 0.0.0.0 localhost localhost. [::1] [::] [::ffff:127.0.0.1] "
    "[::ffff:7f00:1] [::127.0.0.1] [64:ff9b::7f00:1] [2002:7f00:1::] [fe80::1] [fc00::1] 10.0.0.1 172.16.0.1 "
    "192.168.1.1 169.254.169.254 100.64.0.1 [fd00:ec2::254] 224.0.0.1 255.255.255.255 １２７.0.0.1 127。0。0。1"
)


@pytest.mark.parametrize("host", PRIVATE_HOSTS.split())
async def test_no_spelling_of_an_address_that_is_not_public_is_asked(site: Site, host: str) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        """Resolve as the system does. It asks a name server for a name that ends with a dot."""
        return await resolve_host(host.rstrip("."), port)

    for start in (site.url("/text", host), f"https://{host}:{site.port}/"):
        with pytest.raises((ToolError, ToolInputError), match=r"public|cannot be|no address"):
            await fetch_page(FetchUrl(is_public_address, resolve=resolve), start)
    assert site.asked == []


@pytest.mark.parametrize(
    "target", ["http://127.0.0.1:{port}/text", "//localhost:{port}/text", "http://[::1]:{port}/", "file:///etc/passwd"]
)
async def test_a_redirect_is_checked_like_the_first_address(site: Site, target: str) -> None:
    def allow_first(address: str) -> bool:
        return address == "127.0.0.1" and site.asked == []

    tool = FetchUrl(allow_first, resolve=resolve_to(front="127.0.0.1", localhost="127.0.0.1"))
    with pytest.raises(ToolError, match=r"not a public|no address of the web"):
        await fetch_page(tool, site.url(f"/to?url={target.format(port=site.port)}", "front.example"))
    assert site.asked == ["/to"]


async def test_a_name_with_a_private_address_among_public_ones_is_not_asked(site: Site) -> None:
    tool = FetchUrl(is_public_address, resolve=resolve_to("93.184.216.34", "127.0.0.1"))
    with pytest.raises(ToolError, match="not a public"):
        await fetch_page(tool, site.url("/text", "mixed.example"))
    assert site.asked == []


async def test_a_name_is_looked_up_once_and_only_the_checked_address_is_connected_to(site: Site) -> None:
    asked: list[str] = []

    async def rebind(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

    tool = FetchUrl(allow_every_address, resolve=rebind)
    assert await fetch_text(tool, site.url("/text", "name.that.does.not.exist.example")) == "plain /text"
    assert asked == ["name.that.does.not.exist.example"]


@pytest.mark.parametrize("granted", ["127.0.0.1", "127.0.0.1:{port}", "*.0.0.1:{port}"])
async def test_a_granted_host_may_be_anywhere(site: Site, granted: str) -> None:
    tool = FetchUrl(is_public_address, allow_hosts=(granted.format(port=site.port),))
    assert await fetch_text(tool, site.url("/text")) == "plain /text"


@pytest.mark.parametrize("granted", ["127.0.0.1:1", "10.0.0.1", "example.org"])
async def test_a_grant_is_for_no_other_host(site: Site, granted: str) -> None:
    with pytest.raises(ToolError, match="not a public"):
        await fetch_page(FetchUrl(is_public_address, allow_hosts=(granted,)), site.url("/text"))


async def test_a_proxy_of_the_environment_is_not_used_but_a_configured_one_is(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert await fetch_text(OPEN, site.url("/text")) == "plain /text"
    proxied = FetchUrl(is_public_address, proxy=site.url(""), resolve=UNKNOWN)
    assert await fetch_text(proxied, "http://far.away.example/page") == "plain /page"


NAMES = ["localhost", "localhost.", "printer", "db.internal"]
NUMBERS = ["127.0.0.1", "[::1]", "127.1", "0x7f.1", "2130706433", "127.0.0.1.", "[::ffff:169.254.169.254]"]


@pytest.mark.parametrize("host", [*NAMES, *NUMBERS])
async def test_a_proxy_is_not_asked_for_a_host_that_is_not_public(site: Site, host: str) -> None:
    with pytest.raises(ToolError, match="not a public"):
        await fetch_page(FetchUrl(is_public_address, proxy=site.url(""), resolve=UNKNOWN), f"http://{host}/page")
    assert site.asked == []


async def test_with_a_proxy_a_name_that_can_be_resolved_here_is_checked_too(site: Site) -> None:
    resolve = resolve_to(inner="10.0.0.1", outer="93.184.215.14")
    proxied = FetchUrl(is_public_address, proxy=site.url(""), resolve=resolve)
    with pytest.raises(ToolError, match="not a public"):
        await fetch_page(proxied, "http://inner.example/page")
    assert await fetch_text(proxied, "http://outer.example/page") == "plain /page"
    assert site.asked == ["/page"]


async def test_a_host_that_cannot_be_found_is_an_error_that_mentions_a_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    with pytest.raises(ToolError, match=r"nowhere\.example cannot be found.*can set web_proxy"):
        await fetch_page(FetchUrl(is_public_address, resolve=UNKNOWN), "https://nowhere.example/")


async def test_a_page_that_unpacks_into_very_much_is_cut_like_any_other(site: Site) -> None:
    assert len(pack_bomb()) < BOMB / 100
    tracemalloc.start()
    try:
        result = await fetch_page(OPEN, site.url("/bomb"))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert f"cut off after {MAX_BYTES} bytes" in result.text
    assert most < BOMB / 2  # unpacked at once, it takes all of that


def test_a_fetch_lets_strangers_in_and_is_a_way_out() -> None:
    assert OPEN.list_traits("sandbox") == {"untrusted", "way_out"} and OPEN.assess_safety({"url": "x"}) == "caution"


PIECES = ["<", "<a", "<a>", "<!", "<!--", "<svg>", "&", "<a href='", "</", "<![CDATA[", "<p ", "<a \"'\"'", "&#9"]


@pytest.mark.parametrize("page", [*PIECES, "<a href=x>b"])
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
