"""Health, readiness, metrics, the login link, and a page that says that the server runs."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from pydantic import BaseModel

from treadle.server.guard import COOKIE_NAME, COOKIE_SECONDS, TICKET_SECONDS, Refusal
from treadle.server.readiness import OK
from treadle.server.service import CurrentService, Viewer

router = APIRouter(tags=["server"])
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>treadle</title>
<h1>treadle</h1>
<p>The server runs. Log in to see <a href="docs">the API</a>: open the login link that
<code>treadle serve</code> printed, or send a token.</p>
</html>
"""


class HealthView(BaseModel):
    status: str = "ok"


class ReadinessView(BaseModel):
    """Each of `checks` is `ok` or says what is wrong. `problems` are those that are wrong."""

    ready: bool
    problems: dict[str, str]
    checks: dict[str, str]


class TicketView(BaseModel):
    """A link that logs a browser in once, within ten minutes."""

    path: str
    expires_in: float


@router.get("/health")
async def check_health() -> HealthView:
    """The process is alive."""
    return HealthView()


@router.get("/v1/health")
async def check_token(token: Viewer) -> HealthView:
    """The process is alive, and the token is valid."""
    return HealthView()


@router.get("/ready", responses={503: {"model": ReadinessView}})
async def check_readiness(service: CurrentService, token: Viewer, response: Response) -> ReadinessView:
    """The store takes facts, its disk has room, and the models can be reached. Otherwise 503 with the reasons."""
    checks = await service.readiness.check()
    if service.is_draining:
        checks["server"] = "is shutting down"
    problems = {name: found for name, found in checks.items() if found != OK}
    if problems:
        response.status_code = 503
    return ReadinessView(ready=not problems, problems=problems, checks=checks)


@router.get("/metrics", response_class=PlainTextResponse)
async def get_metrics(service: CurrentService, token: Viewer) -> PlainTextResponse:
    """Counters in Prometheus' text format."""
    await asyncio.to_thread(import_module, "prometheus_client")  # slow the first time, and streams must not wait for it
    text = service.observer.render_metrics(await service.read_gauges())
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/", response_class=HTMLResponse, include_in_schema=False)
async def show_page() -> Response:
    """A page that says that the server runs."""
    return HTMLResponse(PAGE)


@router.post("/v1/tickets", status_code=201)
async def create_ticket(service: CurrentService, token: Viewer) -> TicketView:
    """Create a login link for another browser of the same person."""
    if not service.tokens.has_tokens:
        raise Refusal(409, "conflict", "this server needs no login")
    return TicketView(path=f"/login?ticket={service.tokens.issue_ticket(token)}", expires_in=TICKET_SECONDS)


@router.get("/login", include_in_schema=False)
async def log_in(
    service: CurrentService, request: Request, ticket: Annotated[str, Query(max_length=200)] = ""
) -> Response:
    """Log in with a link: set the cookie and go to the page. A link works once."""
    token = service.tokens.redeem_ticket(ticket)
    if token is None:
        raise Refusal(
            403, "used_up", "this login link was used already, or is too old", "`treadle serve` prints a new one"
        )
    answer = RedirectResponse("./", status_code=303)
    answer.set_cookie(
        COOKIE_NAME,
        service.tokens.sign_cookie(token),
        max_age=int(COOKIE_SECONDS),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer
