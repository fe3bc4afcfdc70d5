"""JSON-RPC 2.0: reads requests, single or in batches, and writes responses. It knows no methods."""

from __future__ import annotations

from typing import Literal, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from treadle.messages import Json

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
SERVER_ERROR = -32000

RpcId = str | int | float | None


class RpcRequest(Struct, frozen=True):
    """A call. A notification has no id and gets no response."""

    method: str
    params: dict[str, Json] | list[Json]
    id: RpcId | UnsetType = UNSET

    @property
    def is_notification(self) -> bool:
        return self.id is UNSET


class RpcError(Struct, frozen=True, omit_defaults=True):
    code: int
    message: str
    data: Json = None


class RpcResult(Struct, frozen=True):
    result: Json
    id: RpcId
    jsonrpc: Literal["2.0"] = "2.0"


class RpcFailure(Struct, frozen=True):
    error: RpcError
    id: RpcId = None
    jsonrpc: Literal["2.0"] = "2.0"


RpcResponse = RpcResult | RpcFailure


class RpcMessage(Struct, frozen=True):
    """The requests of a message, with a failure in place of each invalid one. A batch gets a list of responses."""

    items: tuple[RpcRequest | RpcFailure, ...]
    is_batch: bool


def parse_message(data: bytes | str) -> RpcMessage:
    """Read the requests of a message. It never raises."""
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return RpcMessage((RpcFailure(RpcError(PARSE_ERROR, "Parse error")),), is_batch=False)
    if isinstance(document, list):
        batch = cast("list[Json]", document)
        if not batch:
            return RpcMessage((_build_invalid(None),), is_batch=False)
        return RpcMessage(tuple(_read_request(one) for one in batch), is_batch=True)
    return RpcMessage((_read_request(document),), is_batch=False)


def _read_request(document: Json) -> RpcRequest | RpcFailure:
    if not isinstance(document, dict):
        return _build_invalid(None)
    fields = cast("dict[str, Json]", document)
    request_id: Json = fields.get("id", UNSET)
    if request_id is not UNSET and (
        isinstance(request_id, bool) or not isinstance(request_id, str | int | float | None)
    ):
        return _build_invalid(None)
    method, params = fields.get("method"), fields.get("params", {})
    if fields.get("jsonrpc") != "2.0" or not isinstance(method, str) or not isinstance(params, dict | list):
        return _build_invalid(None if request_id is UNSET else request_id)
    return RpcRequest(method, cast("dict[str, Json] | list[Json]", params), request_id)


def _build_invalid(request_id: RpcId) -> RpcFailure:
    return RpcFailure(RpcError(INVALID_REQUEST, "Invalid Request"), request_id)


def encode_responses(responses: list[RpcResponse], *, is_batch: bool) -> bytes | None:
    """Encode the answer to a message. Returns None when all its requests were notifications."""
    if not responses:
        return None
    return msgspec.json.encode(responses if is_batch else responses[0])
