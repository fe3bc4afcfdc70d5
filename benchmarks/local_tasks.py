"""How well the embedded model uses tools: small tasks, scored. Not a benchmark of speed.

    python benchmarks/local_tasks.py [--set development|held-out] [--model PATH] [--driver NAME] [--kind KIND] [--show]

The development tasks are those the driver was made with; the held-out ones were written without a look at how it
does on them, and are only counted. The loop here is the smallest one over the model port.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import operator
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from jsonschema import Draft202012Validator
from msgspec import Struct

from treadle.messages import Json, Message, ModelMessage, Reply, Request, ResultMessage, TextPart, ToolSpec, UserMessage
from treadle.models.base import Model

MAX_TURNS = 6

FILES = {
    "todo.txt": "buy milk\ncall Anna\nfix the bike\n",
    "poem.txt": "The sun goes down, the moon comes up, and all the birds are sleeping.\n",
    "budget.txt": "The rent is 750 euros.\nThe food is 300 euros.\n",
    "team.md": "Our team leader is Maria. Our designer is Tom.\n",
    "recipes/soup.txt": "Boil two carrots and one onion for twenty minutes.\n",
    "recipes/cake.txt": "Mix flour, sugar and four eggs. Bake for one hour.\n",
    "letters/john.txt": "Dear John, the meeting is on Friday at noon.\n",
}
TIME = "14:35 on Tuesday 6 May 2025"


def _spec(name: str, description: str, parameters: dict[str, Json], *examples: tuple[str, dict[str, Json]]) -> ToolSpec:
    required = [each for each in parameters if "default" not in parameters[each]]
    schema = {"type": "object", "properties": parameters, "required": required, "additionalProperties": False}
    return ToolSpec(name, description, schema, examples)


TOOLS = (
    _spec(
        "calculate", "Work out an arithmetic expression.", {"expression": {"type": "string"}},
        ("What is 3 plus 4?", {"expression": "3 + 4"}),
        ("Multiply 6 by 9", {"expression": "6 * 9"}),
        ("How much is 100 divided by 8?", {"expression": "100 / 8"}),
        ("Subtract 15 from 40", {"expression": "40 - 15"}),
    ),
    _spec(
        "list_files", "List the files in a folder.", {"folder": {"type": "string", "default": "."}},
        ("Which files are there?", {}),
        ("List the files in the photos folder", {"folder": "photos"}),
        ("Show me what is in the music folder", {"folder": "music"}),
        ("What files do I have?", {}),
    ),
    _spec(
        "read_file", "Read a text file.", {"path": {"type": "string"}},
        ("Read the file plan.txt", {"path": "plan.txt"}),
        ("What does letters/mum.txt say?", {"path": "letters/mum.txt"}),
        ("Show me the contents of ideas.md", {"path": "ideas.md"}),
        ("Who is mentioned in story.txt?", {"path": "story.txt"}),
    ),
    _spec(
        "count_words", "Count the words in a text file.", {"path": {"type": "string"}},
        ("How many words are in essay.txt?", {"path": "essay.txt"}),
        ("Count the words in letters/aunt.txt", {"path": "letters/aunt.txt"}),
        ("How long is speech.md?", {"path": "speech.md"}),
        ("Give me the word count of intro.txt", {"path": "intro.txt"}),
    ),
    _spec(
        "current_time", "Tell the current date and time.", {},
        ("What time is it?", {}),
        ("What is the date today?", {}),
        ("Which day of the week is it?", {}),
        ("Tell me the time", {}),
    ),
    _spec(
        "add_note", "Save a short note for later.", {"text": {"type": "string"}},
        ("Make a note: water the plants", {"text": "water the plants"}),
        ("Remember that the key is under the mat", {"text": "the key is under the mat"}),
        ("Write down that Bob is 40 years old", {"text": "Bob is 40 years old"}),
        ("Note that the shop closes at six", {"text": "the shop closes at six"}),
    ),
    _spec(
        "show_notes", "Show all notes that were saved.", {},
        ("What are my notes?", {}),
        ("Show my notes", {}),
        ("What did I ask you to remember?", {}),
        ("Do I have any notes?", {}),
    ),
)  # fmt: skip


class Task(Struct, frozen=True):
    """A request, the tools it takes in this order, and what the answer (or the new note) must contain.

    Each entry of `says` is a choice of spellings divided by a bar.
    """

    kind: str
    ask: str
    tools: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    note: str = ""


DEVELOPMENT = (
    Task("calculator", "What is 12 times 7?", ("calculate",), ("84",)),
    Task("calculator", "Add 125 and 378", ("calculate",), ("503",)),
    Task("calculator", "How much is 144 divided by 12?", ("calculate",), ("12",)),
    Task("calculator", "What is 1000 minus 421?", ("calculate",), ("579",)),
    Task("calculator", "Please calculate 17 * 23", ("calculate",), ("391",)),
    Task("calculator", "What do 8, 9 and 10 add up to?", ("calculate",), ("27",)),
    Task("calculator", "What is 2.5 times 4?", ("calculate",), ("10",)),
    Task("list", "What files are in this folder?", ("list_files",), ("todo.txt", "poem.txt")),
    Task("list", "List the files in the recipes folder", ("list_files",), ("soup.txt", "cake.txt")),
    Task("list", "Show me all the files", ("list_files",), ("todo.txt", "team.md")),
    Task("list", "Which documents are in letters?", ("list_files",), ("john.txt",)),
    Task("read", "Read todo.txt", ("read_file",), ("milk", "Anna")),
    Task("read", "What does poem.txt say?", ("read_file",), ("moon",)),
    Task("read", "Who is the team leader according to team.md?", ("read_file",), ("Maria",)),
    Task("read", "Open recipes/soup.txt for me", ("read_file",), ("carrot",)),
    Task("read", "What is in the file letters/john.txt?", ("read_file",), ("Friday",)),
    Task("read", "How much is the rent in budget.txt?", ("read_file",), ("750",)),
    Task("words", "How many words does poem.txt have?", ("count_words",), ("14",)),
    Task("words", "Count the words in todo.txt", ("count_words",), ("7",)),
    Task("words", "How long is team.md?", ("count_words",), ("9",)),
    Task("time", "What time is it now?", ("current_time",), ("14:35|2:35",)),
    Task("time", "What day is it today?", ("current_time",), ("Tuesday",)),
    Task("time", "Tell me today's date", ("current_time",), ("6 May|May 6",)),
    Task("notes", "Make a note: buy bread", ("add_note",), (), "buy bread"),
    Task("notes", "Remember that my car is red", ("add_note",), (), "my car is red"),
    Task("notes", "Please note that the train leaves at nine", ("add_note",), (), "train leaves at nine"),
    Task("notes", "Write down that Peter owes me 20 euros", ("add_note",), (), "Peter owes me 20 euros"),
    Task("notes", "Show me my notes", ("show_notes",), ("passport",)),
    Task("notes", "Which notes do I have?", ("show_notes",), ("passport",)),
    Task("two-step", "What is 6 times 7, and what time is it?", ("calculate", "current_time"), ("42", "14:35|2:35")),
    Task("two-step", "List the files and then read todo.txt", ("list_files", "read_file"), ("milk",)),
    Task("two-step", "Calculate 15 + 27 and write it down as a note", ("calculate", "add_note"), (), "42"),
    Task("two-step", "Read team.md and then count the words in it", ("read_file", "count_words"), ("9",)),
    Task(
        "two-step",
        "Make a note: call the bank. Then show my notes.",
        ("add_note", "show_notes"),
        ("bank",),
        "call the bank",
    ),
    Task("two-step", "Count the words in poem.txt and multiply that by 3", ("count_words", "calculate"), ("42",)),
    Task("plain", "Hello, how are you?"),
    Task("plain", "What is the capital of France?", (), ("Paris",)),
    Task("plain", "Thank you very much!"),
    Task("plain", "What colour is the sky on a clear day?", (), ("blue",)),
    Task("plain", "Write one sentence about cats.", (), ("cat",)),
    Task("plain", "Who are you?"),
    Task("plain", "What do bees make?", (), ("honey",)),
    Task("calculator", "What is 9 times 13?", ("calculate",), ("117",)),
    Task("calculator", "Can you work out 256 / 16 for me?", ("calculate",), ("16",)),
    Task("calculator", "Compute 88 plus 67", ("calculate",), ("155",)),
    Task("calculator", "How much is 500 minus 123?", ("calculate",), ("377",)),
    Task("calculator", "Multiply 14 by 15", ("calculate",), ("210",)),
    Task("calculator", "What is the sum of 21, 34 and 55?", ("calculate",), ("110",)),
    Task("calculator", "Divide 99 by 4", ("calculate",), ("24.75",)),
    Task("list", "Which files do you see here?", ("list_files",), ("budget.txt", "poem.txt")),
    Task("list", "What is inside the letters folder?", ("list_files",), ("john.txt",)),
    Task("list", "Give me a list of the files in recipes", ("list_files",), ("soup.txt", "cake.txt")),
    Task("list", "Please list my files", ("list_files",), ("todo.txt", "budget.txt")),
    Task("read", "Please open poem.txt", ("read_file",), ("moon",)),
    Task("read", "What does recipes/cake.txt say?", ("read_file",), ("flour",)),
    Task("read", "Tell me what is written in letters/john.txt", ("read_file",), ("Friday",)),
    Task("read", "Who is the designer in team.md?", ("read_file",), ("Tom",)),
    Task("read", "Show me todo.txt", ("read_file",), ("milk", "bike")),
    Task("read", "According to budget.txt, how much is the food?", ("read_file",), ("300",)),
    Task("words", "How many words are there in team.md?", ("count_words",), ("9",)),
    Task("words", "Give me the number of words in letters/john.txt", ("count_words",), ("9",)),
    Task("words", "How long is budget.txt?", ("count_words",), ("10",)),
    Task("time", "Do you know what time it is?", ("current_time",), ("14:35|2:35",)),
    Task("time", "What is today's date?", ("current_time",), ("6 May|May 6",)),
    Task("time", "What weekday is it?", ("current_time",), ("Tuesday",)),
    Task("notes", "Note that the dentist is on Monday", ("add_note",), (), "dentist is on Monday"),
    Task("notes", "Please remember that Lisa likes tea", ("add_note",), (), "Lisa likes tea"),
    Task("notes", "Make a note: pay the electricity bill", ("add_note",), (), "pay the electricity bill"),
    Task("notes", "Save a note saying that the meeting is in room 12", ("add_note",), (), "meeting is in room 12"),
    Task("notes", "Can I see my notes?", ("show_notes",), ("passport",)),
    Task("notes", "What notes have I saved?", ("show_notes",), ("passport",)),
    Task("two-step", "What is 8 times 9, and which day is it today?", ("calculate", "current_time"), ("72", "Tuesday")),
    Task(
        "two-step",
        "Show me the files in recipes and then read recipes/soup.txt",
        ("list_files", "read_file"),
        ("carrot",),
    ),
    Task("two-step", "Work out 31 + 11 and save it as a note", ("calculate", "add_note"), (), "42"),
    Task("two-step", "Read poem.txt, then count its words", ("read_file", "count_words"), ("14",)),
    Task(
        "two-step",
        "Remember that Sam is tall, then show me my notes",
        ("add_note", "show_notes"),
        ("Sam",),
        "Sam is tall",
    ),
    Task("two-step", "Count the words in todo.txt and add 5 to that", ("count_words", "calculate"), ("12",)),
    Task("plain", "Hi there!"),
    Task("plain", "What is the capital of Italy?", (), ("Rome",)),
    Task("plain", "That was helpful, thanks."),
    Task("plain", "What colour is grass?", (), ("green",)),
    Task("plain", "Tell me something about dogs.", (), ("dog",)),
    Task("plain", "What is your name?"),
    Task("plain", "Which animal says meow?", (), ("cat",)),
)

HELD_OUT = (
    Task("calculator", "How much is 35 plus 48?", ("calculate",), ("83",)),
    Task("calculator", "What is 19 times 6?", ("calculate",), ("114",)),
    Task("calculator", "Please divide 150 by 12", ("calculate",), ("12.5",)),
    Task("calculator", "Subtract 77 from 200", ("calculate",), ("123",)),
    Task("calculator", "Work out 12 + 30 - 5", ("calculate",), ("37",)),
    Task("calculator", "Can you multiply 23 by 11?", ("calculate",), ("253",)),
    Task("calculator", "Tell me the sum of 64 and 36", ("calculate",), ("100",)),
    Task("list", "Show the files in the letters folder", ("list_files",), ("john.txt",)),
    Task("list", "What files can I read here?", ("list_files",), ("poem.txt", "team.md")),
    Task("list", "List all my files", ("list_files",), ("todo.txt", "budget.txt")),
    Task("list", "What do I have in the recipes folder?", ("list_files",), ("soup.txt", "cake.txt")),
    Task("read", "Read recipes/cake.txt to me", ("read_file",), ("flour",)),
    Task("read", "What is written in todo.txt?", ("read_file",), ("milk", "Anna")),
    Task("read", "Show me the text of poem.txt", ("read_file",), ("moon",)),
    Task("read", "Who are the people in team.md?", ("read_file",), ("Maria", "Tom")),
    Task("read", "When is the meeting in letters/john.txt?", ("read_file",), ("Friday",)),
    Task("read", "Please show budget.txt", ("read_file",), ("750", "300")),
    Task("words", "How many words has recipes/soup.txt got?", ("count_words",), ("9",)),
    Task("words", "What is the word count of poem.txt?", ("count_words",), ("14",)),
    Task("words", "Count the words of budget.txt please", ("count_words",), ("10",)),
    Task("time", "What is the time?", ("current_time",), ("14:35|2:35",)),
    Task("time", "Which date is it today?", ("current_time",), ("6 May|May 6",)),
    Task("time", "Is it Monday or Tuesday today?", ("current_time",), ("Tuesday",)),
    Task("notes", "Take a note: the wifi password is banana", ("add_note",), (), "the wifi password is banana"),
    Task("notes", "Remember that Julia arrives on Sunday", ("add_note",), (), "Julia arrives on Sunday"),
    Task("notes", "Write down that we need new chairs", ("add_note",), (), "we need new chairs"),
    Task("notes", "Please make a note that the window is broken", ("add_note",), (), "window is broken"),
    Task("notes", "Show all my notes", ("show_notes",), ("passport",)),
    Task("notes", "What is in my notes?", ("show_notes",), ("passport",)),
    Task(
        "two-step",
        "Tell me the time and then list the files",
        ("current_time", "list_files"),
        ("14:35|2:35", "todo.txt"),
    ),
    Task("two-step", "Read todo.txt and tell me what day it is", ("read_file", "current_time"), ("milk", "Tuesday")),
    Task("two-step", "What is 20 plus 22? Write it down as a note.", ("calculate", "add_note"), (), "42"),
    Task("two-step", "Count the words in team.md, then multiply that by 2", ("count_words", "calculate"), ("18",)),
    Task(
        "two-step",
        "Note that Max is my cousin and then show my notes",
        ("add_note", "show_notes"),
        ("Max",),
        "Max is my cousin",
    ),
    Task(
        "two-step",
        "How many words are in poem.txt and how many are in team.md?",
        ("count_words", "count_words"),
        ("14", "9"),
    ),
    Task("plain", "Good evening!"),
    Task("plain", "What is the capital of Germany?", (), ("Berlin",)),
    Task("plain", "Thanks, bye."),
    Task("plain", "What colour is snow?", (), ("white",)),
    Task("plain", "Write a sentence about horses.", (), ("horse",)),
    Task("plain", "Can you help me?"),
    Task("plain", "What is the opposite of hot?", (), ("cold",)),
)


class Office:
    """The tools' functions over a scratch folder and a list of notes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes = ["renew the passport"]
        for name, text in FILES.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)

    def run(self, tool: str, arguments: dict[str, Json]) -> str:
        run: Callable[..., str] = getattr(self, tool)
        return run(**arguments)

    def calculate(self, expression: str) -> str:
        value = _value(ast.parse(expression, mode="eval").body)
        return f"{value:.10g}"

    def list_files(self, folder: str = ".") -> str:
        return "\n".join(sorted(each.name + "/" * each.is_dir() for each in (self.folder / folder).iterdir()))

    def read_file(self, path: str) -> str:
        return (self.folder / path).read_text()

    def count_words(self, path: str) -> str:
        return str(len(self.read_file(path).split()))

    def current_time(self) -> str:
        return TIME

    def add_note(self, text: str) -> str:
        self.notes.append(text)
        return f"Saved: {text}"

    def show_notes(self) -> str:
        return "\n".join(f"- {note}" for note in self.notes)


