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

Id = str | int | float | None


class RpcRequest(Struct, frozen=True):
    """A call; a notification has no id at all, and gets no response."""

    method: str
    params: dict[str, Json] | list[Json]
    id: Id | UnsetType = UNSET

    @property
    def is_notification(self) -> bool:
        return self.id is UNSET


class RpcError(Struct, frozen=True, omit_defaults=True):
    code: int
    message: str
    data: Json = None


class RpcResult(Struct, frozen=True):
    result: Json
    id: Id
    jsonrpc: Literal["2.0"] = "2.0"


class RpcFailure(Struct, frozen=True):
    error: RpcError
    id: Id = None
    jsonrpc: Literal["2.0"] = "2.0"


RpcResponse = RpcResult | RpcFailure


class Incoming(Struct, frozen=True):
    """What was sent: requests and, in their places, the failures of what is none. A batch is answered by a list."""

    items: tuple[RpcRequest | RpcFailure, ...]
    batch: bool


def read(data: bytes | str) -> Incoming:
    """The requests in a message; never raises."""
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Incoming((RpcFailure(RpcError(PARSE_ERROR, "Parse error")),), batch=False)
    if isinstance(document, list):
        several = cast("list[Json]", document)
        if not several:
            return Incoming((_invalid(None),), batch=False)
        return Incoming(tuple(_read_one(one) for one in several), batch=True)
    return Incoming((_read_one(document),), batch=False)


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


def _invalid(called: Id) -> RpcFailure:
    return RpcFailure(RpcError(INVALID_REQUEST, "Invalid Request"), called)


def write(responses: list[RpcResponse], *, batch: bool) -> bytes | None:
    """The answer to a message; None when there is nothing to say, because all were notifications."""
    if not responses:
        return None
    return msgspec.json.encode(responses if batch else responses[0])
