"""A model that follows a script, to test the logic around a model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence

import msgspec

from treadle.errors import TreadleError
from treadle.events import ReasoningDelta, TextDelta
from treadle.messages import Call, Json, Reply, Request, Usage
from treadle.models.base import ModelEvent


class ScriptRanOut(TreadleError):
    """The model got more requests than its script has lines."""


Line = str | Call | Reply | Exception | Sequence[str | Call] | Callable[[Request], "Line"]
"""The reply to one request: text, calls, both, a whole reply, an error, or a function that returns one of these."""


def call(tool: str, /, *, id: str = "", **arguments: Json) -> Call:
    """Build a call as a model would write it."""
    return Call(id, tool, msgspec.json.encode(arguments).decode())


def say(text: str, *calls: Call, reasoning: str = "", usage: Usage | None = None) -> Reply:
    """Build a whole reply, when text or calls alone are not enough."""
    spent = usage or Usage(input_tokens=10, output_tokens=max(1, len(text) // 4))
    return Reply(text, reasoning, calls, "calls" if calls else "stop", spent, "scripted")


class ScriptedModel:
    """Answers each request with the next line of its script, and keeps the requests.

    When the script has no more lines, the run fails with `ScriptRanOut` in its error. With `keep=False` it does not
    keep the requests, for long runs.
    """

    def __init__(self, *script: Line, name: str = "scripted", window: int | None = None, keep: bool = True) -> None:
        self.name, self.window = name, window
        self.requests: list[Request] = []
        self._script = iter(script)
        self._keep = keep

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        if self._keep:
            self.requests.append(request)
        try:
            line = next(self._script)
        except StopIteration:
            raise ScriptRanOut(f"the script of {self.name} has no line for this request; add one") from None
        while callable(line):
            line = line(request)
        if isinstance(line, Exception):
            raise line
        reply = _build_reply(line)
        if reply.reasoning:
            yield ReasoningDelta(text=reply.reasoning)
        for word in reply.text.splitlines(keepends=True) if reply.text else ():
            yield TextDelta(text=word)
        yield reply

    async def close(self) -> None:
        """Nothing is open."""


def _build_reply(line: str | Call | Reply | Sequence[str | Call]) -> Reply:
    match line:
        case Reply():
            return line
        case str():
            return say(line)
        case Call():
            return say("", line)
        case _:
            text = "".join(piece for piece in line if isinstance(piece, str))
            return say(text, *(piece for piece in line if isinstance(piece, Call)))
