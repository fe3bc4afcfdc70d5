"""The web page: one HTML file for all of its paths, and the files that it loads."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Request
from fastapi.responses import HTMLResponse, Response

from treadle.errors import NotFound
from treadle.server.guard import get_path
from treadle.server.public_paths import ASSETS, PAGE_FOLDERS, PAGE_PATHS, ROOT_FILES
from treadle.server.service import CurrentService
from treadle.server.static_files import INDEX, StaticFile

router = APIRouter(include_in_schema=False)
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
NOT_BUILT = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>treadle</title>
<h1>treadle</h1>
<p>The server runs, but its web page is not built. Build it with <code>make setup</code> in the source checkout and
reload it. <code>/docs</code> describes the API to those who have logged in.</p>
</html>
"""
Accepted = Annotated[str, Header(alias="accept-encoding")]
Known = Annotated[str, Header(alias="if-none-match")]


async def show_page(service: CurrentService, accepted: Accepted = "", known: Known = "") -> Response:
    """Show the page. Its script reads the address, so every path of the page has the same HTML."""
    file = service.page.find(INDEX)
    if file is None:
        return HTMLResponse(NOT_BUILT, headers={"cache-control": "no-cache"})
    answer = _build_response(file, accepted, known)
    answer.headers["content-security-policy"] = CONTENT_POLICY
    return answer


async def send_file(service: CurrentService, request: Request, accepted: Accepted = "", known: Known = "") -> Response:
    """Send a file that the page loads."""
    file = service.page.find(get_path(request.scope))
    if file is None:
        raise NotFound("the page has no such file; reload the page to get its current files")
    return _build_response(file, accepted, known)


for _path in (*PAGE_PATHS, *(f"{folder}{{rest:path}}" for folder in PAGE_FOLDERS)):
    router.add_api_route(_path, show_page)
for _path in (*ROOT_FILES, f"{ASSETS}{{rest:path}}"):
    router.add_api_route(_path, send_file)


def _build_response(file: StaticFile, accepted: str, known: str) -> Response:
    encoding = "gzip" if file.is_compressed and accepts_gzip(accepted) else ""
    try:
        data, tag = file.read(encoding)
    except OSError:
        raise NotFound("the page was built anew; reload it to get its current files") from None
    headers = {"cache-control": file.cache, "etag": tag, "vary": "accept-encoding"}
    if tag in list_tags(known):
        return Response(status_code=304, headers=headers)
    if encoding:
        headers["content-encoding"] = encoding
    return Response(data, media_type=file.media_type, headers=headers)


def list_tags(header: str) -> list[str]:
    return [tag.strip().removeprefix("W/") for tag in header.split(",")]


def accepts_gzip(header: str) -> bool:
    for part in header.lower().split(","):
        name, _, options = part.partition(";")
        if name.strip() in ("gzip", "*"):
            return options.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
