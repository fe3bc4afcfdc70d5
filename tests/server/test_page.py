"""The web page: its paths, its files, caching, and the headers that keep scripts of others out."""

import gzip
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.kit.server import Client, serve_script
from treadle.server.public_paths import build_redirect, is_public
from treadle.server.static_files import StaticFiles

SCRIPT, HTML = b"export const a = 1;\n" * 50, b"<!doctype html><title>treadle</title>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    page = tmp_path / "static"
    (page / "assets").mkdir(parents=True)
    (page / "index.html").write_bytes(HTML)
    (page / "export.html").write_bytes(b"export")
    (page / "favicon.svg").write_bytes(b"<svg/>")
    (page / "assets" / "app-1a2B_c4d.js").write_bytes(SCRIPT)
    (page / "assets" / "app-1a2B_c4d.js.gz").write_bytes(gzip.compress(SCRIPT))
    (page / "assets" / "plain.css").write_bytes(b"a{}")
    (page / "assets" / "notes.txt").write_bytes(b"not for browsers")
    (tmp_path / "secret.js").write_bytes(b"secret")
    (page / "assets" / "link-12345678.js").symlink_to(tmp_path / "secret.js")
    return page


async def fetch(client: Client, path: str, **headers: str) -> tuple[int, Mapping[str, str], bytes]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with client.request("GET", path, headers=sent, auto_decompress=False) as answer:
        return answer.status, answer.headers, await answer.read()


async def test_every_path_of_the_page_has_its_html_without_a_login(folder: Path) -> None:
    async with serve_script(page_folder=folder) as client, Client(client.base, "") as anyone:
        sessions = ("/", "/s/ses_1", "/s/ses_1/at/7", "/compare/a/b", "/new")
        for path in (*sessions, "/inbox", "/inbox/ses_1/call_7", "/settings/models"):
            status, headers, data = await fetch(anyone, path)
            assert (status, data) == (200, HTML), path
            assert headers["content-type"] == "text/html; charset=utf-8"
            assert headers["cache-control"] == "no-cache" and headers["x-content-type-options"] == "nosniff"
            policy = headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self';") and "unsafe" not in policy
            assert (
                "frame-ancestors 'none'" in policy
                and "require-trusted-types-for 'script'; trusted-types 'none'" in policy
            )
            again = await fetch(anyone, path, if_none_match=headers["etag"])
            assert (again[0], again[2], again[1]["etag"]) == (304, b"", headers["etag"])
        for path in ("/sessions", "/usage"):
            assert (await fetch(anyone, path))[0] == 401, path


async def test_a_file_with_a_hash_in_its_name_is_cached_for_ever_and_sent_compressed(folder: Path) -> None:
    async with serve_script(page_folder=folder) as client, Client(client.base, "") as anyone:
        path = "/assets/app-1a2B_c4d.js"
        status, headers, data = await fetch(anyone, path, accept_encoding="br, gzip;q=0.5")
        assert (status, headers["content-encoding"], gzip.decompress(data)) == (200, "gzip", SCRIPT)
        assert headers["content-type"] == "text/javascript; charset=utf-8"
        assert headers["cache-control"] == "public, max-age=31536000, immutable"
        assert headers["vary"].lower() == "accept-encoding"
        for refused in ("identity", "gzip;q=0", "gzip; q=0.0, br", ""):
            status, plain, data = await fetch(anyone, path, accept_encoding=refused)
            assert (status, data) == (200, SCRIPT) and "content-encoding" not in plain
            assert plain["etag"] != headers["etag"]
        known = f'"other", W/{headers["etag"]}'
        assert (await fetch(anyone, path, accept_encoding="gzip", if_none_match=known))[0] == 304
        assert (await fetch(anyone, path, accept_encoding="identity", if_none_match=known))[0] == 200
        for path in ("/assets/plain.css", "/favicon.svg"):
            status, headers, _ = await fetch(anyone, path)
            assert (status, headers["cache-control"]) == (200, "no-cache"), path


async def test_no_file_outside_of_the_page_is_sent(folder: Path) -> None:
    async with serve_script(page_folder=folder) as client:
        hostile = (
            "/assets/../../secret.js",
            "/assets/..%2f..%2fsecret.js",
            "/assets/%2e%2e/%2e%2e/secret.js",
            "/assets//secret.js",
            "/assets/..%5c..%5csecret.js",
            f"/assets/{folder.parent}/secret.js",
            "/assets/link-12345678.js",
            "/assets/notes.txt",
            "/assets/app-1a2B_c4d.js.gz",
            "/assets/app-1a2B_c4d.js%00",
            "/assets/",
            "/export.html",
            "/index.html",
        )
        for path in hostile:
            status, _, data = await fetch(client, path)
            assert status == 404 and b"secret" not in data, path


async def test_a_new_build_replaces_the_files_and_a_lost_file_is_named(folder: Path) -> None:
    files = StaticFiles(folder)
    assert files.find("/assets/app-1a2B_c4d.js")
    new = folder / "index.html.new"
    new.write_bytes(HTML + b"2")
    new.replace(folder / "index.html")
    assert not files.find("/assets/new-12345678.js")
    (folder / "assets" / "new-12345678.js").write_bytes(b"new")  # builds write the assets before the page or after it
    assert files.find("/assets/new-12345678.js")
    async with serve_script(page_folder=folder) as client:
        assert (await fetch(client, "/"))[2] == HTML + b"2"
        (folder / "assets" / "plain.css").unlink()
        assert "reload" in (await client.problem("GET", "/assets/plain.css", status=404))["message"]


async def test_a_page_that_is_not_built_says_how_to_build_it(tmp_path: Path) -> None:
    async with serve_script(page_folder=tmp_path / "nothing") as client, Client(client.base, "") as anyone:
        status, _, data = await fetch(anyone, "/")
        assert status == 200 and b"<code>make setup</code>" in data
        await client.problem("GET", "/assets/app-1a2B_c4d.js", status=404)


def test_only_the_page_and_the_login_are_public() -> None:
    assert is_public("/s/a/b", "GET") and is_public("/login", "POST") and is_public("/assets/a.js", "HEAD")
    for path in ("/v1/sessions", "/sx", "/s", "/inboxes", "/docs", "/assets", "//", "/v1/../s/x"):
        assert not is_public(path, "GET"), path
    for path in ("/", "/s/a", "/assets/a.js", "/health", "/v1/me"):
        assert not is_public(path, "POST"), path


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("/", "./"),
        ("/s/ses_1/at/7", "./s/ses_1/at/7"),
        ("/inbox", "./inbox"),
        ("//evil.example", "./"),
        ("/s/..//evil.example", "./"),
        ("/s//evil.example", "./"),
        ("https://evil.example/s/", "./"),
        ("/\\evil.example", "./"),
        ("/s/a\r\nset-cookie: b=c", "./"),
        ("/v1/sessions", "./"),
        ("", "./"),
    ],
)
def test_a_login_leads_to_a_path_of_the_page_only(path: str, address: str) -> None:
    assert build_redirect(path) == address
