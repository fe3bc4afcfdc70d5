"""The embedded model does small jobs in a scratch folder: it lists, reads, counts, reckons and takes a note.

    python examples/hello.py [--model NAME]

Any model works here, with one flag: `--model openai:NAME`, `--model anthropic:NAME`, `--model ollama:NAME`.
"""

import argparse
import ast
import asyncio
import operator
import sys
import tempfile
import time
from pathlib import Path

from treadle import Agent, CallFinished, CallStarted, RunFinished, Session, TextDelta, ToolContext, tool

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
    "Write a note: the bike is fixed",
)
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


@tool(safety="safe", examples=[("Which files do I have?", {}), ("List all the files", {}), ("Show me the folder", {})])
def list_files(context: ToolContext) -> str:
    """List the files in the folder."""
    return ", ".join(sorted(path.name for path in context.workspace.iterdir() if path.suffix == ".txt"))


@tool(
    safety="safe",
    examples=[
        ("Read the file plan.txt", {"path": "plan.txt"}),
        ("What does letter.txt say?", {"path": "letter.txt"}),
        ("Show me the contents of ideas.txt", {"path": "ideas.txt"}),
    ],
)
def read_file(path: str, context: ToolContext) -> str:
    """Read a text file."""
    return (context.workspace / Path(path).name).read_text("utf-8").strip()


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


@tool(
    safety="safe",
    examples=[
        ("What is 3 plus 4?", {"expression": "3 + 4"}),
        ("Multiply 6 by 9", {"expression": "6 * 9"}),
        ("How much is 100 divided by 8?", {"expression": "100 / 8"}),
    ],
)
def calculate(expression: str) -> float:
    """Work out an arithmetic expression."""

    def value(node: ast.expr) -> float:
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return OPERATORS[type(op)](value(left), value(right))
        raise ValueError(f"cannot work out {expression!r}")

    return value(ast.parse(expression, mode="eval").body)


@tool(
    examples=[
        ("Write a note: call the bank", {"text": "call the bank"}),
        ("Make a note that says buy bread", {"text": "buy bread"}),
    ]
)
def write_note(text: str, context: ToolContext) -> str:
    """Write a note down."""
    with (context.workspace / "notes.txt").open("a", encoding="utf-8") as notes:
        notes.write(text + "\n")
    return f"noted: {text}"


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
    return run.outcome is not None and run.outcome.reason == "answered"


async def main(name: str) -> int:
    tools = [list_files, read_file, count_words, calculate, write_note]
    agent = Agent(name, tools=tools)
    if name == "local":
        print("Loading the embedded model; the first time its weights are fetched (98 MB) and its choices calibrated.")
    with tempfile.TemporaryDirectory(prefix="treadle-") as folder:
        for file, text in FILES.items():
            (Path(folder) / file).write_text(text, "utf-8")
        async with agent.session(Path(folder) / "hello.db", workspace=folder) as session:
            answered = [await do(session, job) for job in JOBS]
            facts = await session.facts()
        notes = Path(folder) / "notes.txt"
        print(f"\nnotes.txt: {notes.read_text('utf-8').strip() if notes.exists() else '(nothing)'}")
        print(f"{sum(answered)} of {len(JOBS)} jobs answered; {len(facts)} facts in the log.")
    return 0 if all(answered) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="local", help="which model to use (default: the embedded one)")
    sys.exit(asyncio.run(main(parser.parse_args().model)))
