"""Answers every error as `{"error": {"type", "message", "hint"}}` with its status, without tracebacks or secrets.

Anthropic's clients get the form of their own protocol, with the same status.
"""

from __future__ import annotations

import logging
import re
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response, WebSocket
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.routing import Match
from starlette.websockets import WebSocketState

from treadle.errors import (
    AlreadyAnswered,
    BadInput,
    Conflict,
    Expired,
    ModelError,
    NotFound,
    StoreDamaged,
    StoreError,
    StoreReadOnly,
    StoreTooNew,
    TreadleError,
)
from treadle.server.guard import AsgiScope, Receive, Refusal, Send, build_error_body, is_anthropic, send_refusal

_logger = logging.getLogger("treadle.server")
RETRY_SECONDS = 5.0
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_MODEL_STATUSES = {"overloaded": 429, "quota": 429, "too_long": 400, "bad_request": 400, "content_filter": 400}
_MISSING = re.compile("missing required field `(.*)`")
NO_MODEL = "No model loaded. Load a model before running the agent."


class ErrorDetail(BaseModel):
    """What went wrong, and what to do about it."""

    type: str
    message: str
    hint: str = ""


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorDetail


_MEANINGS = {
    400: "malformed",
    401: "no or wrong token",
    403: "origin, host or rights",
    404: "unknown",
    405: "another method",
    409: "somebody else answered first, or the session is in another state",
    410: "expired",
    413: "too large",
    414: "the address is too long",
    415: "not JSON",
    422: "an invalid field, by its name",
    429: "too many; see Retry-After",
    500: "an internal error",
    502: "the model failed",
    503: "no model, or the server is shutting down",
}
# A reference, because FastAPI would build a model again for each status of each route at every start.
_BODY = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"content": _BODY, "description": meaning} for status, meaning in _MEANINGS.items()
}


def build_error_schemas() -> dict[str, Any]:
    """Build the OpenAPI components that `ERROR_RESPONSES` refer to."""
    schema = ErrorBody.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**schema.pop("$defs"), "Problem": schema}


def build_no_model_error() -> Refusal:
    """The error for a request when no model can answer it."""
    return Refusal(503, "no_model", NO_MODEL, "POST /v1/models/load, or start the server with a model that works")


def build_field_error(field: str, message: str) -> Refusal:
    """The error for a field with an invalid value."""
    return Refusal(422, "invalid_field", f"{field}: {message}", field=field)


def build_refusal(error: Exception) -> Refusal:
    """Turn an exception into the refusal that the client gets."""
    match error:
        case Refusal():
            return error
        case RequestValidationError() | WebSocketRequestValidationError():
            first, *others = error.errors()
            if first["type"] == "json_invalid":
                return Refusal(400, "malformed", "the body is not valid JSON")
            where = ".".join(str(piece) for piece in first["loc"] if piece not in ("body", "query", "path", "header"))
            also = f" (and {len(others)} more)" if others else ""
            return build_field_error(where or "the body", f"{first['msg']}{also}")
        case NotFound():
            return Refusal(404, "not_found", str(error), field=error.param)
        case Expired():
            return Refusal(410, "expired", str(error))
        case AlreadyAnswered():
            return Refusal(409, "already_answered", str(error), "the first answer counts")
        case Conflict():
            return Refusal(409, "conflict", str(error))
        case ModelError():
            status = _MODEL_STATUSES.get(error.kind, 502)
            wait = error.retry_after or (RETRY_SECONDS if status == 429 else 0)
            return Refusal(status, f"model_{error.kind}", str(error), retry_after=wait, field=error.param)
        case StoreTooNew():
            return Refusal(503, "store", str(error), "nothing was written; a node with a newer treadle can do this")
        case StoreDamaged() | StoreReadOnly():  # waiting does not help
            return Refusal(503, "store", str(error), "nothing was written")
        case StoreError():
            return Refusal(503, "store", str(error), "nothing that was recorded is lost", retry_after=5)
        case msgspec.ValidationError():
            # The field goes first here. msgspec names the place last, as in "… - at `$.messages[0]`".
            what, _, place = str(error).partition(" - at `$")
            where = place.rstrip("`").replace("[", ".").replace("]", "")
            if missing := _MISSING.search(what):
                where, what = f"{where}.{missing[1]}", "Field required"
            return build_field_error(where.strip(".") or "the body", what)
        case msgspec.DecodeError():
            return Refusal(400, "malformed", str(error))
        case BadInput():
            return Refusal(400, "bad_request", str(error), field=error.param)
        case TreadleError():
            return Refusal(400, "bad_request", str(error))
        case _:
            _logger.exception("a request failed with an internal error", exc_info=error)
            return Refusal(500, "internal", "an internal error; nothing that was recorded is lost")


def build_error_response(refusal: Refusal, scope: AsgiScope) -> JSONResponse:
    """The response of a refusal, in the form that the client of the request expects."""
    headers = {"retry-after": str(max(1, round(refusal.retry_after)))} if refusal.retry_after else None
    return JSONResponse(build_error_body(refusal, anthropic=is_anthropic(scope)), refusal.status, headers)


def describe_validation_error(error: ValidationError, default_field: str) -> str:
    """The first problem of a value that did not validate, with its field."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or default_field}: {first['msg']}"


def install_error_handlers(app: FastAPI) -> None:
    """Answer every exception in this form."""

    async def answer_error(connection: HTTPConnection, error: Exception) -> JSONResponse | None:
        refusal = build_refusal(error)
        if not isinstance(connection, WebSocket):
            return build_error_response(refusal, connection.scope)
        if connection.application_state is WebSocketState.CONNECTING:
            await send_refusal(connection.scope, connection.send, refusal)
        return None

    async def answer_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:  # a route knows only its own method
            methods = [
                method
                for method in METHODS
                if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in app.routes)
            ]
            error.headers = {"allow": ", ".join(["OPTIONS", *(["HEAD"] if "GET" in methods else []), *methods])}
            if request.method == "OPTIONS":
                return Response(status_code=204, headers=error.headers)
        kinds = {404: "not_found", 405: "method_not_allowed"}
        refusal = Refusal(error.status_code, kinds.get(error.status_code, "bad_request"), str(error.detail))
        answer = build_error_response(refusal, request.scope)
        answer.headers.update(error.headers or {})
        return answer

    invalid = (RequestValidationError, WebSocketRequestValidationError)
    for kind in (TreadleError, Refusal, msgspec.MsgspecError, *invalid, Exception):
        app.add_exception_handler(kind, answer_error)  # pyright: ignore[reportArgumentType]
    app.add_exception_handler(HTTPException, answer_http_error)

    async def answer_unknown_route(scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send_refusal(scope, send, Refusal(404, "not_found", "Not Found"))
        else:
            raise HTTPException(404)

    app.router.default = answer_unknown_route