_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left), _value(right))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case _:
            raise ValueError("not arithmetic")


class Score(Struct):
    """How one task went."""

    task: Task
    calls: list[tuple[str, str]]
    results: list[str]
    answer: str
    seconds: float
    notes: list[str]

    @property
    def well_formed(self) -> bool:
        specs = {spec.name: spec for spec in TOOLS}
        return all(
            tool in specs and Draft202012Validator(specs[tool].parameters).is_valid(json.loads(arguments))
            for tool, arguments in self.calls
        )

    @property
    def right_tools(self) -> bool:
        return tuple(tool for tool, _ in self.calls) == self.task.tools

    @property
    def done(self) -> bool:
        said = all(any(word.lower() in self.answer.lower() for word in each.split("|")) for each in self.task.says)
        noted = not self.task.note or any(self.task.note.lower() in note.lower() for note in self.notes)
        return self.right_tools and said and noted and bool(self.answer.strip())


async def attempt(model: Model, task: Task, number: int) -> Score:
    """Give one task to the model in a fresh folder, and see what it does."""
    messages: list[Message] = [UserMessage((TextPart(task.ask),))]
    calls: list[tuple[str, str]] = []
    results: list[str] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        office = Office(Path(folder))
        reply = Reply()
        for _ in range(MAX_TURNS):
            request = Request("", list(messages), TOOLS, max_tokens=200, session_id=f"task-{number}")
            async for event in model.stream(request):
                if isinstance(event, Reply):
                    reply = event
            messages.append(ModelMessage(reply.text, reply.calls))
            if not reply.calls:
                break
            for call in reply.calls:
                try:
                    text, ok = office.run(call.tool, msgspec.json.decode(call.arguments)), True
                except Exception as error:
                    text, ok = f"{type(error).__name__}: {error}", False
                messages.append(ResultMessage(call.id, call.tool, text, ok))
                calls.append((call.tool, call.arguments))
                results.append(text)
        return Score(task, calls, results, reply.text, time.monotonic() - began, office.notes[1:])


