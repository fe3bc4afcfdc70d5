"""Which of the ready-made tools the embedded model calls for small requests, and with which arguments.

    python benchmarks/local_toolbox.py [--seen]

The tools are offered all at once. Held-out requests were not looked at while the tools' examples were written; those of
--seen were. A request counts as right when the first call is the right tool, as done when its arguments are right too.
"""

import argparse
import asyncio
import json
import tempfile

from treadle import Agent, Limits
from treadle.events import ModelReplied
from treadle.models.local.local_model import LocalModel
from treadle.tools.builtin import build_default_tools

Wanted = tuple[str, str, dict[str, str]]
DEFAULTS = {"pattern": "", "glob": "", "zone": "", "path": "."}

SEEN: list[Wanted] = [
    ("Which files are there?", "list_files", {"pattern": ""}),
    ("List the files", "list_files", {"pattern": ""}),
    ("What is in this folder?", "list_files", {"path": "."}),
    ("Show me the files in src/lib", "list_files", {"path": "src/lib"}),
    ("What does todo.txt say?", "read_file", {"path": "todo.txt"}),
    ("Read budget.txt", "read_file", {"path": "budget.txt"}),
    ("Show me poem.txt", "read_file", {"path": "poem.txt"}),
    ("What is in notes/today.md?", "read_file", {"path": "notes/today.md"}),
    ("What is 750 plus 300?", "calculate", {"expression": "750 + 300"}),
    ("Multiply 12 by 7", "calculate", {"expression": "12 * 7"}),
    ("How much is 90 divided by 4?", "calculate", {"expression": "90 / 4"}),
    ("Calculate 17 * 23", "calculate", {"expression": "17 * 23"}),
    ("What time is it?", "current_time", {"zone": ""}),
    ("Which day is it today?", "current_time", {"zone": ""}),
    ("Tell me the date", "current_time", {}),
    ("Write the file note.txt: the bike is fixed", "write_file", {"path": "note.txt", "content": "the bike is fixed"}),
    ("Make a file called plan.txt that says call the bank", "write_file", {"content": "call the bank"}),
    ("Create a file hello.txt that says good morning", "write_file", {"content": "good morning"}),
    ("Create note.txt with the text buy bread", "write_file", {"content": "buy bread"}),
    ("Search for the word moon", "search_files", {"pattern": "moon", "glob": ""}),
    ("Where is the word rent used?", "search_files", {"pattern": "rent", "glob": ""}),
    ("Which files mention Anna?", "search_files", {"pattern": "Anna"}),
    ("Replace milk with bread in todo.txt", "edit_file", {"path": "todo.txt", "old": "milk", "new": "bread"}),
    ("Change 750 to 800 in budget.txt", "edit_file", {"old": "750", "new": "800"}),
    ("Run the command make test", "shell", {}),
    ("What is the capital of France?", "", {}),
    ("Hello!", "", {}),
    ("Who wrote Hamlet?", "", {}),
    ("Thank you", "", {}),
    ("Why is the sky blue?", "", {}),
]
HELD_OUT: list[Wanted] = [
    ("Are there any files?", "list_files", {"pattern": ""}),
    ("Give me a list of the files", "list_files", {}),
    ("What have I got in docs/old?", "list_files", {"path": "docs/old"}),
    ("Can you read shopping.txt?", "read_file", {"path": "shopping.txt"}),
    ("What is written in diary.md?", "read_file", {"path": "diary.md"}),
    ("Please open report.txt", "read_file", {"path": "report.txt"}),
    ("Print config.yaml", "read_file", {"path": "config.yaml"}),
    ("What is 12 times 12?", "calculate", {"expression": "12 * 12"}),
    ("Add 45 and 55", "calculate", {"expression": "45 + 55"}),
    ("How much is 81 minus 19?", "calculate", {"expression": "81 - 19"}),
    ("Divide 144 by 12", "calculate", {"expression": "144 / 12"}),
    ("What is the time now?", "current_time", {}),
    ("What day is today?", "current_time", {}),
    ("Write a file todo.md: water the plants", "write_file", {"path": "todo.md", "content": "water the plants"}),
    ("Create a file letter.txt that says happy birthday", "write_file", {"content": "happy birthday"}),
    ("Make reminder.txt with the text meeting at nine", "write_file", {"content": "meeting at nine"}),
    ("Search the files for invoice", "search_files", {"pattern": "invoice"}),
    ("Where do I use the word python?", "search_files", {"pattern": "python"}),
    ("Replace cat with dog in pets.txt", "edit_file", {"old": "cat", "new": "dog"}),
    ("Run the tests", "shell", {}),
    ("Run git status", "shell", {}),
    ("Tell me a joke", "", {}),
    ("What is the capital of Italy?", "", {}),
    ("Good morning", "", {}),
    ("How are you?", "", {}),
]


async def first_call(agent: Agent, request: str, folder: str) -> tuple[str, dict[str, str]]:
    async with agent.session(workspace=folder, new=True) as session, session.run(request) as run:
        await run.wait()
        calls = [call for fact in await session.facts() if isinstance(fact, ModelReplied) for call in fact.calls]
    return (calls[0].tool, json.loads(calls[0].arguments)) if calls else ("", {})


async def main(requests: list[Wanted]) -> None:
    right = done = 0
    model = LocalModel()  # one for all sessions, so that it is loaded once
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as kept:
        agent = Agent(model, tools=build_default_tools(kept=kept), limits=Limits(turns=1))
        for request, tool, wanted in requests:
            called, given = await first_call(agent, request, folder)
            # An argument that is left out has its default: no pattern, this folder.
            fits = called == tool and all(
                given.get(name, DEFAULTS.get(name)) == value for name, value in wanted.items()
            )
            right, done = right + (called == tool), done + fits
            if not fits:
                print(f"{request} -> {called} {given}, wanted {tool} {wanted}")
    await model.close()
    print(f"{len(requests)} requests: {right} with the right tool, {done} also with the right arguments")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seen", action="store_true", help="the requests that were looked at")
    asyncio.run(main(SEEN if parser.parse_args().seen else HELD_OUT))
