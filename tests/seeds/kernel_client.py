"""A program that uses the runtime kernel as a library. A test runs it as a process of its own: once, and again."""

import asyncio
import json
import sys
from dataclasses import asdict, is_dataclass
from typing import Any

import msgspec

from treadle import Agent, CallFinished, Limits, Middleware, Runtime, tool
from treadle.errors import BadInput
from treadle.messages import Part, Reply, Request, TextPart
from treadle.testing import ScriptedModel, call

seen: list[str] = []


class Recorder(Middleware):
    """Rewrites what passes at each of the three points."""

    async def on_user_message(self, session_id: str, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        seen.append("on_user_message")
        return (*parts, TextPart("please"))

    async def on_pre_llm(self, request: Request) -> Request:
        seen.append("on_pre_llm")
        return request

    async def on_post_llm(self, reply: Reply) -> Reply:
        seen.append("on_post_llm")
        return reply


@tool(safety="safe")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main(store: str) -> dict[str, Any]:
    model = ScriptedModel(call("add", a=2, b=3, id="c1"), "five")
    agent = Agent(model, tools=[add], middleware=[Recorder()], name="kernel")
    async with Runtime(store, [agent]) as runtime:
        async with runtime.session("kernel", new=True) as session:
            answer = await session.ask("2 and 3?")
            events = [msgspec.to_builtins(fact) for fact in await session.facts()]
            checkpoints = [_to_document(point) for point in await session.checkpoints()]
            spans = len(await session.spans())
        bus: list[tuple[str, str, Any]] = []
        async for item in runtime.watch(0):
            bus.append((item.session_id, str(item.fact.__struct_config__.tag), item.cursor))
            if bus[-1][1] == "run_finished":
                break
        resumed: dict[str, str] = {}
        for point in checkpoints:
            model = ScriptedModel("again", "again")
            fresh = Agent(model, tools=[add], name="kernel")
            runtime.agents["kernel"] = fresh
            opened = await runtime.open(session.id)
            async with opened.resume_from(point["seq"]) as run:
                outcome = await run.wait()
            resumed[f"{point['kind']} {point['seq']}"] = outcome.reason if outcome else "none"
        calls = [fact for fact in await opened.facts() if isinstance(fact, CallFinished)]
    try:
        Limits(turns=300)
        ceiling = ""
    except BadInput as error:
        ceiling = str(error)
    return {
        "answer": answer,
        "default_turns": Limits().turns,
        "middleware": seen,
        "events": events,
        "checkpoints": checkpoints,
        "spans": spans,
        "bus": bus,
        "resumed": resumed,
        "calls": len(calls),
        "ceiling": ceiling,
    }


def _to_document(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else msgspec.to_builtins(value)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1]))))
