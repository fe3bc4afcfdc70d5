"""The slash commands of the chat. They act on the session and send no message."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from treadle.cli.console import (
    escape_controls,
    format_count,
    format_table,
    format_time_since,
    style_text,
    truncate_line,
)
from treadle.cli.screen import render_diff
from treadle.cli.sessions import describe_status
from treadle.errors import BadInput
from treadle.events import MessageReceived
from treadle.export.transcript import Form, render_transcript
from treadle.log.base import SessionQuery
from treadle.messages import render_parts

if TYPE_CHECKING:
    from treadle.cli.chat import ChatTerminal
    from treadle.session import Rewind, RewindChange, RewindTarget

COMMANDS = {
    "help": "what can be typed here",
    "model": "show the model, or go on with another: /model openai:NAME",
    "agent": "show the agent, or go on with another: /agent NAME",
    "tools": "what the agent can call",
    "approve": "do not ask for these from now on: /approve shell(git *)",
    "context": "what fills the model's window",
    "compact": "sum up the older turns, to make room; /compact undo shows them again",
    "sessions": "the last sessions of this store",
    "fork": "go on in a new session with the same past: /fork [SEQ]",
    "rewind": "go back to before a message: /rewind [SEQ] [files|conversation|both]",
    "undo": "go back to before the last message",
    "redo": "take the last rewind back",
    "changes": "what this session changed in files",
    "name": "name this session: /name TEXT",
    "export": "write it down: /export [markdown|html|jsonl] [FILE]",
    "cost": "what was used so far",
    "retry": "answer the last message again",
    "continue": "go on after a limit or a stop, with a fresh budget",
    "quit": "leave; nothing is lost",
}


async def run_slash_command(chat: ChatTerminal, line: str) -> None:
    """Run a slash command. Raises `BadInput` for an unknown one."""
    name, _, rest = line[1:].strip().partition(" ")
    actions: dict[str, Callable[[ChatTerminal, str], Awaitable[None]]] = {
        "help": _help,
        "model": _model,
        "agent": _agent,
        "tools": _tools,
        "approve": _approve,
        "context": _context,
        "compact": _compact,
        "sessions": _sessions,
        "fork": _fork,
        "rewind": _rewind,
        "undo": _undo,
        "redo": _redo,
        "changes": _changes,
        "name": _name,
        "export": _export,
        "cost": _cost,
        "retry": _retry,
        "continue": _continue,
        "quit": _quit,
    }
    if name not in actions:
        near = difflib.get_close_matches(name, actions, 1)
        raise BadInput(f"there is no /{name}; {f'did you mean /{near[0]}?' if near else '/help lists what there is'}")
    await actions[name](chat, rest.strip())


async def _help(chat: ChatTerminal, rest: str) -> None:
    for name, about in COMMANDS.items():
        chat.write_note(f"  {'/' + name:<11}{about}")
    chat.write_note("  @path adds a file, Alt-Enter a new line. What is typed while it works steers it.")
    chat.write_note("  Esc or Ctrl-C stops it; Ctrl-C again, or Ctrl-D, leaves.")


async def _model(chat: ChatTerminal, rest: str) -> None:
    if not rest:
        state = await chat.session.state()
        chat.write_note(f"model: {state.model or chat.opened.model.name}")
        return
    chat.screen.window = chat.opened.runtime.model(rest).window
    await chat.session.configure(model=rest)
    chat.write_note(f"from the next run on: {rest}")


async def _agent(chat: ChatTerminal, rest: str) -> None:
    agents = chat.opened.runtime.agents
    if not rest:
        chat.write_note(f"agent: {(await chat.session.state()).agent}; there are: {', '.join(sorted(agents))}")
        return
    if rest not in agents:
        raise BadInput(f"there is no agent {rest!r}; there are: {', '.join(sorted(agents))}")
    await chat.session.configure(agent=rest)
    chat.write_note(f"from the next run on: {rest}")


async def _tools(chat: ChatTerminal, rest: str) -> None:
    for name, tool in sorted(chat.opened.agent.toolbox.items()):
        chat.write_note(f"  {name:<14}{truncate_line(tool.spec.description, chat.console.width - 18)}")


async def _approve(chat: ChatTerminal, rest: str) -> None:
    agent = chat.opened.agent
    if not rest:
        chat.write_note(f"not asked for: {', '.join(agent.grant.approve) or 'nothing in particular'}")
        return
    agent.grant = replace(agent.grant, approve=(*agent.grant.approve, rest))
    chat.write_note(f"from the next run on, until you leave: {rest} is not asked for")


async def _context(chat: ChatTerminal, rest: str) -> None:
    found = await chat.session.context()
    window = f" of {format_count(found.window)} ({found.used / found.window:.0%})" if found.window else ""
    about = "estimated" if found.estimated else "counted by the model's server"
    chat.write_note(f"{format_count(found.used)} tokens{window}, {about}")
    wide = 40
    for name in ("system", "tools", "skills", "files", "history", "free"):
        size = getattr(found, name)
        if size:
            bar = "█" * max(1, round(wide * size / max(1, found.window or found.used)))
            bar = style_text(bar, "dim" if name == "free" else "cyan", chat.console.has_colour)
            chat.write_note(f"  {name:<9}{format_count(size):>8}  {bar}")


async def _compact(chat: ChatTerminal, rest: str) -> None:
    await chat.wait_until_idle("compact")
    if rest not in ("", "undo"):
        raise BadInput(f"/compact takes nothing or undo, not {rest!r}")
    if rest:
        await chat.session.undo_compaction()
        return
    fact = await chat.session.compact()
    if fact is None:
        chat.write_note("there is nothing to gain yet: a summary would be no shorter")


async def _sessions(chat: ChatTerminal, rest: str) -> None:
    page = await chat.opened.runtime.sessions(SessionQuery(limit=10))
    rows = [
        [describe_status(info), info.id[:12], format_time_since(info.updated_at), info.name or "–"]
        for info in page.sessions
    ]
    for line in format_table(rows, ["status", "session", "age", "name"], chat.console.width):
        chat.write_note(line)


async def _fork(chat: ChatTerminal, rest: str) -> None:
    await chat.wait_until_idle("fork")
    forked = await chat.session.fork(chat.parse_position(rest) if rest else None)
    chat.write_note(f"forked: you go on in {forked.id[:12]}; {chat.session.id[:12]} stays as it is")
    chat.switch_session(forked.id)


async def _name(chat: ChatTerminal, rest: str) -> None:
    if not rest:
        raise BadInput("which name? /name TEXT")
    await chat.session.rename(rest)
    chat.write_note(f"named {rest}")


async def _export(chat: ChatTerminal, rest: str) -> None:
    words = rest.split()
    form = words.pop(0) if words and words[0] in ("markdown", "html", "jsonl") else "markdown"
    ending = {"markdown": "md"}.get(form, form)
    name = " ".join(words) or f"treadle-{chat.session.id[:12]}.{ending}"
    data = await render_transcript(chat.opened.runtime.log, chat.session.id, cast("Form", form))
    chat.write_note(f"{len(data)} bytes to {_written(chat.opened.settings.folder, name, data)}")


def _written(folder: Path, name: str, data: bytes) -> Path:
    file = folder / Path(name).expanduser()
    try:
        with file.open("xb") as out:
            out.write(data)
        return file
    except FileExistsError:
        raise BadInput(f"{file} is there already; name another file") from None
    except OSError as error:
        raise BadInput(f"{file} cannot be written: {error.strerror}") from None


async def _cost(chat: ChatTerminal, rest: str) -> None:
    usage = (await chat.session.state()).usage
    cached = f", {usage.cached_tokens / usage.input_tokens:.0%} of it cached" if usage.input_tokens else ""
    money = f" · ${usage.cost:.4f}" if usage.cost else ""
    chat.write_note(f"in {format_count(usage.input_tokens)}{cached} · out {format_count(usage.output_tokens)}{money}")


async def _retry(chat: ChatTerminal, rest: str) -> None:
    await chat.wait_until_idle("retry")
    chat.start_run(chat.session.regenerate())


async def _continue(chat: ChatTerminal, rest: str) -> None:
    await chat.wait_until_idle("continue")
    chat.start_run(chat.session.continue_())


async def _quit(chat: ChatTerminal, rest: str) -> None:
    chat.switch_session("")


async def _rewind(chat: ChatTerminal, rest: str) -> None:
    said = [fact for fact in await chat.session.facts() if isinstance(fact, MessageReceived)]
    if not rest:
        for fact in said[-20:]:
            chat.write_note(
                f"  {fact.seq:>5}  {truncate_line(escape_controls(render_parts(fact.parts)), chat.console.width - 9)}"
            )
        chat.write_note("/rewind NUMBER goes back to before that message")
        return
    number, _, what = rest.partition(" ")
    what = what.strip() or "both"
    if what not in ("files", "conversation", "both"):
        raise BadInput("what should go back? files, conversation or both")
    chosen = [fact for fact in said if fact.seq == chat.parse_position(number)]
    if not chosen:
        raise BadInput(f"{number} is no message of this session; /rewind lists them")
    await _go_back(chat, chosen[0], what)


async def _undo(chat: ChatTerminal, rest: str) -> None:
    said = [entry for entry in (await chat.session.state()).entries if isinstance(entry, MessageReceived)]
    if not said:
        raise BadInput("there is no message to go back before")
    await _go_back(chat, said[-1], "both")


async def _go_back(chat: ChatTerminal, message: MessageReceived, what: RewindTarget) -> None:
    await chat.wait_until_idle("rewind")
    to = message.seq - 1
    _show(chat, await chat.session.rewind(to, what, dry_run=True))
    if not await chat.confirm("go back? y/N> "):
        chat.write_note("nothing was changed")
        return
    _show_skipped(chat, await chat.session.rewind(to, what))
    if what != "files":
        chat.set_draft(render_parts(message.parts))


async def _redo(chat: ChatTerminal, rest: str) -> None:
    await chat.wait_until_idle("redo")
    _show(chat, await chat.session.undo_rewind(dry_run=True))
    if await chat.confirm("take the rewind back? y/N> "):
        _show_skipped(chat, await chat.session.undo_rewind())


async def _changes(chat: ChatTerminal, rest: str) -> None:
    found = await chat.session.changes()
    for change in found:
        _diff(chat, change)
    if not found:
        chat.write_note("no file was changed")


def _show(chat: ChatTerminal, plan: Rewind) -> None:
    for change in plan.changes:
        _diff(chat, change)
    _show_skipped(chat, plan)
    if not plan.changes and plan.what != "conversation":
        chat.write_note("no file would change")


def _diff(chat: ChatTerminal, change: RewindChange) -> None:
    chat.write_note(f"{change.kind}: {change.path}{' (changed by others since)' if change.others else ''}")
    colour = chat.console.has_colour
    for line in render_diff(escape_controls(change.diff).splitlines(), chat.console.width - 2, colour=colour):
        chat.console.write_line(f"  {line}")


def _show_skipped(chat: ChatTerminal, plan: Rewind) -> None:
    for one in plan.skipped:
        chat.write_note(f"stays as it is: {one.path}: {one.why}")
