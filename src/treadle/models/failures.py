"""Turns a provider's refusal into one `ModelError`, from its status, headers and body. Pure.

The message says what happened and what to do, and never holds a secret. Nothing is retried here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any, cast

import msgspec
from msgspec import Struct

from treadle.errors import LONGEST_WAIT, ModelError, ModelErrorKind, describe_wait

# These are compiled when the first failure comes, not at import: compiling them takes time.
_TOO_LONG = (
    r"context.?length|context.?window|context.?size|maximum context|prompt is too long|too many tokens"
    r"|input is too long|input length|reduce the length|exceeds? the (?:available|maximum) (?:context|number)"
    r"|max_tokens.{0,40}exceed|request_too_large|string_above_max_length|token limit|larger than the context"
)
_FILTERED = (
    r"content.?filter|content.?policy|content management policy|responsible.?ai|safety system|moderation"
    r"|flagged|PROHIBITED_CONTENT|bio_policy|misalignment_policy"
)
_OUT_OF_QUOTA = (
    r"insufficient.?quota|insufficient.?(?:balance|credits?|funds)|credit balance is too low"
    r"|exceeded your current quota|billing.?(?:details|error|not.?active|hard)|out of credits|payment required"
    r"|(?:monthly|weekly|daily) (?:usage |spend(?:ing)? )?limit|usage limit (?:has been )?reached"
)
_BAD_KEY = (
    r"invalid.?api.?key|api.?key.?(?:is )?(?:not valid|invalid|expired)|incorrect api key|no api key"
    r"|authentication|unauthorized|API_KEY_INVALID|missing api key"
)
_WAIT = (
    r"(?:try again|retry|available|resets?)(?: \w+)? (?:in|after):? ?((?:\d+(?:\.\d+)? ?(?:milliseconds?|ms"
    r"|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)(?![a-z]) ?,?(?:and )?)+)"
)
_DELAY = r'"retryDelay":\s*"(\d+(?:\.\d+)?)s"'
_DURATION = r"(\d+(?:\.\d+)?) ?([a-z]+)"
_UNITS = {"ms": 0.001, "mil": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class ReportedFailure(Exception):
    """A provider reported a failure in the middle of a stream that began well. `error` is the report."""

    def __init__(self, error: object) -> None:
        super().__init__()
        self.error = error


class _ErrorDetail(Struct):
    param: str | None = None


class _ErrorBody(Struct):
    error: _ErrorDetail | None = None


class ErrorSource(Struct, frozen=True):
    """The server that an error message is about, and the secrets that the message must not show."""

    provider: str
    address: str
    key_variable: str = ""
    secrets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"ErrorSource({self.provider!r}, {self.address!r})"

    def redact(self, text: str) -> str:
        """`text` without any secret in it."""
        for secret in self.secrets:
            if secret:
                text = text.replace(secret, "[secret]")
        return text


def classify_response(status: int, headers: Mapping[str, str], body: bytes, source: ErrorSource) -> ModelError:
    """The error for an HTTP response other than 200."""
    said = extract_message(body) or f"HTTP {status}"
    text = body[:20_000].decode("utf-8", "replace")
    wait = parse_retry_after(headers, text)
    kind, retryable = _classify(status, text)
    if status == 429 and kind in ("overloaded", "quota") and wait is not None:
        # Gemini says "quota" for its limit a minute, others say "rate limit" for one that ends in days.
        retryable = wait <= LONGEST_WAIT and "insufficient" not in text
        kind = "overloaded" if retryable else "quota"
    happened, advice = _explain(kind, status, wait, source)
    said = said if len(said) <= 600 else said[:600] + "…"
    message = source.redact(f"{happened} ({status}): {said} — {advice}")
    failure = ModelError(message, kind=kind, retryable=retryable, retry_after=wait, param=extract_param(body))
    failure.status = status
    return failure


def classify_stream_error(error: object, source: ErrorSource) -> ModelError:
    """The error for a failure that was reported in the middle of a stream."""
    body = msgspec.json.encode(error)
    status = 0
    if isinstance(error, Mapping):
        fields = cast("Mapping[str, Any]", error)
        for name in ("status", "code", "status_code"):
            value = fields.get(name)
            if isinstance(value, int) and 400 <= value < 600:
                status = value
    text = body.decode("utf-8", "replace")
    if not status:
        status = next((code for word, code in _STATUS_FOR_WORD.items() if word in text), 500)
    failure = classify_response(status, {}, body, source)
    failure.retryable = failure.retryable or failure.kind == "internal"
    return failure


_STATUS_FOR_WORD = {
    "_policy": 400,
    "content_filter": 400,
    "overloaded": 529,
    "rate_limit": 429,
    "authentication": 401,
    "permission": 403,
    "not_found": 404,
    "invalid_request": 400,
    "invalid_prompt": 400,
    "request_too_large": 413,
    "billing": 402,
    "timeout": 504,
}


def _classify(status: int, text: str) -> tuple[ModelErrorKind, bool]:
    """The kind of failure, and whether the same request may succeed a little later."""
    if status in (400, 404, 413, 422, 500) and re.search(_TOO_LONG, text, re.IGNORECASE):
        return "too_long", False
    if status == 429 and "request too large" in text.lower():
        return "too_long", False
    if status in (400, 402, 403, 429) and re.search(_OUT_OF_QUOTA, text, re.IGNORECASE):
        return "quota", False
    if status in (400, 403, 422) and re.search(_FILTERED, text, re.IGNORECASE):
        return "content_filter", False
    if status in (401, 403, 407) or (status == 400 and re.search(_BAD_KEY, text, re.IGNORECASE)):
        return "auth", False
    match status:
        case 402:
            return "quota", False
        case 413:
            return "too_long", False
        case 408 | 409 | 425 | 429 | 502 | 503 | 504 | 520 | 521 | 522 | 523 | 524 | 529:
            return "overloaded", True
        case 501 | 505:
            return "bad_request", False
        case _ if status >= 500:
            return "internal", True
        case _:
            return "bad_request", False


def _explain(kind: ModelErrorKind, status: int, wait: float | None, source: ErrorSource) -> tuple[str, str]:
    """What happened, and what to do about it."""
    server = f"{source.provider} ({source.address})"
    match kind:
        case "auth" if status == 407:
            return (
                f"the proxy on the way to {server} wants credentials",
                "put them into HTTPS_PROXY, as http://NAME:PASSWORD@HOST:PORT",
            )
        case "auth":
            advice = f"check {source.key_variable}" if source.key_variable else "check the key and its permissions"
            return f"{server} refused the credentials", advice
        case "quota":
            renewed = f"wait until it is renewed in {describe_wait(wait)}" if wait else "wait until it is renewed"
            return f"{server} says the quota is used up", f"add credit, {renewed}, or use another model"
        case "overloaded":
            advice = f"it asks to wait {describe_wait(wait)}" if wait is not None else "try again in a while"
            return f"{server} is busy or limits the rate", advice
        case "too_long":
            return (
                f"the request is too long for {server}",
                "compact the session, offer fewer tools, or use a model with a larger window",
            )
        case "content_filter":
            return f"{server} refused the content", "rephrase the request; the same one will be refused again"
        case "bad_request" if status == 404:
            return f"{server} does not know this model or address", "check the model's name and the base URL"
        case "bad_request" if status < 400:
            return (
                f"{server} does not answer like a model",
                "check the base URL: this may be a login page, or an address that has moved",
            )
        case "bad_request":
            return (
                f"{server} did not accept the request",
                "change the model, its parameters or the tools; the same request will fail again",
            )
        case _:
            return f"{server} failed", "try again; nothing of the session is lost"


def extract_message(body: bytes) -> str:
    """The provider's own words in an error body of any shape."""
    text = body[:20_000].decode("utf-8", "replace").strip()
    try:
        found = _find_message(msgspec.json.decode(body.decode("utf-8", "replace")))
    except (msgspec.DecodeError, RecursionError):
        found = ""
    if found:
        return found
    if text[:1] == "<":
        title = re.search(r"<title>([^<]*)</title>", text, re.IGNORECASE)
        return f"an HTML page: {title[1].strip()}" if title else "an HTML page"
    return " ".join(text.split())[:600]


