"""The embedded model does small jobs in a scratch folder, with ready-made tools and one of our own, `count_words`.

    python examples/hello.py [--model NAME]

Any model works here, with one flag: `--model openai:NAME`, `--model anthropic:NAME`, `--model ollama:NAME`.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from treadle import Agent, CallFinished, CallStarted, RunFinished, Session, TextDelta, ToolContext, tool
from treadle.tools.builtin import build_default_tools

FILES = {
    "todo.txt": "buy milk\ncall Anna\nfix the bike\n",
    "poem.txt": "The sun goes down, the moon comes up, and all the birds are sleeping.\n",
    "budget.txt": "The rent is 750 euros.\nThe food is 300 euros.\n",
}
JOBS = (
    "Which files are there?",
    "What does todo.txt say?",
    "How many words are in poem.txt?",
    "What is 750 plus 300?",
    "Write the file note.txt: the bike is fixed",
)
TOOLS = ("list_files", "read_file", "write_file", "calculate")
"""Few, because the embedded model is small."""


@tool(
    safety="safe",
    examples=[
        ("How many words are in essay.txt?", {"path": "essay.txt"}),
        ("Count the words in speech.txt", {"path": "speech.txt"}),
    ],
)
def count_words(path: str, context: ToolContext) -> int:
    """Count the words in a text file."""
    return len((context.workspace / Path(path).name).read_text("utf-8").split())


async def do(session: Session, job: str) -> bool:
    """One job, shown as it happens; whether it ended in an answer."""
    print(f"\n> {job}")
    began = time.monotonic()
    async with session.run(job) as run:
        async for event in run:
            match event:
                case CallStarted():
                    print(f"  -> {event.tool} {event.arguments}")
                case CallFinished():
                    print(f"  <- {event.status}: {event.output!r}")
                case TextDelta(text=text):
                    print(text, end="", flush=True)
                case RunFinished():
                    print(f"\n  [{event.reason}, {time.monotonic() - began:.1f} s, {event.usage.output_tokens} tokens]")
                    if event.error:
                        print(f"  {event.error}")
                case _:
                    pass
    return run.outcome is not None and run.outcome.reason == "answered"


async def main(name: str) -> int:
    if name == "local":
        print("Loading the embedded model; the first time its weights are fetched (98 MB) and its choices calibrated.")
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as data:
        for file, text in FILES.items():
            (Path(folder) / file).write_text(text, "utf-8")
        ready_made = [one for one in build_default_tools(kept=data) if one.name in TOOLS]
        agent = Agent(name, tools=[*ready_made, count_words])
        async with agent.session(Path(data) / "hello.db", workspace=folder) as session:
            answered = [await do(session, job) for job in JOBS]
            facts = await session.facts()
        note = Path(folder) / "note.txt"
        print(f"\nnote.txt: {note.read_text('utf-8').strip() if note.exists() else '(nothing)'}")
        print(f"{sum(answered)} of {len(JOBS)} jobs answered; {len(facts)} facts in the log.")
    return 0 if all(answered) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="local", help="which model to use (default: the embedded one)")
    sys.exit(asyncio.run(main(parser.parse_args().model)))
