"""JSON-RPC chat: notifications for every kind of run, and the examples of the JSON-RPC specification."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.kit import recorded_runs as recordings
from tests.kit.recorded_runs import Scenario, every_scenario, list_finished_ids, select_facts, translate
from treadle.dialects import jsonrpc
from treadle.dialects.chat_rpc import ChatRpcDialect
from treadle.dialects.jsonrpc import RpcFailure, RpcRequest, RpcResult
from treadle.events import Event, RunFinished

KINDS = {"token", "tool_call", "tool_result", "approval_pending", "done", "error"}


def write(events: list[Event]) -> list[dict[str, Any]]:
    return translate(ChatRpcDialect("s1"), events)


@every_scenario
async def test_every_run_is_sent_in_the_six_kinds_and_a_late_watcher_gets_the_same_text(scenario: Scenario) -> None:
    events = await scenario()
    sent = write(events)
    assert all(one["jsonrpc"] == "2.0" and one["method"] == "agents.chat.event" for one in sent)
    params, later = ([one["params"] for one in seen] for seen in (sent, write(select_facts(events))))
    assert {one["kind"] for one in params} <= KINDS and {one["session_id"] for one in params} == {"s1"}
    assert [one["id"] for one in params if one["kind"] == "tool_result"] == list_finished_ids(events)
    endings = [event for event in events if isinstance(event, RunFinished)]
    expected = ["error" if ending.reason == "failed" else "done" for ending in endings]
    assert [one["kind"] for one in params if one["kind"] in ("done", "error")] == expected
    assert params[-1]["kind"] in ("done", "error")
    assert [one for one in params if one["kind"] != "token"] == [one for one in later if one["kind"] != "token"]
    live_text, later_text = ("".join(one.get("text", "|") for one in seen) for seen in (params, later))
    assert live_text == later_text


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("a_plain_answer", "success", "answered"),
        ("yielding", "success", "yielded"),
        ("a_turn_limit", "max_turns", "turn_limit"),
        ("a_doom_loop", "max_turns", "doom_loop"),
        ("being_stuck", "error", "stuck"),
        ("a_cancelled_call", "cancelled", "cancelled"),
    ],
)
async def test_an_ending_has_one_of_four_statuses(name: str, status: str, reason: str) -> None:
    done = write(await getattr(recordings, name)())[-1]["params"]
    assert (done["status"], done["reason"]) == (status, reason)


async def test_done_says_which_tools_were_called() -> None:
    done = write(await recordings.two_turns_with_calls())[-1]["params"]
    assert done["tools_called"] == ["note", "note"] and done["turns"] == 2 and done["summary"] == "noted"


@pytest.mark.parametrize("name", ["a_denied_call", "a_call_denied_by_policy", "bad_calls", "a_cancelled_call"])
async def test_a_denied_or_failed_call_is_not_among_the_tools_called(name: str) -> None:
    assert write(await getattr(recordings, name)())[-1]["params"]["tools_called"] == []


async def test_an_error_ends_the_stream_and_a_retry_is_no_error() -> None:
    (only,) = [one["params"] for one in write(await recordings.a_failure())]
    assert only["kind"] == "error" and "no such key" in only["message"]
    kinds = [one["params"]["kind"] for one in write(await recordings.a_failure_and_a_retry())]
    assert set(kinds) == {"token", "done"}


async def test_a_call_carries_its_params_as_a_value_and_a_result_its_content() -> None:
    params = [one["params"] for one in write(await recordings.two_turns_with_calls())]
    calls, results = ([one for one in params if one["kind"] == kind] for kind in ("tool_call", "tool_result"))
    assert [call["params"] for call in calls] == [{"text": "é"}, {"text": "b"}]
    assert [json.loads(call["arguments"]) for call in calls] == [call["params"] for call in calls]
    assert [result["content"] for result in results] == ["noted é", "noted b"]
    assert all(result["content"] == result["output"] for result in results)


async def test_a_pending_approval_has_its_id() -> None:
    params = [one["params"] for one in write(await recordings.an_approved_call())]
    asked = next(one for one in params if one["kind"] == "approval_pending")
    assert asked["approval_id"] == f"s1.{asked['call_id']}" and asked["tool"] == "drop"


def echo(item: RpcRequest | RpcFailure) -> RpcResult | RpcFailure | None:
    """A server with the methods of the specification's examples."""
    if isinstance(item, RpcFailure):
        return item
    params = item.params
    known: dict[str, Callable[[], Any]] = {
        "subtract": lambda: (
            params["minuend"] - params["subtrahend"] if isinstance(params, dict) else params[0] - params[1]
        ),
        "sum": lambda: sum(params),
        "get_data": lambda: ["hello", 5],
        "update": lambda: None,
        "notify_sum": lambda: None,
        "notify_hello": lambda: None,
    }
    if item.is_notification:
        return None
    if item.method not in known:
        return RpcFailure(jsonrpc.RpcError(jsonrpc.METHOD_NOT_FOUND, "Method not found"), item.id)  # type: ignore[arg-type]
    return RpcResult(known[item.method](), item.id)  # type: ignore[arg-type]


