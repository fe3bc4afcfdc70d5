"""Fill a PostgreSQL log with many sessions, by SQL, which is much quicker than creating each."""

import psycopg

from treadle.events import (
    AgentConfig,
    Limits,
    MessageReceived,
    ModelReplied,
    RunFinished,
    RunStarted,
    SessionCreated,
    SessionRenamed,
    TurnStarted,
)
from treadle.log.postgres import PostgresLog
from treadle.messages import TextPart, Usage

_COPY_SESSIONS = """INSERT INTO treadle.sessions (id, agent, workspace, name, folded_name, named_by_user, status, turns,
        cost, created_at, updated_at, pinned, archived, model, min_reader, head)
    SELECT md5(n::text), agent, '/home/ada/project' || n %% 400, 'Look into problem ' || n, 'look into problem ' || n,
        named_by_user, (ARRAY['answered', 'answered', 'answered', 'failed', 'stopped', 'cancelled'])[n %% 6 + 1], turns,
        cost, 1e9 + n, 1e9 + n, pinned, archived, model, min_reader, head
    FROM treadle.sessions, generate_series(1, %s) n WHERE id = 'SESSION' ORDER BY n"""
_COPY_FACTS = """INSERT INTO treadle.facts (session, seq, position, body)
    SELECT s.num, f.seq, nextval('treadle.positions'),
        convert_to(replace(convert_from(f.body, 'UTF8'), 'NUMBER', 'n' || (s.updated_at - 1e9)::bigint || 'x'), 'UTF8')
    FROM treadle.sessions s, treadle.facts f JOIN treadle.sessions t ON t.num = f.session AND t.id = 'SESSION'
    WHERE s.id <> 'SESSION' ORDER BY s.num, f.seq"""


async def create_template(url: str) -> None:
    """Create the tables, and one session, whose rows are copied."""
    async with PostgresLog(url) as log:
        facts = [
            SessionCreated(session_id="SESSION", agent=AgentConfig(), workspace="/home/ada/project"),
            SessionRenamed(name="Look into problem NUMBER", by="auto"),
            MessageReceived(id="m", parts=(TextPart("Why is the build red, and since when? Case NUMBER."),)),
            RunStarted(run_id="run_1", limits=Limits()),
            TurnStarted(turn=1, messages=("m",)),
            ModelReplied(text="Since Monday, because of a missing lock file.", usage=Usage(900, 40)),
            RunFinished(run_id="run_1", reason="answered", answer="Since Monday.", turns=1),
        ]
        await log.create("SESSION", facts)


def copy_sessions(url: str, count: int) -> None:
    """Copy the session of a template."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(_COPY_SESSIONS, (count,))
        db.execute(_COPY_FACTS)
        db.execute("VACUUM (ANALYZE)")
