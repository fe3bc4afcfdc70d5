"""The built-in agents. They are written like any other, so that users can copy and change them."""

from __future__ import annotations

from functools import cache

from treadle.knowledge.agents import AgentFile, read_agent
from treadle.knowledge.builtin_instructions import INSTRUCTIONS

_HEADERS = {
    "default": """\
---
description: Answers, looks things up and does what is asked, with all tools.
---
""",
    "reader": """\
---
description: Finds out and explains; changes nothing.
tools: read_file, list_files, search_files, read_output, calculate, current_time, recall, use_skill, ask_user, todo
posture: cautious
---
""",
    "coder": """\
---
description: Changes code, runs the tests, and leaves the work tree as it should be.
---
""",
    "architect": """\
---
description: Thinks a change through and writes a plan; changes nothing.
tools: read_file, list_files, search_files, read_output, calculate, recall, use_skill, ask_user, todo, delegate
posture: cautious
---
""",
}


@cache
def load_builtin_agents() -> dict[str, AgentFile]:
    """Load the built-in agents by name."""
    texts = {name: f"{header}{INSTRUCTIONS[name]}\n" for name, header in _HEADERS.items()}
    found = {name: read_agent(f"<{name}>", text, name, "builtin")[0] for name, text in texts.items()}
    return {name: agent for name, agent in found.items() if agent is not None}
