"""`use_skill`: the text of a skill, or of a file that comes with it."""

from __future__ import annotations

from treadle.knowledge.base import Knowledge
from treadle.permissions.data_flow import SKILL
from treadle.tools.base import Tool, ToolContext, ToolError, ToolResult
from treadle.tools.function import tool


def build_skill_tool(knowledge: Knowledge) -> Tool:
    """Build the tool that reads the skills of `knowledge`."""

    @tool(safety="safe", timeout=60, cap=32 * 1024, examples=[("use the skill for releases", {"name": "releases"})])
    def use_skill(context: ToolContext, name: str, file: str = "") -> ToolResult:
        """Read a skill: how to do something, as somebody wrote it down.

        Args:
            name: the skill
            file: a file that comes with it, as its text or its list names it; empty for the skill itself
        """
        skills = {one.name: one for one in knowledge.load_skills(context.workspace).values() if one.enabled}
        skill = skills.get(name)
        if skill is None:
            raise ToolError(f"There is no skill named {name!r}. The skills are: {', '.join(sorted(skills)) or 'none'}.")
        sources = (SKILL,) if skill.origin == "workspace" else ()
        if file:
            return ToolResult(knowledge.read_resource(skill, file), sources=sources)
        files = knowledge.read_resource(skill, "")
        more = f"\n\nFiles that come with it, in {skill.folder}:\n{files}" if files else ""
        return ToolResult(f"{skill.body}{more}", sources=sources)

    return use_skill
