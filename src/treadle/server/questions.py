"""The open questions of all sessions: list, preview and answer them, and see the answers that were kept for good."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
from fastapi import APIRouter
from msgspec.structs import replace
from pydantic import BaseModel, Field

from treadle import Answer, ApprovalRequested, Session
from treadle.app.approval_preview import PartVerdict, build_preview
from treadle.dialects.base import parse_approval_id
from treadle.errors import Conflict, NotFound, StoreTooNew
from treadle.events import Decision, Safety
from treadle.log.base import Log, SessionQuery
from treadle.permissions.saved_rules import RuleBook, forget_rule, save_rule
from treadle.server.guard import Refusal
from treadle.server.problems import build_field_error
from treadle.server.service import Approver, CurrentService, Sender, Service, StrictBody, Token, Viewer
from treadle.server.session_views import PendingQuestion

router = APIRouter(prefix="/v1", tags=["approvals"])
MAX_PENDING = 1000


class ApprovalAnswer(StrictBody):
    """With `keep`, the rule of the question is also saved, and holds in this workspace from the next run on."""

    decision: Literal["allow", "deny"]
    scope: Literal["call", "tool", "pattern", "session"] = "call"
    comment: str = Field("", max_length=10_000)
    digest: str = Field("", max_length=200)
    keep: bool = False


class SimpleAnswer(StrictBody):
    approved: bool
    digest: str = Field("", max_length=200)


class AnswersBody(StrictBody):
    answers: list[str] = Field(min_length=1, max_length=100)


class CallResult(StrictBody):
    output: str
    ok: bool = True


class ResolvedView(BaseModel):
    resolved: bool = True


class PartView(BaseModel):
    """A simple command of a compound one. `verdict` is what the policy says of it alone, and `why` the reason."""

    text: str
    safety: Safety
    verdict: PartVerdict
    why: str


class PreviewView(BaseModel):
    """What decides an answer. `network` is empty for a tool that runs no command.

    `hidden` says that the arguments have characters that do not show. Show those spelled out.
    """

    question: PendingQuestion
    parts: list[PartView]
    diff: str
    folder: str
    network: str
    hidden: bool


class RuleView(BaseModel):
    """An answer that was kept. `workspace` is empty for a rule that holds everywhere."""

    id: str
    pattern: str
    decision: Decision
    workspace: str
    saved_at: float
    by: str


@router.get("/approvals")
async def list_approvals(service: CurrentService, token: Viewer) -> list[PendingQuestion]:
    """List the open questions of all sessions."""
    found: dict[str, PendingQuestion] = {}
    # Running sessions may have open questions too. They come first, because they may start to wait meanwhile.
    for status in ("running", "waiting"):
        query: SessionQuery | None = SessionQuery(status=status, limit=200)
        while query is not None and len(found) < MAX_PENDING:
            page = await service.runtime.sessions(query)
            for info in page.sessions:
                with suppress(NotFound, StoreTooNew):  # it was deleted meanwhile, or a newer node asks
                    state = await (await service.open_to_read(info.id)).state()
                    questions = (PendingQuestion.from_fact(info.id, question) for question in state.pending)
                    found.update((question.id, question) for question in questions)
            query = replace(query, cursor=page.cursor) if page.cursor else None
    return sorted(found.values(), key=lambda one: one.asked_at)


@router.post("/approvals/{approval:path}")
async def answer_by_id(service: CurrentService, token: Approver, approval: str, body: SimpleAnswer) -> ResolvedView:
    """Allow or deny a call by the id of its request."""
    session_id, call_id = parse_approval_id(approval)
    session = await service.open_for_use(session_id, token, needs_agent=False)
    answer = Answer("allow" if body.approved else "deny", by=token.name)
    await session.approve(call_id, answer, digest=body.digest)
    return ResolvedView()


@router.get("/sessions/{session_id}/approvals/{call_id:path}")
async def preview_approval(service: CurrentService, token: Viewer, session_id: str, call_id: str) -> PreviewView:
    """Show what an open question would do: the parts of its command, or the diff that it would make."""
    session = await service.runtime.open(session_id)
    question = await _find_question(session, call_id)
    state = await session.state()
    preview = await build_preview(await service.runtime.coordinator.build_setup(state), state, question)
    return PreviewView(question=PendingQuestion.from_fact(session_id, question), **msgspec.to_builtins(preview))


@router.post("/sessions/{session_id}/approvals/{call_id:path}")
async def answer_approval(
    service: CurrentService, token: Approver, session_id: str, call_id: str, body: ApprovalAnswer
) -> ResolvedView:
    """Allow or deny a call: once, or for a tool, a pattern or the session. The first answer counts."""
    session = await service.open_for_use(session_id, token, needs_agent=False)
    if body.keep:
        await answer_for_good(service, token, session, call_id, body)
        return ResolvedView()
    answer = Answer(body.decision, body.scope, body.comment, by=token.name)
    await session.approve(call_id, answer, digest=body.digest)
    return ResolvedView()


async def answer_for_good(service: Service, token: Token, session: Session, call_id: str, body: ApprovalAnswer) -> None:
    """Allow what the question's rule covers in this session, and save the rule for its workspace."""
    book = _require_rules(service)
    if token.grant is not None:
        raise Refusal(403, "no_right", "keep: a token with a grant answers for its sessions only, and keeps no rule")
    if body.decision != "allow":
        raise build_field_error("keep", "only a yes can be kept; nothing was answered")
    question = await _find_question(session, call_id)
    if question.once or not question.rule:
        raise build_field_error("keep", "this can only be allowed once, so there is no rule to keep")
    workspace = await find_rule_folder(service.runtime.log, session.id)
    answer = Answer("allow", "pattern", body.comment, by=token.name)
    # The rule is saved only if this answer is the one that counts, and for the question that was read above.
    await session.approve(call_id, answer, digest=body.digest or question.digest)
    save_rule(book.data_folder, question.rule, workspace=workspace, by=token.name)


