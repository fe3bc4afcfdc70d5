"""Log a browser in by a link or a token, log it out, and say who is logged in and which tokens there are."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, Field

from treadle import Grant, __version__
from treadle.server.guard import Refusal, build_wrong_token_refusal
from treadle.server.logins import COOKIE_NAME, COOKIE_SECONDS, TICKET_SECONDS
from treadle.server.public_paths import build_redirect
from treadle.server.service import CurrentService, Service, StrictBody, Viewer
from treadle.server.tokens import RIGHT_NAMES, Right, Token

router = APIRouter(tags=["server"])
USED_UP = "login=used-up"
"""Tells the page that the link it was opened with does not work."""


class TicketView(BaseModel):
    """A link that logs a browser in once, within ten minutes."""

    path: str
    expires_in: float


class LoginBody(StrictBody):
    token: str = Field(min_length=1, max_length=1000)


class MeView(BaseModel):
    """Who is logged in, what the person may do, and the version of the server."""

    name: str
    rights: list[Right]
    version: str


class GrantView(BaseModel):
    """What a token narrows: the tier and the patterns of every session that is created with it."""

    tier: str
    tools: list[str]
    approve: list[str]
    ask: list[str]
    forbid: list[str]


class TokenView(BaseModel):
    """A token without its value. `current` marks the one of this request."""

    name: str
    rights: list[Right]
    grant: GrantView | None
    current: bool


@router.post("/v1/tickets", status_code=201)
async def create_ticket(service: CurrentService, token: Viewer) -> TicketView:
    """Create a login link for another browser of the same person."""
    _require_tokens(service)
    return TicketView(path=f"/login?ticket={await service.tokens.issue_ticket(token)}", expires_in=TICKET_SECONDS)


@router.get("/login", include_in_schema=False)
async def log_in_by_link(
    service: CurrentService,
    request: Request,
    ticket: Annotated[str, Query(max_length=200)] = "",
    path: Annotated[str, Query(max_length=2000, alias="next")] = "/",
    accepted: Annotated[str, Header(alias="accept")] = "",
) -> Response:
    """Log in with a link: set the cookie and go to the page. A link works once.

    A browser with a link that does not work gets to the page too, which says so and asks for a token.
    """
    token = await service.tokens.redeem_ticket(ticket)
    if token is None and "text/html" in accepted.lower():
        address = build_redirect(path)
        return RedirectResponse(f"{address}?{USED_UP}" if ticket else address, status_code=303)
    if token is None:
        raise Refusal(
            403, "used_up", "this login link was used already, or is too old", "`treadle serve` prints a new one"
        )
    answer = RedirectResponse(build_redirect(path), status_code=303)
    _set_cookie(answer, request, await service.tokens.build_cookie(token), int(COOKIE_SECONDS))
    return answer


@router.post("/login", status_code=204)
async def log_in(service: CurrentService, request: Request, body: LoginBody) -> Response:
    """Log in with a token: set the cookie. Wrong tokens are limited as in any other request."""
    _require_tokens(service)
    client, wrong = request.client.host if request.client is not None else "", service.tokens.wrong
    token = service.tokens.find_by_value(body.token)
    if token is None and not wrong.seconds_until_retry(client):
        token = await service.tokens.find_shared(body.token)
    if token is None:
        if wait := wrong.seconds_until_retry(client) or await wrong.record(client):
            raise build_wrong_token_refusal(wait)
        raise Refusal(
            401,
            "unauthorized",
            "there is no such token",
            "`treadle serve` prints the file of its tokens",
            field="token",
        )
    answer = Response(status_code=204)
    _set_cookie(answer, request, await service.tokens.build_cookie(token), int(COOKIE_SECONDS))
    return answer


@router.post("/logout", status_code=204)
async def log_out(request: Request) -> Response:
    """Log out: clear the cookie."""
    answer = Response(status_code=204)
    _set_cookie(answer, request, "", 0)
    return answer


@router.get("/v1/me")
async def get_me(token: Viewer) -> MeView:
    """Show who is logged in, and what the person may do."""
    return MeView(name=token.name, rights=_list_rights(token), version=__version__)


@router.get("/v1/tokens")
async def list_tokens(service: CurrentService, token: Viewer) -> list[TokenView]:
    """List the tokens of this node, that of the request, and what each may do. Their values are never shown."""
    own = service.tokens.list_tokens()
    if token.id not in ("", *(one.id for one in own)):  # that of another node
        own = (*own, token)
    return [
        TokenView(name=one.name, rights=_list_rights(one), grant=show_grant(one.grant), current=one.id == token.id)
        for one in own
    ]


def _require_tokens(service: Service) -> None:
    if not service.tokens.has_tokens:
        raise Refusal(409, "conflict", "this server needs no login")


def _set_cookie(answer: Response, request: Request, value: str, seconds: int) -> None:
    answer.set_cookie(
        COOKIE_NAME, value, max_age=seconds, httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )


def _list_rights(token: Token) -> list[Right]:
    return [right for right in RIGHT_NAMES if right in token.rights]


def show_grant(grant: Grant | None) -> GrantView | None:
    if grant is None:
        return None
    return GrantView(**{name: msgspec.to_builtins(getattr(grant, name)) for name in GrantView.model_fields})