def extract_param(body: bytes) -> str:
    """The field of the request that an error body in OpenAI's form names."""
    try:
        error = msgspec.json.decode(body, type=_ErrorBody).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return error.param or "" if error is not None else ""


def _find_message(value: Any) -> str:
    match value:
        case str():
            return value
        case {"error": inner} if inner:
            return _find_message(inner)
        case {"message": str(message), **rest}:
            match rest.get("metadata"):
                case {"raw": str(raw)} if raw:  # the words of the provider behind OpenRouter
                    return f"{message}: {raw}"
                case _:
                    return message
        case {"detail": inner} if inner:
            return _find_message(inner)
        case {"msg": str(message)}:
            return message
        case [first, *_]:
            return _find_message(first)
        case _:
            return ""


def parse_retry_after(headers: Mapping[str, str], text: str = "") -> float | None:
    """How many seconds the provider asks to wait, in its headers or in its message."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            wait = float(headers.get(name, "")) * scale
        except ValueError:
            continue
        if isfinite(wait):
            return max(0.0, wait)
    if date := headers.get("retry-after"):
        from datetime import UTC, datetime
        from email.utils import parsedate_to_datetime

        try:
            at = parsedate_to_datetime(date)
        except ValueError:
            pass
        else:
            at = at if at.tzinfo else at.replace(tzinfo=UTC)
            return max(0.0, (at - datetime.now(UTC)).total_seconds())
    if found := re.search(_DELAY, text):
        return float(found[1])
    if found := re.search(_WAIT, text, re.IGNORECASE):
        durations = re.findall(_DURATION, found[1].lower())
        return sum(
            float(number) * (_UNITS.get(unit) or _UNITS.get(unit[:3]) or _UNITS[unit[0]]) for number, unit in durations
        )
    return None