def report(scores: list[Score]) -> str:
    """The table for docs/local-model.md."""
    lines = ["| kind | tasks | right tools | done | seconds a task |", "|---|---|---|---|---|"]
    kinds = list(dict.fromkeys(score.task.kind for score in scores))
    for kind in [*kinds, "all"]:
        some = [score for score in scores if kind in ("all", score.task.kind)]
        right, done = sum(score.right_tools for score in some), sum(score.done for score in some)
        seconds = sum(score.seconds for score in some) / len(some)
        lines.append(f"| {kind} | {len(some)} | {right} | {done} | {seconds:.1f} |")
    calls = sum(len(score.calls) for score in scores)
    lines.append(f"\nWell-formed: all {calls} calls" if all(s.well_formed for s in scores) else "\nILL-FORMED CALLS")
    return "\n".join(lines)


async def main() -> None:
    from treadle.models.local.local_model import LocalModel

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=("development", "held-out"), default="held-out")
    parser.add_argument("--model", help="a GGUF file; the embedded model if not given")
    parser.add_argument("--driver", choices=("choose", "union", "native"), help="how tools are offered")
    parser.add_argument("--kind", help="only tasks of this kind")
    parser.add_argument("--show", action="store_true", help="print every task, its calls and its answer")
    options = parser.parse_args()
    model = LocalModel(options.model, driver=options.driver)
    scores: list[Score] = []
    tasks = DEVELOPMENT if options.set == "development" else HELD_OUT
    try:
        for number, task in enumerate(tasks):
            if options.kind not in (None, task.kind):
                continue
            scores.append(score := await attempt(model, task, number))
            if options.show:
                mark = "done" if score.done else "right tools" if score.right_tools else "FAILED"
                print(f"{mark:12}{score.seconds:5.1f} s  {task.ask}\n    {score.calls}\n    {score.answer!r}")
    finally:
        model.unload()
    print(report(scores))


if __name__ == "__main__":
    asyncio.run(main())
