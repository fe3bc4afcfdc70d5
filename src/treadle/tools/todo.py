"""`todo`: the model's plan for a longer job. The log keeps it, so people can watch it and a restart keeps it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from treadle.engine.compaction import TODO
from treadle.tools.base import ToolContext, ToolError
from treadle.tools.function import tool

MAX_ITEMS = 100
MAX_CHARACTERS = 500
_MARKS = {"pending": "[ ]", "doing": "[>]", "done": "[x]"}


@dataclass(frozen=True, slots=True)
class TodoItem:
    """One thing to do."""

    text: str
    status: Literal["pending", "doing", "done"] = "pending"


@tool(
    safety="safe",
    timeout=30,
    examples=[
        ("Plan the work: first the tests, then the fix", {"items": [{"text": "tests", "status": "doing"}, "fix"]}),
        ("Make a plan for the party", {"items": ["invite people", "buy food"]}),
    ],
)
async def todo(items: list[TodoItem | str], context: ToolContext) -> str:
    """Write down the plan for a job of several steps, and tick off what is done.

    Give the whole plan each time: it replaces the one before. Keep one item `doing`. An empty list clears it.
    Example: [{"text": "write the test", "status": "done"}, {"text": "fix the bug", "status": "doing"}].

    Args:
        items: all things to do, in order, each with a text and a status (pending, doing or done)
    """
    plan = [item if isinstance(item, TodoItem) else TodoItem(item) for item in items]
    if len(plan) > MAX_ITEMS:
        raise ToolError(f"The plan has {len(plan)} items; keep it to {MAX_ITEMS}. Nothing was changed.")
    for number, item in enumerate(plan, 1):
        if not 0 < len(item.text.strip()) <= MAX_CHARACTERS:
            raise ToolError(f"Item {number} needs a text of at most {MAX_CHARACTERS} characters. Nothing was changed.")
    await context.services.save_note(TODO, [asdict(item) for item in plan])
    if not plan:
        return "The plan is empty."
    done = sum(item.status == "done" for item in plan)
    lines = [f"{_MARKS[item.status]} {' '.join(item.text.split())}" for item in plan]
    return "\n".join([*lines, f"{done} of {len(plan)} done."])
