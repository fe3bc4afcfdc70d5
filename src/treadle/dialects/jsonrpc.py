"""JSON-RPC 2.0: reading requests, single and in batches, and writing responses. Knows no methods."""

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
    """A call; a notification has no id at all, and gets no response."""

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
    """What was sent: requests and, in their places, the failures of what is none. A batch is answered by a list."""

    items: tuple[RpcRequest | RpcFailure, ...]
    is_batch: bool


def parse_message(data: bytes | str) -> RpcMessage:
    """The requests in a message; never raises."""
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return RpcMessage((RpcFailure(RpcError(PARSE_ERROR, "Parse error")),), is_batch=False)
    if isinstance(document, list):
        several = cast("list[Json]", document)
        if not several:
            return RpcMessage((_invalid(None),), is_batch=False)
        return RpcMessage(tuple(_read_one(one) for one in several), is_batch=True)
    return RpcMessage((_read_one(document),), is_batch=False)


def _read_one(document: Json) -> RpcRequest | RpcFailure:
    if not isinstance(document, dict):
        return _invalid(None)
    given = cast("dict[str, Json]", document)
    called: Json = given.get("id", UNSET)
    if called is not UNSET and (isinstance(called, bool) or not isinstance(called, str | int | float | None)):
        return _invalid(None)
    method, params = given.get("method"), given.get("params", {})
    if given.get("jsonrpc") != "2.0" or not isinstance(method, str) or not isinstance(params, dict | list):
        return _invalid(None if called is UNSET else called)
    return RpcRequest(method, cast("dict[str, Json] | list[Json]", params), called)


def _invalid(called: RpcId) -> RpcFailure:
    return RpcFailure(RpcError(INVALID_REQUEST, "Invalid Request"), called)


def encode_responses(responses: list[RpcResponse], *, is_batch: bool) -> bytes | None:
    """The answer to a message; None when there is nothing to say, because all were notifications."""
    if not responses:
        return None
    return msgspec.json.encode(responses if is_batch else responses[0])
