"""`treadle approvals`: list and answer the open questions of all sessions in the store."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from treadle import Answer, ApprovalRequested, InputRequested, Session, Tool
from treadle.app.compose import find_default_tools
from treadle.app.settings import data_folder
from treadle.cli.console import (
    escape_hidden,
    is_terminal,
    print_line,
    print_note,
    style_text,
    terminal_width,
    wants_colour,
)
from treadle.cli.find_session import open_command_store
from treadle.cli.options import Parser, add_actions, add_store_options, create_parser
from treadle.cli.question_text import render_approval
from treadle.errors import BadInput
from treadle.log.base import SessionInfo, SessionQuery
from treadle.permissions.saved_rules import forget_rule, load_all_rules

EXAMPLES = """\
  treadle approvals list
  treadle approvals allow 3f2a91                     the one that is open there
  treadle approvals allow 3f2a91 call_7 --scope tool
  treadle approvals deny 3f2a91 --reason "not on a Friday"
  treadle approvals answer 3f2a91 "the blue one"
  treadle approvals rules                            what was answered for good
  treadle approvals forget "shell(git push *)"       to be asked again

The answer is recorded at once; whoever runs the session goes on with it, and if nobody does,
`treadle sessions resume` does."""


def parser() -> Parser:
    made = create_parser("approvals", "Answer what agents ask, in any session of this store.", EXAMPLES)
    kinds = add_actions(made, EXAMPLES)
    kinds.add_parser("list", help="all that is open")
    allow = kinds.add_parser("allow", help="let a call run")
    deny = kinds.add_parser("deny", help="deny it; the model is told and goes on")
    answer = kinds.add_parser("answer", help="answer a question of the agent")
    kinds.add_parser("rules", help="what was answered for good")
    forget = kinds.add_parser("forget", help="take an answer for good back, wherever it holds")
    forget.add_argument("rule", metavar="RULE", help="as `rules` shows it")
    for one in (allow, deny, answer):
        one.add_argument("session", metavar="SESSION", help="an id, the beginning of one, or a name")
    answer.add_argument("text", metavar="ANSWER")
    for one in (allow, deny, answer):
        one.add_argument("call", metavar="CALL", nargs="?", default="", help="which, if several are open")
    allow.add_argument("--scope", choices=("call", "tool", "pattern", "session"), default="call")
    deny.add_argument("--reason", default="", help="what the model is told")
    for one in kinds.choices.values():
        add_store_options(one)
    return made


def main(args: argparse.Namespace) -> int:
    if args.action == "rules":
        found = load_all_rules(data_folder())
        for rule in found:
            print_line(f"{rule.decision:6} {escape_hidden(rule.pattern)}  {rule.workspace or 'everywhere'}")
        if not found:
            print_note("nothing was answered for good")
        return 0
    if args.action == "forget":
        pattern = args.rule
        known = [rule for rule in load_all_rules(data_folder()) if rule.pattern == pattern]
        if not known:
            raise BadInput(f"there is no rule {pattern!r}; `treadle approvals rules` shows those there are")
        for rule in known:
            forget_rule(data_folder(), rule)
        print_note("forgotten; it is asked for again")
        return 0
    return asyncio.run(_list(args) if args.action == "list" else _answer(args))


async def _list(args: argparse.Namespace) -> int:
    from treadle import Agent, Runtime

    tools = find_default_tools()
    shown: set[tuple[str, str]] = set()
    async with open_command_store(args) as log, Runtime(log, [], recover=False) as runtime:
        for status in ("running", "waiting"):  # a question can be open while another call of the same reply runs
            async for info in log.iterate_sessions(SessionQuery(status=status)):
                session = Session(runtime.coordinator, Agent(name=info.agent), info.id)
                for question in (await session.state()).pending:
                    if (info.id, question.call_id) not in shown:
                        _print(info, question, tools)
                        shown.add((info.id, question.call_id))
    if not shown:
        print_note("nothing waits for an answer")
    return 0


def _print(info: SessionInfo, question: ApprovalRequested | InputRequested, tools: Mapping[str, Tool]) -> None:
    colour, room = wants_colour(sys.stdout), terminal_width() if is_terminal(sys.stdout) else 120
    print_line(f"{info.id[:12]}  {question.call_id}  {info.name or info.workspace}")
    if isinstance(question, ApprovalRequested):
        for line in render_approval(question, tools, Path(info.workspace or "."), room, colour=colour):
            sys.stdout.write(f"  {line}\n")
        if question.rule and not question.once:
            print_line(f"  --scope pattern would remember: {escape_hidden(question.rule)}")
    else:
        for one in question.questions:
            print_line(
                f"  {escape_hidden(one.text)}"
                + (f"  ({', '.join(map(escape_hidden, one.options))})" if one.options else "")
            )
    if question.expires_at is not None:
        left = question.expires_at - time.time()
        sys.stdout.write(
            style_text(f"  {'expires in' if left > 0 else 'expired'} {abs(left):.0f} s", "dim", colour) + "\n"
        )


async def _answer(args: argparse.Namespace) -> int:
    from treadle.cli.open_session import open_stored_session

    async with open_stored_session(args, args.session) as (session, info):
        question = _which((await session.state()).pending, args.call, info)
        if args.action == "answer":
            await session.answer(question.call_id, args.text)
        elif args.action == "deny":
            await session.deny(question.call_id, args.reason)
        elif isinstance(question, ApprovalRequested):
            await session.approve(question.call_id, Answer(scope=args.scope), digest=question.digest)
        else:
            raise BadInput(f"call {question.call_id} is a question: treadle approvals answer {args.session} TEXT")
    print_note(f"recorded; if nobody runs it now: treadle sessions resume {info.id[:12]}")
    return 0


def _which(
    pending: list[ApprovalRequested | InputRequested], call_id: str, info: SessionInfo
) -> ApprovalRequested | InputRequested:
    chosen = [question for question in pending if not call_id or question.call_id == call_id]
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        calls = ", ".join(question.call_id for question in chosen)
        raise BadInput(f"several calls are open in {info.id[:12]}: {calls}; name one")
    raise BadInput(f"nothing is open in {info.id[:12]}{f' for call {call_id}' if call_id else ''}")