PARSE_ERROR = '{"jsonrpc":"2.0","error":{"code":-32700,"message":"Parse error"},"id":null}'
INVALID = '{"jsonrpc":"2.0","error":{"code":-32600,"message":"Invalid Request"},"id":null}'
EXAMPLES = [
    ('{"jsonrpc": "2.0", "method": "subtract", "params": [42, 23], "id": 1}', '{"jsonrpc":"2.0","result":19,"id":1}'),
    ('{"jsonrpc": "2.0", "method": "subtract", "params": [23, 42], "id": 2}', '{"jsonrpc":"2.0","result":-19,"id":2}'),
    (
        '{"jsonrpc": "2.0", "method": "subtract", "params": {"subtrahend": 23, "minuend": 42}, "id": 3}',
        '{"jsonrpc":"2.0","result":19,"id":3}',
    ),
    ('{"jsonrpc": "2.0", "method": "update", "params": [1,2,3,4,5]}', None),
    ('{"jsonrpc": "2.0", "method": "foobar"}', None),
    (
        '{"jsonrpc": "2.0", "method": "foobar", "id": "1"}',
        '{"jsonrpc":"2.0","error":{"code":-32601,"message":"Method not found"},"id":"1"}',
    ),
    ('{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]', PARSE_ERROR),
    ('{"jsonrpc": "2.0", "method": 1, "params": "bar"}', INVALID),
    ('[{"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"}, {"jsonrpc": "2.0", "method"]', PARSE_ERROR),
    ("[]", INVALID),
    ("[1]", f"[{INVALID}]"),
    ("[1,2,3]", f"[{INVALID},{INVALID},{INVALID}]"),
    (
        """[{"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"},
        {"jsonrpc": "2.0", "method": "notify_hello", "params": [7]},
        {"jsonrpc": "2.0", "method": "subtract", "params": [42,23], "id": "2"},
        {"foo": "boo"},
        {"jsonrpc": "2.0", "method": "foo.get", "params": {"name": "myself"}, "id": "5"},
        {"jsonrpc": "2.0", "method": "get_data", "id": "9"}]""",
        '[{"jsonrpc":"2.0","result":7,"id":"1"},{"jsonrpc":"2.0","result":19,"id":"2"},'
        f"{INVALID},"
        '{"jsonrpc":"2.0","error":{"code":-32601,"message":"Method not found"},"id":"5"},'
        '{"jsonrpc":"2.0","result":["hello",5],"id":"9"}]',
    ),
    (
        '[{"jsonrpc": "2.0", "method": "notify_sum", "params": [1,2,4]},'
        '{"jsonrpc": "2.0", "method": "notify_hello", "params": [7]}]',
        None,
    ),
]


@pytest.mark.parametrize(("sent", "expected"), EXAMPLES)
def test_the_examples_of_the_specification_hold(sent: str, expected: str | None) -> None:
    incoming = jsonrpc.parse_message(sent)
    answers = [answer for item in incoming.items if (answer := echo(item)) is not None]
    written = jsonrpc.encode_responses(answers, is_batch=incoming.is_batch)
    assert (json.loads(written) if written else None) == (json.loads(expected) if expected else None)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        *((f'{{"jsonrpc":"2.0","method":"sum","id":{id}}}', jsonrpc.INVALID_REQUEST) for id in ("true", "[1]", "{}")),
        pytest.param("[" * 100_000 + "]" * 100_000, jsonrpc.PARSE_ERROR, id="nested too deep"),
    ],
)
def test_an_id_of_another_kind_and_a_document_that_is_too_deep_are_failures(text: str, code: int) -> None:
    (failure,) = jsonrpc.parse_message(text).items
    assert isinstance(failure, RpcFailure) and failure.error.code == code


def test_an_id_of_null_is_a_request_and_not_a_notification() -> None:
    (request,) = jsonrpc.parse_message('{"jsonrpc":"2.0","method":"sum","id":null}').items
    assert isinstance(request, RpcRequest) and not request.is_notification
