"""`treadle approvals`: list and answer the open questions of all sessions in the store."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from treadle import Agent, Answer, ApprovalRequested, CallStarted, Runtime, Session, Tool
from treadle.app.compose import find_default_tools
from treadle.app.hidden_text import escape_hidden
from treadle.app.settings import data_folder
from treadle.cli import console
from treadle.cli.approval_text import describe_request, render_approval
from treadle.cli.draw.glyphs import choose_theme
from treadle.cli.find_session import open_command_store
from treadle.cli.open_session import open_stored_session
from treadle.cli.options import Parser, add_actions, add_session_argument, add_store_options, create_parser
from treadle.cli.questions import AgentQuestion, describe_client_call
from treadle.errors import BadInput, StoreTooNew
from treadle.log.base import SessionInfo, SessionQuery
from treadle.permissions.saved_rules import forget_rule, load_all_rules

EXAMPLES = """\
  treadle approvals list
  treadle approvals allow 3f2a91                     the only open question of this session
  treadle approvals allow 3f2a91 call_7 --scope tool
  treadle approvals deny 3f2a91 --reason "not on a Friday"
  treadle approvals answer 3f2a91 "the blue one"
  treadle approvals rules                            the permanent answers
  treadle approvals forget "shell(git push *)"       ask again for these calls

The answer is recorded at once. The process that runs the session continues with it. If no process runs it,
use `treadle sessions resume`."""


def parser() -> Parser:
    options = create_parser("approvals", "Answer the questions of agents, in any session of the store.", EXAMPLES)
    actions = add_actions(options, EXAMPLES)
    actions.add_parser("list", help="list the open questions")
    allow = actions.add_parser("allow", help="allow a call")
    deny = actions.add_parser("deny", help="deny a call; the model gets the reason and continues")
    answer = actions.add_parser("answer", help="answer a question of the agent")
    actions.add_parser("rules", help="list the permanent answers")
    forget = actions.add_parser("forget", help="delete a permanent answer in all workspaces")
    forget.add_argument("rule", metavar="RULE", help="a rule, as `rules` shows it")
    for action in (allow, deny, answer):
        add_session_argument(action)
    answer.add_argument("text", metavar="ANSWER")
    for action in (allow, deny, answer):
        action.add_argument("call", metavar="CALL", nargs="?", default="", help="the call, if several are open")
    allow.add_argument("--scope", choices=("call", "tool", "pattern", "session"), default="call")
    deny.add_argument("--reason", default="", help="the reason that the model gets")
    for action in actions.choices.values():
        add_store_options(action)
    return options


async def main(args: argparse.Namespace) -> int:
    match args.action:
        case "rules":
            rules = load_all_rules(data_folder())
            for rule in rules:
                console.print_line(f"{rule.decision:6} {escape_hidden(rule.pattern)}  {rule.workspace or 'everywhere'}")
            if not rules:
                console.print_note("there are no permanent answers")
        case "forget":
            rules = [rule for rule in load_all_rules(data_folder()) if rule.pattern == args.rule]
            if not rules:
                raise BadInput(f"there is no rule {args.rule!r}; `treadle approvals rules` lists the rules")
            for rule in rules:
                forget_rule(data_folder(), rule)
            console.print_note("the rule is deleted; these calls need approval again")
        case "list":
            await _list_questions(args)
        case _:
            await _answer_question(args)
    return 0


async def _list_questions(args: argparse.Namespace) -> None:
    tools = find_default_tools()
    shown: set[tuple[str, str]] = set()
    async with open_command_store(args, read_only=True) as log, Runtime(log, [], recover=False) as runtime:
        for status in ("running", "waiting"):  # a question can be open while another call of the same reply runs
            async for info in log.iterate_sessions(SessionQuery(status=status)):
                session = Session(runtime.coordinator, Agent(name=info.agent), info.id)
                try:
                    state = await session.state()
                except StoreTooNew as error:
                    console.print_note(f"session {info.id[:12]} is left out: {error}")
                    continue
                for question in (*state.pending, *state.client_calls):
                    if (info.id, question.call_id) not in shown:
                        _print_question(info, question, tools)
                        shown.add((info.id, question.call_id))
    if not shown:
        console.print_note("there are no open questions")


def _print_question(info: SessionInfo, question: AgentQuestion | CallStarted, tools: Mapping[str, Tool]) -> None:
    colour = console.wants_colour(sys.stdout)
    width = console.terminal_width() if console.is_terminal(sys.stdout) else 120
    console.print_line(f"{info.id[:12]}  {question.call_id}  {info.name or info.workspace}")
    if isinstance(question, ApprovalRequested):
        theme = choose_theme(has_colour=colour, has_style=console.wants_style(sys.stdout))
        sys.stdout.write(f"  ? {describe_request(question)}  {question.safety}\n")
        for line in render_approval(question, tools, Path(info.workspace or "."), width - 6, theme):
            sys.stdout.write(f"    {line}".rstrip() + "\n")
        if question.rule and not question.once:
            console.print_line("    --scope pattern allows the rule too")
    elif isinstance(question, CallStarted):
        console.print_line(f"  {escape_hidden(describe_client_call(question))}")
    else:
        for one in question.questions:
            options = f"  ({', '.join(map(escape_hidden, one.options))})" if one.options else ""
            console.print_line(f"  {escape_hidden(one.text)}{options}")
    if question.expires_at is not None:
        left = question.expires_at - time.time()
        text = f"  {'expires in' if left > 0 else 'expired'} {abs(left):.0f} s"
        sys.stdout.write(console.style_text(text, "dim", colour) + "\n")


async def _answer_question(args: argparse.Namespace) -> None:
    async with open_stored_session(args, args.session) as (session, info):
        pending = (await session.state()).pending
        chosen = [question for question in pending if args.call in ("", question.call_id)]
        if not chosen:
            call = f" for call {args.call}" if args.call else ""
            raise BadInput(f"session {info.id[:12]} has no open question{call}")
        if len(chosen) > 1:
            calls = ", ".join(question.call_id for question in chosen)
            raise BadInput(f"session {info.id[:12]} has several open calls: {calls}; name one")
        question = chosen[0]
        if args.action == "answer":
            await session.answer(question.call_id, args.text)
        elif args.action == "deny":
            await session.deny(question.call_id, args.reason)
        elif isinstance(question, ApprovalRequested):
            await session.approve(question.call_id, Answer(scope=args.scope), digest=question.digest)
        else:
            raise BadInput(f"call {question.call_id} is a question: treadle approvals answer {args.session} TEXT")
    console.print_note(f"recorded; if no process runs the session: treadle sessions resume {info.id[:12]}")
