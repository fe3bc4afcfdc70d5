"""How the embedded model answers small talk: 30 inputs, measured. Not a measure of sense.

    python benchmarks/local_small_talk.py [--show]

Each input is a session of its own with the ready-made tools and the instructions of the default agent. The engine is
loaded before the first one. CPU seconds are those of the engine's process and of this one. A reply should end at a
sentence within 80 tokens and repeat no sentence.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import tempfile
from pathlib import Path

from msgspec import Struct

from treadle import Agent
from treadle.cli.drive import ANSWERED, STOPPED
from treadle.events import ModelReplied
from treadle.knowledge.builtin_instructions import INSTRUCTIONS
from treadle.models.local.local_model import LocalModel
from treadle.models.local.plain_reply import HINT, MOST_TOKENS
from treadle.tools.builtin import build_default_tools

MOST_SECONDS = 3.0
INPUTS = (
    "hello", "hi", "hey there!", "good morning", "how are you?", "what's up?", "nice to meet you", "thanks",
    "thank you so much!", "bye", "see you tomorrow", "who are you?", "what can you do?", "tell me a joke",
    "tell me another joke", "knock knock", "lol", "ok", "asdfghjkl", "???", "blah blah blah", "👍", "bonjour",
    "hola, ¿cómo estás?", "wie geht es dir?", "ciao bella", "こんにちは", "I am bored", "you are stupid", "I love you",
)  # fmt: skip


class Answer(Struct, frozen=True):
    """How one input was answered. `text` is without the hint that ends a first reply."""

    said: str
    text: str
    tokens: int
    seconds: float
    tools: tuple[str, ...]
    exit_code: int

    @property
    def ends_at_sentence(self) -> bool:
        return self.text.endswith((".", "!", "?", '"', "”", ")", ":)", "…"))

    @property
    def repeats(self) -> bool:
        sentences = [each.strip().lower() for each in re.split(r"(?<=[.!?])\s+|\n", self.text) if each.strip()]
        return len(sentences) > len(set(sentences))

    @property
    def is_good(self) -> bool:
        is_short = self.tokens <= MOST_TOKENS and self.seconds <= MOST_SECONDS
        return is_short and self.ends_at_sentence and not self.repeats and not self.tools and self.exit_code == ANSWERED


def measure_cpu(root: int) -> float:
    """The CPU seconds of a process and of all that it started and that still run."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        spent[int(stat.parent.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(spent[pid] for pid in family)


async def answer(agent: Agent, said: str, folder: str) -> Answer:
    """Say one thing in a new session."""
    before = measure_cpu(os.getpid())
    async with agent.session(workspace=folder, new=True) as session, session.run(said) as run:
        outcome = await run.wait()
        replies = [fact for fact in await session.facts() if isinstance(fact, ModelReplied)]
    seconds = measure_cpu(os.getpid()) - before
    tools = tuple(call.tool for reply in replies for call in reply.calls)
    tokens = sum(reply.usage.output_tokens for reply in replies)
    text = outcome.answer.removesuffix(HINT).strip() if outcome else ""
    is_answered = outcome is not None and outcome.reason == "answered"
    return Answer(said, text, tokens, seconds, tools, ANSWERED if is_answered else STOPPED)


def report(answers: list[Answer]) -> str:
    """The table for docs/local-model.md."""
    lines = ["| input | tokens | CPU seconds | ends at a sentence | repeats | exit code |", "|---|---|---|---|---|---|"]
    for each in answers:
        ends, repeats = ("yes" if value else "no" for value in (each.ends_at_sentence, each.repeats))
        lines.append(f"| {each.said} | {each.tokens} | {each.seconds:.1f} | {ends} | {repeats} | {each.exit_code} |")
    return "\n".join([*lines, f"\n{sum(each.is_good for each in answers)} of {len(answers)} as they should be"])


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true", help="print every answer")
    options = parser.parse_args()
    model = LocalModel()
    try:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as kept:
            agent = Agent(model, tools=build_default_tools(kept=kept), instructions=INSTRUCTIONS["default"])
            await answer(agent, "What is 1 plus 1?", folder)
            answers = [await answer(agent, said, folder) for said in INPUTS]
    finally:
        model.unload()
    if options.show:
        for each in answers:
            print(f"{each.said}\n    {each.tools or ''}{each.text!r}")
    print(report(answers))


if __name__ == "__main__":
    asyncio.run(main())
