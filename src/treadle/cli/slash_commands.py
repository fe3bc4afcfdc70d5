"""The slash commands of the chat. They act on the session. Only custom commands send a message."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from treadle.app.settings import config_folder
from treadle.cli.console import (
    escape_controls,
    format_count,
    format_table,
    format_time_since,
    style_text,
    truncate_line,
)
from treadle.cli.message_content import build_message
from treadle.cli.screen import render_diff
from treadle.cli.session_list import describe_status
from treadle.errors import BadInput
from treadle.events import MessageReceived
from treadle.export.transcript import Form, render_transcript
from treadle.knowledge.custom_commands import CustomCommands, list_custom_commands
from treadle.knowledge.file_knowledge import AGENTS_FILE, list_names
from treadle.knowledge.project_facts import describe_project, write_agents_file
from treadle.log.base import SessionQuery
from treadle.messages import render_parts

if TYPE_CHECKING:
    from treadle.cli.chat import ChatTerminal
    from treadle.session import Rewind, RewindChange, RewindTarget

Action = Callable[["ChatTerminal", str], Awaitable[None]]

COMMANDS: dict[str, str] = {}
"""The name of each slash command and its description."""

_ACTIONS: dict[str, Action] = {}
_BAR_WIDTH = 40


def slash_command(name: str, about: str) -> Callable[[Action], Action]:
    """Add a slash command. Its function gets the chat and the words after the name."""

    def add(action: Action) -> Action:
        COMMANDS[name], _ACTIONS[name] = about, action
        return action

    return add


def read_custom_commands(folder: Path) -> CustomCommands:
    """Read the custom commands of a workspace and of the user."""
    return list_custom_commands(folder, config_folder(), frozenset(COMMANDS))


async def run_slash_command(chat: ChatTerminal, line: str) -> None:
    """Run a slash command. Raises `BadInput` for an unknown one."""
    name, _, rest = line[1:].strip().partition(" ")
    custom = read_custom_commands(chat.opened.settings.folder).commands
    if name in custom:
        typed = build_message(rest.strip(), chat.opened.settings.folder)  # only what the user types attaches files
        await chat.send_message([*custom[name].build_parts(rest.strip()), *typed[1:]])
        return
    if name not in _ACTIONS:
        near = difflib.get_close_matches(name, [*_ACTIONS, *custom], 1)
        hint = f"did you mean /{near[0]}?" if near else "/help lists the commands"
        raise BadInput(f"there is no command /{name}; {hint}")
    await _ACTIONS[name](chat, rest.strip())


@slash_command("help", "show the slash commands and keys")
async def _show_help(chat: ChatTerminal, rest: str) -> None:
    custom = read_custom_commands(chat.opened.settings.folder)
    for name, about in (*COMMANDS.items(), *custom.describe().items()):
        chat.write_note(f"  {'/' + name:<11}{about}")
    for problem in custom.problems:
        chat.write_note(str(problem))
    chat.write_note("  @path attaches a file, Alt-Enter adds a line. Messages sent while the agent works steer it.")
    chat.write_note("  Esc or Ctrl-C stops the agent. Ctrl-C again, or Ctrl-D, leaves.")


@slash_command("model", "show the model, or use another: /model openai:NAME")
async def _choose_model(chat: ChatTerminal, rest: str) -> None:
    if not rest:
        state = await chat.session.state()
        chat.write_note(f"model: {state.model or chat.opened.model.name}")
        return
    chat.screen.window = chat.opened.runtime.model(rest).window
    await chat.session.configure(model=rest)
    chat.write_note(f"model from the next run on: {rest}")


@slash_command("agent", "show the agent, or use another: /agent NAME")
async def _choose_agent(chat: ChatTerminal, rest: str) -> None:
    names = ", ".join(sorted(chat.opened.runtime.agents))
    if not rest:
        chat.write_note(f"agent: {(await chat.session.state()).agent}; there are: {names}")
        return
    if rest not in chat.opened.runtime.agents:
        raise BadInput(f"there is no agent {rest!r}; there are: {names}")
    await chat.session.configure(agent=rest)
    chat.write_note(f"agent from the next run on: {rest}")


@slash_command("tools", "list the tools of the agent")
async def _list_tools(chat: ChatTerminal, rest: str) -> None:
    for name, tool in sorted(chat.opened.agent.toolbox.items()):
        chat.write_note(f"  {name:<14}{truncate_line(tool.spec.description, chat.console.width - 18)}")


@slash_command("approve", "allow these calls from now on: /approve shell(git *)")
async def _approve_calls(chat: ChatTerminal, rest: str) -> None:
    agent = chat.opened.agent
    if not rest:
        chat.write_note(f"allowed without asking: {', '.join(agent.grant.approve) or 'no patterns'}")
        return
    agent.grant = replace(agent.grant, approve=(*agent.grant.approve, rest))
    chat.write_note(f"allowed from the next run on, until you leave: {rest}")


@slash_command("context", "show what fills the context window")
async def _show_context(chat: ChatTerminal, rest: str) -> None:
    found = await chat.session.context()
    window = f" of {format_count(found.window)} ({found.used / found.window:.0%})" if found.window else ""
    source = "estimated" if found.estimated else "counted by the model's server"
    chat.write_note(f"{format_count(found.used)} tokens{window}, {source}")
    for name in ("system", "tools", "skills", "files", "history", "free"):
        size = getattr(found, name)
        if size:
            bar = "█" * max(1, round(_BAR_WIDTH * size / max(1, found.window or found.used)))
            bar = style_text(bar, "dim" if name == "free" else "cyan", chat.console.has_colour)
            chat.console.write_aside(f"  {name:<9}{format_count(size):>8}  {bar}")


@slash_command("compact", "summarize the older turns to free context; /compact undo shows them again")
async def _compact_context(chat: ChatTerminal, rest: str) -> None:
    await chat.wait_until_idle("compact")
    if rest not in ("", "undo"):
        raise BadInput(f"/compact takes no argument, or undo; not {rest!r}")
    if rest:
        await chat.session.undo_compaction()
    elif await chat.session.compact() is None:
        chat.write_note("nothing to compact: a summary would not be shorter")


@slash_command("sessions", "list the latest sessions of the store")
async def _list_sessions(chat: ChatTerminal, rest: str) -> None:
    page = await chat.opened.runtime.sessions(SessionQuery(limit=10))
    rows = [
        [describe_status(info), info.id[:12], format_time_since(info.updated_at), info.name or "–"]
        for info in page.sessions
    ]
    for line in format_table(rows, ["status", "session", "age", "name"], chat.console.width):
        chat.write_note(line)


@slash_command("fork", "continue in a new session with the same history: /fork [SEQ]")
async def _fork_session(chat: ChatTerminal, rest: str) -> None:
    await chat.wait_until_idle("fork")
    fork = await chat.session.fork(_parse_position(rest) if rest else None)
    chat.write_note(f"you continue in the new session {fork.id[:12]}; {chat.session.id[:12]} is not changed")
    chat.switch_session(fork.id)


def _parse_position(text: str) -> int:
    if not text.isdigit():
        raise BadInput(f"{text!r} is not a position; positions are numbers from 1")
    return int(text)


@slash_command("rewind", "go back to before a message: /rewind [SEQ] [files|conversation|both]")
async def _rewind_session(chat: ChatTerminal, rest: str) -> None:
    messages = [fact for fact in await chat.session.facts() if isinstance(fact, MessageReceived)]
    if not rest:
        for fact in messages[-20:]:
            text = truncate_line(escape_controls(render_parts(fact.parts)), chat.console.width - 9)
            chat.write_note(f"  {fact.seq:>5}  {text}")
        chat.write_note("/rewind NUMBER goes back to before that message")
        return
    number, _, what = rest.partition(" ")
    what = what.strip() or "both"
    if what not in ("files", "conversation", "both"):
        raise BadInput("choose what to rewind: files, conversation or both")
    chosen = [fact for fact in messages if fact.seq == _parse_position(number)]
    if not chosen:
        raise BadInput(f"{number} is not the position of a message; /rewind lists the messages")
    await _go_back(chat, chosen[0], what)


@slash_command("undo", "go back to before the last message")
async def _undo_message(chat: ChatTerminal, rest: str) -> None:
    messages = [entry for entry in (await chat.session.state()).entries if isinstance(entry, MessageReceived)]
    if not messages:
        raise BadInput("there is no message to undo")
    await _go_back(chat, messages[-1], "both")


async def _go_back(chat: ChatTerminal, message: MessageReceived, what: RewindTarget) -> None:
    await chat.wait_until_idle("rewind")
    position = message.seq - 1
    _show_plan(chat, await chat.session.rewind(position, what, dry_run=True))
    if not await chat.confirm("go back? y/N> "):
        chat.write_note("nothing was changed")
        return
    _show_skipped(chat, await chat.session.rewind(position, what))
    if what != "files":
        chat.draft = render_parts(message.parts)


@slash_command("redo", "undo the last rewind")
async def _undo_rewind(chat: ChatTerminal, rest: str) -> None:
    await chat.wait_until_idle("redo")
    _show_plan(chat, await chat.session.undo_rewind(dry_run=True))
    if await chat.confirm("undo the rewind? y/N> "):
        _show_skipped(chat, await chat.session.undo_rewind())


@slash_command("changes", "show what this session changed in files and git")
async def _show_changes(chat: ChatTerminal, rest: str) -> None:
    found = await chat.session.changes()
    for change in found:
        _show_change(chat, change)
    if not found:
        chat.write_note("nothing was changed")


def _show_plan(chat: ChatTerminal, plan: Rewind) -> None:
    for change in plan.changes:
        _show_change(chat, change)
    _show_skipped(chat, plan)
    if not plan.changes and plan.what != "conversation":
        chat.write_note("no file and no branch would change")


def _show_change(chat: ChatTerminal, change: RewindChange) -> None:
    chat.write_note(f"{change.kind}: {change.path}{' (changed by others since)' if change.others else ''}")
    colour = chat.console.has_colour
    for line in render_diff(escape_controls(change.diff).splitlines(), chat.console.width - 2, colour=colour):
        chat.console.write_line(f"  {line}")


def _show_skipped(chat: ChatTerminal, plan: Rewind) -> None:
    for skipped in plan.skipped:
        chat.write_note(f"not changed: {skipped.path}: {skipped.why}")


@slash_command("name", "name this session: /name TEXT")
async def _name_session(chat: ChatTerminal, rest: str) -> None:
    if not rest:
        raise BadInput("the name is missing: /name TEXT")
    await chat.session.rename(rest)
    chat.write_note(f"named {rest}")


@slash_command("export", "write the session to a file: /export [markdown|html|jsonl] [FILE]")
async def _export_session(chat: ChatTerminal, rest: str) -> None:
    words = rest.split()
    form = words.pop(0) if words and words[0] in ("markdown", "html", "jsonl") else "markdown"
    ending = "md" if form == "markdown" else form
    name = " ".join(words) or f"treadle-{chat.session.id[:12]}.{ending}"
    data = await render_transcript(chat.opened.runtime.log, chat.session.id, cast("Form", form))
    file = chat.opened.settings.folder / Path(name).expanduser()
    try:
        with file.open("xb") as out:
            out.write(data)
    except FileExistsError:
        raise BadInput(f"{file} exists already; choose another name") from None
    except OSError as error:
        raise BadInput(f"{file} cannot be written: {error.strerror}") from None
    chat.write_note(f"{len(data)} bytes written to {file}")


@slash_command("cost", "show the tokens and the cost so far")
async def _show_cost(chat: ChatTerminal, rest: str) -> None:
    usage = (await chat.session.state()).usage
    cached = f", {usage.cached_tokens / usage.input_tokens:.0%} of it cached" if usage.input_tokens else ""
    money = f" · ${usage.cost:.4f}" if usage.cost else ""
    chat.write_note(f"in {format_count(usage.input_tokens)}{cached} · out {format_count(usage.output_tokens)}{money}")


@slash_command("retry", "answer the last message again")
async def _retry_answer(chat: ChatTerminal, rest: str) -> None:
    await chat.wait_until_idle("retry")
    chat.start_run(chat.session.regenerate())


@slash_command("continue", "continue after a limit or a stop, with new limits")
async def _continue_run(chat: ChatTerminal, rest: str) -> None:
    await chat.wait_until_idle("continue")
    chat.start_run(chat.session.continue_())


@slash_command("init", "write an AGENTS.md from what is found in this folder")
async def _write_agents_file(chat: ChatTerminal, rest: str) -> None:
    folder = chat.opened.settings.folder
    text, found = describe_project(folder), list_names(folder, (), "file") + list_names(folder, (), "link")
    chat.write_note(text)
    question = "AGENTS.md exists; replace it with this text? y/N> " if AGENTS_FILE in found else ""
    if not question and "CLAUDE.md" in found:
        question = "CLAUDE.md is read now, and is not read beside an AGENTS.md; write it? y/N> "
    if question and not await chat.confirm(question):
        chat.write_note("nothing was changed")
        return
    file = write_agents_file(folder, text, replace=AGENTS_FILE in found)
    chat.write_note(f"written to {file}; agents read it from the next run on")


@slash_command("quit", "leave; everything is recorded")
async def _leave_chat(chat: ChatTerminal, rest: str) -> None:
    chat.switch_session("")
