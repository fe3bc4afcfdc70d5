"""The rows of the terminal's pickers: models, agents and sessions.

It gathers what can be picked, and says of the rest why not. It draws nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from treadle.app.settings import Settings, config_folder
from treadle.cli.console import escape_controls, format_time_since
from treadle.errors import StoreTooNew
from treadle.events import AnyFact, MessageReceived
from treadle.log.base import Log, SessionInfo, SessionQuery
from treadle.messages import render_parts

if TYPE_CHECKING:
    from treadle.secrets.keyring import Keyring

MAX_SESSIONS = 200
MAX_PASSAGE = 400
FIRST_FACTS = 8
"""The first message of a session is among its first facts."""

_STATUS_WORDS = {"waiting": "needs you", "idle": "answered"}


class PickerRow(Struct, frozen=True):
    """One thing that a person can pick."""

    value: str
    """What the pick returns."""
    label: str
    facts: tuple[str, ...] = ()
    """From the most to the least important. A narrow terminal drops them from the end."""
    passage: str = ""
    """Shown below the list for the picked row."""
    problem: str = ""
    """Why it is not reachable, and what to do. Such rows come last."""

    def escape(self) -> PickerRow:
        """Return the row as it may be drawn: a workspace, a server or a message may have its texts from others."""
        texts = {name: escape_controls(getattr(self, name)) for name in ("label", "passage", "problem")}
        return replace(self, facts=tuple(map(escape_controls, self.facts)), **texts)


async def list_model_rows(settings: Settings, keyring: Keyring | None = None, current: str = "") -> list[PickerRow]:
    """List the models that can be used now, and what is missing for the others. `current` is the one in use.

    With a `base_url` in the settings, every model is one of that server.
    """
    from treadle.app.diagnose import ask_own_server, describe_price, find_model_sources
    from treadle.secrets.keyring import Keyring

    usable = {settings.model: "your default"} if settings.model else {}
    usable |= {current: "now"} if current else {}
    rest: list[PickerRow] = []
    sources = [source async for source in find_model_sources(keyring)] if not settings.base_url else []
    if settings.base_url:
        sources = [await ask_own_server(settings, keyring or Keyring(), current)]
    for source in sources:
        provider = source.name.partition(":")[0]
        names = list(source.models)
        if not settings.base_url:
            names = [model if ":" in model else f"{provider}:{model}" for model in source.models]
        names = ["local", *names] if provider == "local" else names
        if source.is_usable and names:
            usable = dict.fromkeys(names, source.reason) | usable
        else:
            rest.append(PickerRow(source.name, source.name, (source.reason,), problem=source.advice or source.reason))
    rows = [PickerRow(name, name, (reason, *describe_price(name))) for name, reason in usable.items()]
    return [*sorted(rows, key=lambda row: (row.value != current, row.value != settings.model)), *rest]


def list_agent_rows(folder: Path, current: str = "", available: Collection[str] | None = None) -> list[PickerRow]:
    """List the agents of a folder and of the user. Those that are not `available` lack a model."""
    from treadle.app.workspace_knowledge import WorkspaceKnowledge

    rows: list[PickerRow] = []
    for agent in WorkspaceKnowledge(folder, config_folder()).agents.values():
        origin = {"user": "yours", "workspace": "of this folder"}.get(agent.origin, "built in")
        posture = "" if agent.posture == "balanced" else agent.posture
        facts = tuple(filter(None, ("now" if agent.name == current else "", posture, origin)))
        is_missing = available is not None and agent.name not in available
        problem = f"its model {agent.model} has no key: treadle models list shows what is missing" if is_missing else ""
        rows.append(PickerRow(agent.name, agent.name, facts, " ".join(agent.description.split()), problem))
    return sorted(rows, key=lambda row: (bool(row.problem), row.value != current, row.value))


async def list_session_rows(log: Log, folder: Path | None = None, current: str = "") -> list[PickerRow]:
    """List the sessions of a folder, or all: first those that wait for an answer, then the last changed.

    Sessions of helpers are left out. Name, folder and first message are in the row, so that a search finds them.
    """
    from treadle.app.compose import is_abandoned

    query = SessionQuery(workspace=str(folder) if folder is not None else "", limit=MAX_SESSIONS)
    found: list[SessionInfo] = []
    async for info in log.iterate_sessions(query):
        if info.id != current and not info.is_helper:
            found.append(info)
        if len(found) >= MAX_SESSIONS:
            break
    found.sort(key=lambda info: (info.status != "waiting", -info.updated_at))
    rows: list[PickerRow] = []
    for info in found:
        facts = list[AnyFact]()
        with suppress(StoreTooNew):  # it has a row all the same
            facts = await log.read(info.id, limit=FIRST_FACTS)
        first = next((render_parts(fact.parts) for fact in facts if isinstance(fact, MessageReceived)), "")
        words = " ".join(first.split())
        status = "unfinished" if is_abandoned(info) else _STATUS_WORDS.get(info.status, info.status)
        shown = (
            status,
            f"{format_time_since(info.updated_at)} ago",
            f"{info.turns} turns" if info.turns != 1 else "1 turn",
            f"${info.cost:.2f}" if info.cost else "",
            info.workspace if folder is None else "",
        )
        label = info.name or words[:60] or f"session {info.id[:12]}"
        rows.append(PickerRow(info.id, label, tuple(filter(None, shown)), words[:MAX_PASSAGE]))
    return rows
