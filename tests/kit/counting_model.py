"""A provider with a window: it counts what it is given, refuses what does not fit, and writes summaries."""

from collections.abc import AsyncGenerator, Callable

import msgspec

from tests.kit.fake_model import FakeModel
from treadle.errors import ModelError
from treadle.messages import Reply, Request, Usage, estimate_request, estimate_text
from treadle.models.base import ModelEvent
from treadle.testing import ScriptedModel
from treadle.testing.scripted_model import Line

Script = Callable[[Request, int], Line]


def is_summary(request: Request) -> bool:
    """Whether the request asks for the notes of a compaction."""
    return request.system.startswith("You keep the notes")


class CountingModel(FakeModel):
    """Says what `script(request, number)` says, and counts as a provider does: tokens in, tokens out, and the money."""

    def __init__(self, script: Script, window: int | None = 4096, *, summary: Line = "- it went on") -> None:
        self.name, self.window = "counting", window
        self.hard = window or 4096
        self.script, self.summary = script, summary
        self.requests: list[Request] = []
        self.summaries: list[Request] = []
        self.read = 0
        self.refused = 0

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        tokens = estimate_request(request)
        if tokens > self.hard:
            self.refused += 1
            raise ModelError(f"{tokens} tokens, but the window has {self.hard}", kind="too_long")
        self.read += tokens
        if is_summary(request):
            self.summaries.append(request)
            line = self.summary
        else:
            self.requests.append(msgspec.structs.replace(request, messages=tuple(request.messages)))
            line = self.script(request, len(self.requests))
        inner = ScriptedModel(line)
        async for event in inner.stream(request):
            if isinstance(event, Reply):
                spent = estimate_text(event.text) + sum(estimate_text(call.arguments) for call in event.calls)
                event = msgspec.structs.replace(event, usage=Usage(tokens, spent, cost=tokens / 1e6))
            yield event
