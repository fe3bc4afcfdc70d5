"""Draft skills from finished work. A request that was done three times becomes a proposal.

`runtime.after_answer.append(SkillDrafter(knowledge))` switches it on. A person has to accept a proposal.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from treadle.app.workspace_knowledge import WorkspaceKnowledge
from treadle.engine.model_call import ask_quietly
from treadle.engine.setup import Setup
from treadle.engine.state import State
from treadle.errors import StoreTooNew
from treadle.knowledge import skill_drafts
from treadle.knowledge.base import SkillProposal
from treadle.knowledge.skills import find_triggered
from treadle.log.base import SessionQuery
from treadle.session import Session

REPEATS_NEEDED = 3
MAX_SESSIONS = 50
_logger = logging.getLogger("treadle")


class SkillDrafter:
    """Drafts and proposes skills. A runtime calls it after every answer."""

    def __init__(self, knowledge: WorkspaceKnowledge) -> None:
        self._knowledge = knowledge

    async def __call__(self, session: Session, state: State, setup: Setup) -> None:
        proposal = await self._propose_skill(session, setup)
        if proposal is not None:
            _logger.info("a skill is proposed: %s; review it, then accept or decline it", proposal.name)
            data = {"name": proposal.name, "path": proposal.path, "diff": proposal.diff}
            await session.note("treadle.skill_proposed", data)

    async def _propose_skill(self, session: Session, setup: Setup) -> SkillProposal | None:
        """Draft a skill when the last request was done twice before, and no skill or draft exists for it."""
        proposals = self._knowledge.proposals
        requests = list(skill_drafts.find_answered_requests(await session.facts()))
        if not requests:
            return None
        *earlier, last = requests
        self._knowledge.refresh()  # a skill may have been accepted elsewhere
        if find_triggered({**self._knowledge.skills, **proposals.load_drafted()}, last.asked):
            return None
        log = session.log
        workspace = (await log.get_info(session.id)).workspace
        page = await log.list_sessions(SessionQuery(workspace=workspace, status="answered", limit=MAX_SESSIONS))
        for info in page.sessions:
            if info.id != session.id and (info.parent is None or not info.parent.call_id):  # no sessions of helpers
                with suppress(StoreTooNew):
                    earlier.extend(reversed(list(skill_drafts.find_answered_requests(await log.read(info.id)))))
        similar = [last, *(one for one in earlier if skill_drafts.is_similar(one.asked, last.asked))][:REPEATS_NEEDED]
        if len(similar) < REPEATS_NEEDED or not all(one.calls for one in similar):
            return None
        reply = await ask_quietly(setup, skill_drafts.build_draft_request(similar, session.id))
        name, text = skill_drafts.build_skill_text(similar, reply.text)
        return proposals.add(name, text, skill_drafts.describe_repetition(similar))