async def find_rule_folder(log: Log, session_id: str) -> Path:
    """Find the workspace that a kept rule is for. A helper works for its parent, often in a worktree of its own."""
    info = await log.get_info(session_id)
    with suppress(NotFound):  # the parent was deleted
        while info.parent is not None and info.parent.call_id:
            info = await log.get_info(info.parent.session_id)
    return Path(info.workspace)


async def _find_question(session: Session, call_id: str) -> ApprovalRequested:
    for question in (await session.state()).pending:
        if question.call_id == call_id and isinstance(question, ApprovalRequested):
            return question
    raise NotFound(f"call {call_id[:200]!r} of session {session.id} waits for no approval")


@router.post("/sessions/{session_id}/answers/{call_id:path}", tags=["sessions"])
async def answer_question(
    service: CurrentService, token: Approver, session_id: str, call_id: str, body: AnswersBody
) -> ResolvedView:
    """Answer the questions that the model asked the user."""
    session = await service.open_for_use(session_id, token, needs_agent=False)
    await session.answer(call_id, *body.answers, by=token.name)
    return ResolvedView()


@router.post("/sessions/{session_id}/calls/{call_id:path}/result", tags=["sessions"])
async def send_call_result(
    service: CurrentService, token: Sender, session_id: str, call_id: str, body: CallResult
) -> ResolvedView:
    """Send the result of a call of a client tool, and continue the run. The same result again changes nothing."""
    session = await service.open_for_run(session_id, token)
    await session.finish_call(call_id, body.output, ok=body.ok)
    return ResolvedView()


# ── saved rules ────────────────────────────────────────────────────────────────────────────────────────


@router.get("/rules")
async def list_rules(service: CurrentService, token: Viewer) -> list[RuleView]:
    """List the answers that were kept for good, of all workspaces."""
    rules = service.config.rules.list_rules() if service.config.rules is not None else ()
    return [RuleView(**{name: getattr(rule, name) for name in RuleView.model_fields}) for rule in rules]


@router.delete("/rules/{rule_id}", status_code=204)
async def delete_rule(service: CurrentService, token: Approver, rule_id: str) -> None:
    """Delete a kept answer. From the next run on, the calls that it covered need an answer again."""
    if token.grant is not None:
        raise Refusal(403, "no_right", "a token with a grant cannot delete rules")
    book = _require_rules(service)
    rule = next((rule for rule in book.list_rules() if rule.id == rule_id), None)
    if rule is None or not forget_rule(book.data_folder, rule):
        raise NotFound(f"there is no rule {rule_id[:200]!r}; GET /v1/rules lists them")


def _require_rules(service: Service) -> RuleBook:
    if service.config.rules is None:
        raise Conflict("this server keeps no rules; nothing was changed")
    return service.config.rules
