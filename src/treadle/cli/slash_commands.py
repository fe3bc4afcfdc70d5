"""The slash commands of the chat. They act on the session. Only custom commands send a message."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from msgspec.structs import replace

from treadle.app.custom_commands import CustomCommands, list_custom_commands
from treadle.app.project_facts import describe_project, list_instruction_files, write_agents_file
from treadle.app.session_access import find_plan
from treadle.app.settings import config_folder
from treadle.cli.chat_access import offer_plan
from treadle.cli.choose_session import pick_session
from treadle.cli.console import escape_controls, format_time_since, truncate_line
from treadle.cli.draw.diff import count_changes, render_diff
from treadle.cli.draw.glyphs import Theme
from treadle.cli.draw.panels import measure_usage, render_context, render_cost
from treadle.cli.message_content import build_message
from treadle.cli.picker_rows import PickerRow, list_agent_rows, list_model_rows
from treadle.cli.session_list import sum_cost_of_today
from treadle.cli.terminal.key_help import KEYS, render_key_table
from treadle.cli.terminal.question import QuestionContent
from treadle.errors import BadInput
from treadle.events import MessageReceived
from treadle.export.transcript import Form, render_transcript
from treadle.messages import render_parts

if TYPE_CHECKING:
    from treadle.cli.chat import ChatTerminal
    from treadle.session import Rewind, RewindChange, RewindTarget

Action = Callable[["ChatTerminal", str], Awaitable[None]]

COMMANDS: dict[str, str] = {}
"""The name of each slash command and its description."""

_ACTIONS: dict[str, Action] = {}


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
    for name, about in chat.commands.items():
        chat.write_note(f"  {'/' + name:<11}{about}")
    chat.console.write_block(render_key_table(KEYS, chat.console.theme, chat.console.width), gap=True)
    for problem in read_custom_commands(chat.opened.settings.folder).problems:
        chat.write_note(str(problem))


@slash_command("model", "choose another model: /model [NAME]")
async def _choose_model(chat: ChatTerminal, rest: str) -> None:
    if not rest:
        chat.console.set_hint("  looking for models")
        rows = await list_model_rows(chat.opened.settings, chat.keyring, chat.model_name)
        chat.console.set_hint("")
        rest = await chat.console.pick("Model for this session", rows, enter="use here") or ""
    if not rest or rest == chat.model_name:
        return
    chat.screen.window = chat.opened.runtime.model(rest).window
    await chat.session.configure(model=rest)
    chat.model_name = rest
    chat.write_note(f"model from the next run on: {rest}")


@slash_command("agent", "choose another agent: /agent [NAME]")
async def _choose_agent(chat: ChatTerminal, rest: str) -> None:
    agents, current = chat.opened.runtime.agents, (await chat.session.state()).agent
    if not rest:
        rows = list_agent_rows(chat.opened.settings.folder, current, agents)
        rest = await chat.console.pick("Agent", rows, enter="use here") or ""
    if not rest or rest == current:
        return
    if rest not in agents:
        raise BadInput(f"there is no agent {rest!r}; there are: {', '.join(sorted(agents))}")
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
    found, facts = await chat.session.context(), await chat.session.facts()
    lines = render_context(found, facts, chat.console.width - 1, chat.console.theme)
    chat.console.write_block("\n".join(lines), gap=True)


@slash_command("compact", "summarize the older turns to free context; /compact undo shows them again")
async def _compact_context(chat: ChatTerminal, rest: str) -> None:
    await chat.wait_until_idle("compact")
    if rest not in ("", "undo"):
        raise BadInput(f"/compact takes no argument, or undo; not {rest!r}")
    if rest:
        await chat.session.undo_compaction()
    elif await chat.session.compact() is None:
        chat.write_note("nothing to compact: a summary would not be shorter")


@slash_command("sessions", "open another session: /sessions [WORDS]")
async def _open_session(chat: ChatTerminal, rest: str) -> None:
    await chat.wait_until_idle("open another session")
    picked = await pick_session(
        chat.console, chat.opened.runtime.log, chat.opened.settings.folder, chat.session.id, rest
    )
    if picked:
        chat.switch_session(picked)


@slash_command("plan", "look at the last plan again, and accept it")
async def _decide_plan(chat: ChatTerminal, rest: str) -> None:
    last = (await chat.session.state()).last
    plan = find_plan(last, chat.access) if last is not None else ""
    if not plan:
        raise BadInput("there is no plan to accept; Shift-Tab changes to plan mode")
    chat.console.write_block(escape_controls(plan), "answer")
    await offer_plan(chat, plan)


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


@slash_command("rewind", "go back to before a message; files, chat or both")
async def _rewind_session(chat: ChatTerminal, rest: str) -> None:
    await chat.wait_until_idle("rewind")
    messages = [fact for fact in await chat.session.facts() if isinstance(fact, MessageReceived)]
    number, _, what = rest.partition(" ")
    what = what.strip()
    if not rest:
        rows = [
            PickerRow(str(fact.seq), _describe_message(fact), (f"{format_time_since(fact.at)} ago",) if fact.at else ())
            for fact in messages[::-1]
        ]
        number = await chat.console.pick("Rewind to before a message", rows) or ""
        if not number:
            return
    if what not in ("", "files", "conversation", "both"):
        raise BadInput("choose what to rewind: files, conversation or both")
    chosen = [fact for fact in messages if fact.seq == _parse_position(number)]
    if not chosen:
        raise BadInput(f"{number} is not the position of a message; /rewind shows the messages")
    await _go_back(chat, chosen[0], what)


def _describe_message(message: MessageReceived) -> str:
    return " ".join(escape_controls(render_parts(message.parts[:1])).split())


@slash_command("undo", "go back to before the last message")
async def _undo_message(chat: ChatTerminal, rest: str) -> None:
    messages = [entry for entry in (await chat.session.state()).entries if isinstance(entry, MessageReceived)]
    if not messages:
        raise BadInput("there is no message to undo")
    await _go_back(chat, messages[-1], "")


async def _go_back(chat: ChatTerminal, message: MessageReceived, what: RewindTarget | Literal[""]) -> None:
    """Show what a rewind would change and let the user choose what to take back."""
    await chat.wait_until_idle("rewind")
    position = message.seq - 1
    plan = await chat.session.rewind(position, what or "both", dry_run=True)
    choices = {"y": "yes"} if what else {"b": "both, files and chat", "f": "files only", "c": "chat only"}
    if any(change.diff for change in plan.changes):
        choices["d"] = "show the diff first"
    content = QuestionContent(
        f"Rewind to before: {truncate_line(_describe_message(message), 40)}",
        lambda theme, width: _render_plan(plan, theme, width),
        (*choices.items(), ("n", "no, change nothing")),
        views={"d": lambda: _show_changes(chat, plan.changes)},
        escape="n",
        way_out=("Esc", "changes nothing"),
    )
    key = (await chat.ask(content)).key
    if key == "n":
        chat.write_note("nothing was changed")
        return
    targets: dict[str, RewindTarget] = {"b": "both", "f": "files", "c": "conversation", "y": what or "both"}
    done = await chat.session.rewind(position, targets[key])
    _show_skipped(chat, done)
    if done.what != "files":
        chat.console.draft = render_parts(message.parts[:1])


def _render_plan(plan: Rewind, theme: Theme, width: int) -> list[str]:
    """Render what a rewind would change, and what it would not."""
    lines = [] if plan.what == "conversation" or plan.changes else ["no file and no branch would change"]
    for change in plan.changes:
        others = theme.paint(" (changed by others since)", "quiet") if change.others else ""
        rows = change.diff.splitlines()
        added, removed = count_changes(rows)
        counts = f"  +{added} {theme.glyphs.minus}{removed}" if rows else ""
        path = theme.cut(escape_controls(change.path), max(10, width - 40), keep_end=True)
        lines.append(f"{change.kind} {path}{theme.paint(counts, 'quiet')}{others}")
    lines += [f"not changed: {escape_controls(f'{one.path}: {one.why}')}" for one in plan.skipped]
    return [theme.cut(line, width) if "\x1b" not in line else line for line in lines]


@slash_command("redo", "undo the last rewind")
async def _undo_rewind(chat: ChatTerminal, rest: str) -> None:
    await chat.wait_until_idle("redo")
    plan = await chat.session.undo_rewind(dry_run=True)
    if await _confirm_change(chat, "Undo the rewind?", lambda theme, width: _render_plan(plan, theme, width)):
        _show_skipped(chat, await chat.session.undo_rewind())


async def _confirm_change(chat: ChatTerminal, title: str, body: Callable[[Theme, int], list[str]]) -> bool:
    choices = (("y", "yes"), ("n", "no, change nothing"))
    content = QuestionContent(title, body, choices, escape="n", way_out=("Esc", "changes nothing"))
    return (await chat.ask(content)).key == "y"


@slash_command("changes", "show what this session changed in files and git")
async def _show_all_changes(chat: ChatTerminal, rest: str) -> None:
    found = await chat.session.changes()
    _show_changes(chat, found)
    if not found:
        chat.write_note("nothing was changed")


def _show_changes(chat: ChatTerminal, changes: Sequence[RewindChange]) -> None:
    theme, width = chat.console.theme, chat.console.width - 2
    for change in changes:
        chat.write_note(f"{change.kind}: {change.path}{' (changed by others since)' if change.others else ''}")
        for line in render_diff(escape_controls(change.diff).splitlines(), width, theme):
            chat.console.write_block(f"  {line}")


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
    used = measure_usage(await chat.session.facts())
    today, limits = await sum_cost_of_today(chat.opened.runtime.log), chat.opened.settings.build_limits()
    lines = render_cost(used, today, limits.cost, chat.console.width - 1, chat.console.theme)
    chat.console.write_block("\n".join(lines), gap=True)


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
    text, found = describe_project(folder), list_instruction_files(folder)
    chat.write_note(text)
    question = "AGENTS.md exists. Replace it with this text?" if "AGENTS.md" in found else ""
    if not question and "CLAUDE.md" in found:
        question = "Write AGENTS.md? CLAUDE.md is read now, and is not read beside it."
    if question and not await _confirm_change(chat, question, lambda theme, width: []):
        chat.write_note("nothing was changed")
        return
    file = write_agents_file(folder, text, replace="AGENTS.md" in found)
    chat.write_note(f"written to {file}; agents read it from the next run on")


@slash_command("quit", "leave; everything is recorded")
async def _leave_chat(chat: ChatTerminal, rest: str) -> None:
    chat.switch_session("")
