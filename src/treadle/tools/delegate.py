"""`delegate`: a part of the work for a helper with a session of its own; only its answer comes back."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.tools.base import HelperTask, Tool, ToolContext, ToolError, ToolResult
from treadle.tools.function import tool

_ABOUT = """Give a part of the work to a helper that knows nothing but what you tell it, and get its answer.

Say all that it needs: the goal, the files, what to answer with. Several calls in one reply run at the same time."""


def build_delegate_tool(agents: Mapping[str, str] | None = None) -> Tool:
    """The tool; `agents` are those it can be told to take, with what they are for."""
    listed = "".join(f"\n- {name}: {' '.join(about.split())[:120]}" for name, about in sorted((agents or {}).items()))

    # Safe: the helper's own calls are judged one by one, by no more than the rights of the one who asks.
    @tool(
        name="delegate",
        safety="safe",
        timeout=None,
        description=f"{_ABOUT}\n\nThe agents are:{listed}" if listed else _ABOUT,
        examples=[("have somebody find out where the tests are", {"task": "Find the folder with the tests. Name it."})],
    )
    async def delegated(
        context: ToolContext, task: str, agent: str = "", folder: str = "", read_only: bool = False
    ) -> ToolResult:
        """Give a part of the work to a helper.

        Args:
            task: what to do, with all that is needed to do it
            agent: which agent does it; empty for one like you
            folder: a folder of the workspace that it works in; empty for all of it
            read_only: whether it must ask before it changes anything
        """
        if not task.strip():
            raise ToolError("The task is empty. Say what the helper is to do.")
        if context.services.helpers is None:
            raise ToolError("There are no helpers here. Do it yourself.")
        return await context.services.helpers.run(HelperTask(task, agent, folder, read_only), context)

    # One who is stopped waits until the helper has stopped too: one left behind would be taken up at the next start.
    delegated.ends_when_cancelled = True
    delegated.resumes = True  # with the same helper, which may wait for its answer for days
    return delegated
