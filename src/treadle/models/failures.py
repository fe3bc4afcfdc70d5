"""What a provider's refusal means: status, headers and body to one `ModelError`. Pure.

The message says what happened and what to do, and never holds a secret. Nothing is retried here. Imported when
the first failure comes: its patterns take time to compile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

import msgspec

from treadle.errors import ModelError, ModelErrorKind
from treadle.models.reports import ErrorSource

LONGEST_WAIT = 3600.0
"""A provider that asks for a longer wait than this has run out of quota, not of breath."""

_TOO_LONG = re.compile(
    r"context.?length|context.?window|context.?size|maximum context|prompt is too long|too many tokens"
    r"|input is too long|input length|reduce the length|exceeds? the (?:available|maximum) (?:context|number)"
    r"|max_tokens.{0,40}exceed|request_too_large|string_above_max_length|token limit|larger than the context",
    re.IGNORECASE,
)
_FILTERED = re.compile(
    r"content.?filter|content.?policy|content management policy|responsible.?ai|safety system|moderation"
    r"|flagged|PROHIBITED_CONTENT|bio_policy|misalignment_policy",
    re.IGNORECASE,
)
_OUT_OF_QUOTA = re.compile(
    r"insufficient.?quota|insufficient.?(?:balance|credits?|funds)|credit balance is too low"
    r"|exceeded your current quota|billing.?(?:details|error|not.?active|hard)|out of credits|payment required"
    r"|(?:monthly|weekly|daily) (?:usage |spend(?:ing)? )?limit|usage limit (?:has been )?reached",
    re.IGNORECASE,
)
_BAD_KEY = re.compile(
    r"invalid.?api.?key|api.?key.?(?:is )?(?:not valid|invalid|expired)|incorrect api key|no api key"
    r"|authentication|unauthorized|API_KEY_INVALID|missing api key",
    re.IGNORECASE,
)
_WAIT = re.compile(
    r"(?:try again|retry|available|resets?)(?: \w+)? (?:in|after):? ?((?:\d+(?:\.\d+)? ?(?:milliseconds?|ms"
    r"|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)(?![a-z]) ?,?(?:and )?)+)",
    re.IGNORECASE,
)
_DELAY = re.compile(r'"retryDelay":\s*"(\d+(?:\.\d+)?)s"')
_PIECE = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]+)", re.IGNORECASE)
_UNITS = {"ms": 0.001, "mil": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def classify_response(status: int, headers: Mapping[str, str], body: bytes, source: ErrorSource) -> ModelError:
    """The error for an HTTP answer other than 200."""
    said = extract_message(body) or f"HTTP {status}"
    text = body[:20_000].decode("utf-8", "replace")
    wait = parse_retry_after(headers, text)
    kind, retryable = _kind(status, text)
    if status == 429 and kind in ("overloaded", "quota") and wait is not None:
        # Gemini says "quota" for its limit a minute, others say "rate limit" for one that ends in days.
        retryable = wait <= LONGEST_WAIT and "insufficient" not in text
        kind = "overloaded" if retryable else "quota"
    message = _sentence(kind, status, said, wait, source)
    return ModelError(source.redact(message), kind=kind, retryable=retryable, retry_after=wait)


def classify_stream_error(error: object, source: ErrorSource) -> ModelError:
    """The error for a failure reported in the middle of a stream that began well."""
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
        status = next((code for word, code in _STATUS_OF.items() if word in text), 500)
    failure = classify_response(status, {}, body, source)
    failure.retryable = failure.retryable or failure.kind == "internal"
    return failure


_STATUS_OF = {
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


def _kind(status: int, text: str) -> tuple[ModelErrorKind, bool]:
    """The kind of failure, and whether the same request may work a little later."""
    if status in (400, 404, 413, 422, 500) and _TOO_LONG.search(text):
        return "too_long", False
    if status == 429 and "request too large" in text.lower():
        return "too_long", False
    if status in (400, 402, 403, 429) and _OUT_OF_QUOTA.search(text):
        return "quota", False
    if status in (400, 403, 422) and _FILTERED.search(text):
        return "content_filter", False
    if status in (401, 403, 407) or (status == 400 and _BAD_KEY.search(text)):
        return "auth", False
    match status:
        case 402:
            return "quota", False
        case 413:
            return "too_long", False
        case 429 | 503 | 529:
            return "overloaded", True
        case 408 | 425 | 502 | 504 | 520 | 521 | 522 | 523 | 524:
            return "overloaded", True
        case 501 | 505:
            return "bad_request", False
        case _ if status >= 500:
            return "internal", True
        case 409:
            return "overloaded", True
        case _:
            return "bad_request", False


def _sentence(kind: ModelErrorKind, status: int, said: str, wait: float | None, source: ErrorSource) -> str:
    who = f"{source.provider} ({source.address})"
    said = said if len(said) <= 600 else said[:600] + "…"
    match kind:
        case "auth" if status == 407:
            what = f"the proxy on the way to {who} wants credentials (407)"
            todo = "put them into HTTPS_PROXY, as http://NAME:PASSWORD@HOST:PORT"
        case "auth":
            what = f"{who} refused the credentials ({status})"
            todo = f"check {source.key_variable}" if source.key_variable else "check the key and what it may use"
        case "quota":
            what = f"{who} says the quota is used up ({status})"
            todo = "add credit, wait until it is renewed, or use another model"
        case "overloaded":
            what = f"{who} is busy or limits the rate ({status})"
            todo = f"it asks to wait {wait:g} s" if wait is not None else "try again in a while"
        case "too_long":
            what = f"the request is too long for {who} ({status})"
            todo = "compact the session, offer fewer tools, or use a model with a larger window"
        case "content_filter":
            what = f"{who} refused the content ({status})"
            todo = "rephrase the request; the same one will be refused again"
        case "bad_request" if status == 404:
            what = f"{who} does not know this model or address (404)"
            todo = "check the model's name and the base URL"
        case "bad_request" if status < 400:
            what = f"{who} does not answer like a model ({status})"
            todo = "check the base URL: this may be a login page, or an address that has moved"
        case "bad_request":
            what = f"{who} did not accept the request ({status})"
            todo = "change the model, its parameters or the tools; the same request will fail again"
        case _:
            what = f"{who} failed ({status})"
            todo = "try again; nothing of the session is lost"
    return f"{what}: {said} — {todo}"


def extract_message(body: bytes) -> str:
    """The provider's own words in an error body, whatever its shape."""
    text = body[:20_000].decode("utf-8", "replace").strip()
    try:
        found = _words(msgspec.json.decode(body.decode("utf-8", "replace")))
    except msgspec.DecodeError:
        found = ""
    if found:
        return found
    if text[:1] == "<":
        title = re.search(r"<title>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
        return f"an HTML page: {title[1].strip()}" if title else "an HTML page"
    return " ".join(text.split())[:600]


def _words(value: Any) -> str:
    match value:
        case str():
            return value
        case {"error": inner} if inner:
            return _words(inner)
        case {"message": str(message), **rest}:
            match rest.get("metadata"):
                case {"raw": str(raw)} if raw:  # what stood behind OpenRouter said
                    return f"{message}: {raw}"
                case _:
                    return message
        case {"detail": inner} if inner:
            return _words(inner)
        case {"msg": str(message)}:
            return message
        case [first, *_]:
            return _words(first)
        case _:
            return ""


def parse_retry_after(headers: Mapping[str, str], text: str = "") -> float | None:
    """How many seconds the provider asks to wait: from its headers, or from what its message says."""
    if milliseconds := headers.get("retry-after-ms"):
        try:
            return max(0.0, float(milliseconds) / 1000)
        except ValueError:
            pass
    if value := headers.get("retry-after"):
        try:
            return max(0.0, float(value))
        except ValueError:
            pass
        try:
            at = parsedate_to_datetime(value)
        except ValueError:
            pass
        else:
            at = at if at.tzinfo else at.replace(tzinfo=UTC)
            return max(0.0, (at - datetime.now(UTC)).total_seconds())
    if found := _DELAY.search(text):
        return float(found[1])
    if found := _WAIT.search(text):
        return sum(float(n) * _unit(unit) for n, unit in _PIECE.findall(found[1]))
    return None


def _unit(word: str) -> float:
    word = word.lower()
    return _UNITS.get(word) or _UNITS.get(word[:3]) or _UNITS[word[0]]
