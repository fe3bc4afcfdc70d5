"""The strictest provider: rules that no request may break, whatever the log holds.

`check_request` says what is wrong with a request. `StrictModel` wraps any model and refuses bad requests like a
provider, and also requests that change earlier messages.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from treadle.errors import ModelError
from treadle.messages import Call, Json, Message, ModelMessage, Request, ResultMessage, TextPart, UserMessage
from treadle.models.base import Model, ModelEvent


def check_request(request: Request) -> None:
    """Raise an AssertionError with the message and the rule that it breaks."""
    messages = list(request.messages)
    _require(bool(messages), "the request has no messages")
    _require(isinstance(messages[0], UserMessage), f"the first message is not a user's: {messages[0]!r}")
    _require(not isinstance(messages[-1], ModelMessage), f"the last message is the model's: {messages[-1]!r}")
    _require_pairs(messages)
    for place, message in enumerate(messages):
        _require_content(place, message)
    names = [tool.name for tool in request.tools]
    _require(len(set(names)) == len(names), f"two tools have the same name: {names}")
    try:
        msgspec.json.encode(messages)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"the messages cannot be written as JSON: {error}") from None


def _require(ok: bool, why: str) -> None:
    if not ok:
        raise AssertionError(why)


def _require_pairs(messages: list[Message]) -> None:
    """Require one result for each call, right after it and in the order of the calls."""
    open_calls: list[Call] = []
    seen: set[str] = set()
    before: Message | None = None
    for place, message in enumerate(messages):
        if isinstance(message, ResultMessage):
            _require(bool(open_calls), f"message {place}: the result of {message.call_id!r} answers no open call")
            call = open_calls.pop(0)
            _require(
                (call.id, call.tool) == (message.call_id, message.tool),
                f"message {place}: the result of {message.tool} {message.call_id!r} stands where that of "
                f"{call.tool} {call.id!r} belongs",
            )
        else:
            missing = [call.id for call in open_calls]
            _require(not missing, f"message {place}: the calls {missing} have no result before it")
        if isinstance(message, ModelMessage):
            _require(not isinstance(before, ModelMessage), f"message {place}: two model messages follow each other")
            for call in message.calls:
                _require(bool(call.id), f"message {place}: a call of {call.tool} has no id")
                _require(call.id not in seen, f"message {place}: the call id {call.id!r} is used twice")
                seen.add(call.id)
            open_calls = list(message.calls)
        before = message
    _require(not open_calls, f"the calls {[call.id for call in open_calls]} at the end have no result")


def _require_content(place: int, message: Message) -> None:
    match message:
        case UserMessage(parts=parts):
            has_content = any(not isinstance(part, TextPart) or part.text.strip() for part in parts)
            _require(has_content, f"message {place}: the user's message is empty")
        case ModelMessage(text=text, calls=calls):
            _require(bool(text.strip() or calls), f"message {place}: the model's message has neither text nor calls")
        case ResultMessage(text=text, call_id=call_id):
            _require(bool(text.strip()), f"message {place}: the result of {call_id!r} has no text")


class StrictModel:
    """A model behind the strictest provider. It refuses a bad request and keeps the reason in `violations`.

    While `request.render_cache` is the same object, the messages of each request must start with those of the request
    before. All other attributes, such as `requests` of a ScriptedModel, are those of the inner model.
    """

    def __init__(self, inner: Model) -> None:
        self.inner = inner
        self.violations: list[str] = []
        # The cache itself is kept too, because Python can reuse the id of a deleted object.
        self._shown: dict[int, tuple[dict[str, Json], list[Message]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def window(self) -> int | None:
        return self.inner.window

    async def close(self) -> None:
        await self.inner.close()

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        try:
            check_request(request)
            self._check_growth(request)
        except AssertionError as error:
            self.violations.append(str(error))
            raise ModelError(str(error), kind="bad_request") from None
        async with aclosing(self.inner.stream(request)) as events:
            async for event in events:
                yield event

    def _check_growth(self, request: Request) -> None:
        _, before = self._shown.get(id(request.render_cache), ({}, []))
        check_growth(before, request)
        self._shown[id(request.render_cache)] = (request.render_cache, list(request.messages))


def check_growth(before: list[Message], request: Request) -> None:
    """Raise an AssertionError unless the request's messages start with those in `before`."""
    now = list(request.messages)
    for place, (old, new) in enumerate(zip(before, now, strict=False)):
        _require(old == new, f"message {place} was {old!r} in the request before and is now {new!r}")
    _require(len(now) >= len(before), f"there were {len(before)} messages in the request before, now {len(now)}")
