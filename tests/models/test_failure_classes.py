"""Refusals are classified by what to do about them, in any wording."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from treadle.errors import describe_wait
from treadle.models.failures import (
    ErrorSource,
    classify_response,
    classify_stream_error,
    extract_message,
    parse_retry_after,
)

WHO = ErrorSource("acme", "api.acme.test", "ACME_KEY", ("sk-secret",))


def openai(message: str, code: str | None = None, kind: str = "invalid_request_error") -> bytes:
    return json.dumps({"error": {"message": message, "type": kind, "code": code}}).encode()


def anthropic(message: str, kind: str = "invalid_request_error") -> bytes:
    return json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()


QUOTA = "You exceeded your current quota, please check your plan and billing details."
TOO_MANY = "Request too large for m on tokens per min (TPM): Limit 3, Requested 4"
FILTERED = "The response was filtered due to the prompt triggering content management policy"
FORBIDDEN = b'{"detail":[{"loc":["body","x"],"msg":"Extra inputs are not permitted"}]}'
BAD_KEY = b'[{"error":{"code":400,"message":"API key not valid","status":"INVALID_ARGUMENT"}}]'
LOADING = b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'


@pytest.mark.parametrize(
    ("status", "body", "kind", "retryable"),
    [
        (401, openai("Incorrect API key provided: sk-secret", "invalid_api_key"), "auth", False),
        (403, openai("Country not supported"), "auth", False),
        (400, BAD_KEY, "auth", False),
        (429, openai("Rate limit reached: Limit 3, visit https://x/account/billing"), "overloaded", True),
        (429, openai(QUOTA, "insufficient_quota"), "quota", False),
        (429, openai(f"{QUOTA} Please retry in 37.5s."), "overloaded", True),
        (429, openai("The usage limit has been reached, it resets in 16 days"), "quota", False),
        (429, openai(TOO_MANY), "too_long", False),
        (402, openai("Insufficient credits"), "quota", False),
        (400, anthropic("Your credit balance is too low"), "quota", False),
        (400, openai("This model's maximum context length is 8192 tokens"), "too_long", False),
        (400, openai("no", "context_length_exceeded"), "too_long", False),
        (400, anthropic("prompt is too long: 208310 tokens > 200000 maximum"), "too_long", False),
        (400, openai("the request exceeds the available context size"), "too_long", False),
        (400, b'{"error":"the input length exceeds the context length"}', "too_long", False),
        (413, b"<html><title>413 Request Entity Too Large</title></html>", "too_long", False),
        (400, openai(FILTERED, "content_filter"), "content_filter", False),
        (400, openai("Unknown parameter: 'foo'"), "bad_request", False),
        (422, FORBIDDEN, "bad_request", False),
        (404, openai("The model `x` does not exist", "model_not_found"), "bad_request", False),
        (500, openai("The server had an error", None, "server_error"), "internal", True),
        (502, b"<html>", "overloaded", True),
        (503, LOADING, "overloaded", True),
        (529, anthropic("Overloaded", "overloaded_error"), "overloaded", True),
        (504, b"", "overloaded", True),
        (418, b"", "bad_request", False),
        (307, b"", "bad_request", False),
    ],
)
def test_refusals_are_classified(status: int, body: bytes, kind: str, retryable: bool) -> None:
    error = classify_response(status, {}, body, WHO)
    assert (error.kind, error.retryable) == (kind, retryable)
    assert "acme (api.acme.test)" in str(error)
    assert " — " in str(error), "what to do"
    assert "sk-secret" not in str(error)


def test_a_proxy_that_wants_credentials_is_named() -> None:
    error = classify_response(407, {}, b"", WHO)
    assert (error.kind, error.retryable) == ("auth", False)
    assert "the proxy on the way" in str(error) and "HTTPS_PROXY" in str(error)


@pytest.mark.parametrize(
    ("headers", "text", "expected"),
    [
        ({"retry-after": "7"}, "", 7.0),
        ({"retry-after": "0.5"}, "", 0.5),
        ({"retry-after": "-3"}, "", 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, "", 1.5),
        ({"retry-after": "soon"}, "", None),
        ({}, "Please try again in 6m0s.", 360.0),
        ({}, "try again in 1.2s", 1.2),
        ({}, "Please try again in 20ms.", 0.02),
        ({}, "retry after 2 minutes", 120.0),
        ({}, "limit resets in 16 days", 16 * 86400.0),
        ({}, "Try again in 1h30m", 5400.0),
        ({}, '{"details":[{"retryDelay": "41s"}]}', 41.0),
        ({}, '{"details":[{"retryDelay": "1.2.3s"}]}', None),
        ({}, "no idea", None),
        ({"retry-after": "inf"}, "", None),
        ({"retry-after": "nan"}, "try again in 2s", 2.0),
    ],
)
def test_waits_are_read_from_headers_and_messages(headers: dict[str, str], text: str, expected: float | None) -> None:
    assert parse_retry_after(headers, text) == (pytest.approx(expected) if expected is not None else None)


def test_retry_after_may_be_a_date() -> None:
    at = datetime.now(UTC) + timedelta(seconds=90)
    wait = parse_retry_after({"retry-after": format_datetime(at, usegmt=True)})
    assert wait is not None
    assert 80 < wait <= 90
    assert parse_retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0.0


def test_a_wait_of_hours_is_an_overload_and_one_of_days_a_quota() -> None:
    error = classify_response(429, {"retry-after": "7200"}, b"", WHO)
    assert (error.kind, error.retryable, error.retry_after, error.status) == ("overloaded", True, 7200.0, 429)
    assert "it asks to wait 2 h" in str(error)
    error = classify_response(429, {"retry-after": "1382400"}, b"", WHO)
    assert (error.kind, error.retryable) == ("quota", False)
    assert "wait until it is renewed in 16 days" in str(error)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (0.25, "0.25 s"), (45, "45 s"), (300, "5 min"), (12_000, "3 h 20 min"), (86_400, "24 h")],
)
def test_a_wait_is_described_in_one_or_two_units(seconds: float, text: str) -> None:
    assert describe_wait(seconds) == text


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        ({"code": 502, "message": "Provider returned error", "metadata": {"raw": "boom"}}, "overloaded", True),
        ({"type": "overloaded_error", "message": "Overloaded"}, "overloaded", True),
        ({"type": "rate_limit_error", "message": "slow"}, "overloaded", True),
        ({"type": "invalid_request_error", "message": "prompt is too long"}, "too_long", False),
        ({"type": "authentication_error", "message": "no"}, "auth", False),
        ("something broke", "internal", True),
        ({"message": "odd"}, "internal", True),
    ],
)
def test_errors_in_a_stream_are_classified(error: Any, kind: str, retryable: bool) -> None:
    failure = classify_stream_error(error, WHO)
    assert (failure.kind, failure.retryable) == (kind, retryable)


def test_an_error_in_a_stream_may_name_its_wait() -> None:
    assert classify_stream_error({"code": 529, "message": "try again in 3s"}, WHO).retry_after == 3.0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error":{"message":"m"}}', "m"),
        (b'{"error":"m"}', "m"),
        (b'{"message":"m"}', "m"),
        (b'{"detail":"m"}', "m"),
        (b'{"error":{"message":"m","metadata":{"raw":"deep"}}}', "m: deep"),
        (b"<!doctype html><title> Bad\n gateway </title>", "an HTML page: Bad\n gateway"),
        (b"  plain \n words ", "plain words"),
        (b"", ""),
        (b'{"error":"r\xe9seau"}', "r\ufffdseau"),
        (b'{"odd":1}', '{"odd":1}'),
    ],
)
def test_the_providers_message_is_found_in_any_form(body: bytes, said: str) -> None:
    assert extract_message(body) == said
