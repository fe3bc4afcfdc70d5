"""The access modes of a chat: Shift-Tab goes through them, and a plan is accepted, edited or sent back."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from treadle.app.session_access import accept_plan, change_access, describe_access, next_access
from treadle.cli.approval_text import shorten_home
from treadle.cli.console import escape_controls
from treadle.cli.draw.glyphs import Theme
from treadle.cli.terminal.question import QuestionContent
from treadle.cli.terminal.status_line import ACCESS_ROLES
from treadle.events import Tier

if TYPE_CHECKING:
    from treadle.cli.chat import ChatTerminal

FULL_ACCESS = "No sandbox: commands run as you, with your keys and the network."


async def cycle_access(chat: ChatTerminal) -> None:
    """Go to the next access mode and say what it allows. Full access is asked for first."""
    chosen = next_access(chat.access)
    if chosen == "full" and not await confirm_full_access(chat):
        chosen = next_access(chosen)
    await change_access(chat.opened.runtime, chat.session.id, chosen)
    chat.access = chosen
    chat.console.set_hint(render_access(chosen, chat.console.theme, chat.opened.settings.network))


def render_access(access: Tier, theme: Theme, network: Sequence[str] = ()) -> str:
    """Render an access mode and what it allows."""
    name = theme.paint(access, ACCESS_ROLES.get(access, "strong"))
    return f"  {name}  {theme.paint(describe_access(access, network), 'quiet')}"


async def confirm_full_access(chat: ChatTerminal) -> bool:
    """Ask whether the session may do all that the user can do."""
    folder = escape_controls(shorten_home(chat.opened.settings.folder))
    content = QuestionContent(
        f"Full access in {folder}, for this session",
        lambda theme, width: textwrap.wrap(FULL_ACCESS, width),
        (("y", "yes"), ("n", f"no, go on to {next_access('full')}")),
        is_harmful=True,
        escape="n",
        way_out=("Esc", "no"),
    )
    return (await chat.ask(content)).key == "y"


async def offer_plan(chat: ChatTerminal, plan: str) -> None:
    """Let the user accept a plan, edit it first, or say what is missing. Nothing changes before it is accepted."""
    await chat.wait_until_idle("accept a plan")
    content = QuestionContent(
        "Do it this way?",
        lambda theme, width: [],
        (
            ("y", "yes, and work in sandbox"),
            ("r", "yes, and ask before each change"),
            ("e", "edit the plan first"),
            ("n", "no, and say what is missing"),
        ),
        facts="nothing has changed yet",
        reason_key="n",
        reason_prompt="no, this is missing:",
        escape="later",
        way_out=("Esc", "decide later with /plan"),
    )
    while (choice := await chat.ask(content)).key == "e":
        edited = (await chat.console.edit_text(plan)).strip()
        if edited and edited != plan:
            plan = edited
            chat.console.write_block(escape_controls(plan), "answer")
        elif not edited:
            chat.write_note("an empty plan cannot be accepted; it stays as it was")
    if choice.key in ("y", "r"):
        access: Tier = "sandbox" if choice.key == "y" else "read-only"
        chat.start_run(accept_plan(chat.opened.runtime, chat.session.id, plan, access))
        chat.access = access
    elif choice.reason:
        await chat.handle_text(choice.reason)
