"""The tables and functions of the PostgreSQL log as numbered migrations, and how a database is brought up to date.

A released migration never changes. Nodes of the previous release work on while a newer one migrates, so a migration
only adds. What is no longer used is dropped two releases later.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import AsyncConnection

from treadle.errors import StoreTooNew
from treadle.log.postgres_contents import CONTENT_TABLES
from treadle.log.postgres_incoming import INCOMING_TABLES
from treadle.log.postgres_positions import POSITION_FUNCTIONS
from treadle.log.postgres_words import WORD_TABLES
from treadle.memory.postgres_memories import MEMORY_TABLES

LOCK = 7_472_646_400
"""The advisory lock of migrations."""

Migration = Sequence[str]

_TABLES = (
    """CREATE TABLE treadle.sessions (
        num bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id text COLLATE "C" NOT NULL UNIQUE,
        agent text NOT NULL,
        workspace text NOT NULL,
        parent jsonb,
        name text NOT NULL,
        folded_name text NOT NULL,
        named_by_user boolean NOT NULL,
        status text NOT NULL,
        turns integer NOT NULL,
        cost double precision NOT NULL,
        created_at double precision NOT NULL,
        updated_at double precision NOT NULL,
        pinned boolean NOT NULL,
        archived boolean NOT NULL,
        model text NOT NULL,
        min_reader integer NOT NULL,
        head integer NOT NULL,
        epoch bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
        owner text NOT NULL DEFAULT '',
        lease double precision NOT NULL DEFAULT 0,
        wake_at double precision) WITH (fillfactor = 60)""",
    # Epochs begin with the time. So a claim on a session that was deleted, or that a fail-over has lost, fits no other
    # session that gets its id or its number later.
    # No index holds the head or the lease: an append and a renewal change the row in place.
    "CREATE INDEX sessions_due ON treadle.sessions (wake_at, num) WHERE owner = '' AND wake_at IS NOT NULL",
    "CREATE INDEX sessions_owned ON treadle.sessions (owner) WHERE owner <> ''",
    "CREATE INDEX sessions_by_time ON treadle.sessions (updated_at, num) WHERE agent <> 'treadle.responses'",
    "CREATE INDEX sessions_by_status ON treadle.sessions (status, updated_at, num)",
    "CREATE INDEX sessions_by_workspace ON treadle.sessions (workspace, updated_at, num)",
    "CREATE INDEX sessions_by_agent ON treadle.sessions (agent, updated_at, num)",
    "CREATE INDEX sessions_by_name ON treadle.sessions USING hash (name) WHERE name <> ''",  # it may be long
    "CREATE INDEX sessions_by_parent ON treadle.sessions ((parent ->> 'session_id')) WHERE parent IS NOT NULL",
    "CREATE INDEX sessions_pinned ON treadle.sessions (updated_at, num) WHERE pinned",
    "CREATE INDEX sessions_archived ON treadle.sessions (updated_at, num) WHERE archived",
    "CREATE SEQUENCE treadle.positions",
    """CREATE TABLE treadle.facts (
        session bigint NOT NULL,
        seq integer NOT NULL,
        position bigint NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (session, seq))""",
    "CREATE INDEX facts_by_position ON treadle.facts (position)",
    """CREATE TABLE treadle.keys (
        session bigint NOT NULL,
        key text NOT NULL,
        first integer NOT NULL,
        last integer NOT NULL,
        PRIMARY KEY (session, key))""",
    """CREATE TABLE treadle.artifacts (
        session bigint NOT NULL,
        id text NOT NULL,
        media_type text NOT NULL,
        data bytea NOT NULL,
        PRIMARY KEY (session, id))""",
    "CREATE TABLE treadle.secrets (name text PRIMARY KEY, value bytea NOT NULL)",
    """CREATE TABLE treadle.shared_values (
        key text PRIMARY KEY,
        value bytea NOT NULL,
        until double precision NOT NULL)""",
    """CREATE TABLE treadle.nodes (
        name text PRIMARY KEY,
        about jsonb NOT NULL,
        seen_at double precision NOT NULL,
        is_draining boolean NOT NULL DEFAULT false)""",
)

_FUNCTIONS = (
    """CREATE FUNCTION treadle.now_or(given double precision) RETURNS double precision LANGUAGE sql VOLATILE AS
        $$ SELECT coalesce(given, extract(epoch FROM clock_timestamp())::double precision) $$""",
    # Every function that stores facts calls `begin_facts` first, then locks the rows of its sessions in the order of
    # their numbers, and then takes positions.
    # Functions in plpgsql keep their plans. Those in sql are planned anew in each transaction if they are not inlined.
    """CREATE FUNCTION treadle.insert_facts(num bigint, after integer, bodies bytea[], start integer, count integer)
        RETURNS void LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO treadle.facts (session, seq, position, body)
                SELECT num, after + i, nextval('treadle.positions'), bodies[start + i]
                FROM generate_series(1, count) i;
        END $$""",
    """CREATE FUNCTION treadle.holds_claim(claim_num bigint, claim_epoch bigint, claim_owner text)
        RETURNS boolean LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM FROM treadle.sessions WHERE num = claim_num AND epoch = claim_epoch AND owner = claim_owner
                FOR NO KEY UPDATE;
            RETURN FOUND;
        END $$""",
    """CREATE FUNCTION treadle.change_session(session_num bigint, changes jsonb) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN
        UPDATE treadle.sessions SET
            updated_at = coalesce((changes ->> 'updated_at')::double precision, updated_at),
            status = coalesce(changes ->> 'status', status),
            turns = turns + coalesce((changes ->> 'turns')::integer, 0),
            cost = cost + coalesce((changes ->> 'cost')::double precision, 0),
            agent = coalesce(changes ->> 'agent', agent),
            model = coalesce(changes ->> 'model', model),
            pinned = coalesce((changes ->> 'pinned')::boolean, pinned),
            archived = coalesce((changes ->> 'archived')::boolean, archived),
            min_reader = greatest(min_reader, (changes ->> 'min_reader')::integer),
            name = CASE WHEN keeps_name THEN name ELSE changes ->> 'name' END,
            folded_name = CASE WHEN keeps_name THEN folded_name ELSE changes ->> 'folded_name' END,
            named_by_user = named_by_user OR coalesce((changes ->> 'named_by_user')::boolean, false),
            owner = CASE WHEN changes ? 'release' THEN '' ELSE owner END,
            lease = CASE WHEN changes ? 'release' THEN 0 ELSE lease END,
            wake_at = CASE WHEN changes ? 'release' THEN NULL ELSE wake_at END
        FROM (SELECT num AS named, NOT changes ? 'name' OR
                (named_by_user AND NOT (changes ->> 'named_by_user')::boolean) AS keeps_name
            FROM treadle.sessions WHERE num = session_num) AS names
        WHERE num = session_num AND named = session_num;
        END $$""",
    # Outcomes: 0 stored, 1 stored earlier with this key, 2 refused; then the positions before the first fact and of
    # the last one, in the session and in the store.
    """CREATE FUNCTION treadle.append_facts(nums bigint[], epochs bigint[], owners text[], seqs integer[],
            counts integer[], changes jsonb[], bodies bytea[]) RETURNS SETOF bigint[]
        LANGUAGE plpgsql SET lock_timeout = '4s' AS $$
        DECLARE
            start integer := 0;
            earlier treadle.keys;
        BEGIN
            PERFORM treadle.begin_facts();
            FOR i IN 1 .. cardinality(nums) LOOP
                earlier := NULL;
                IF changes[i] ? 'key' THEN
                    SELECT * INTO earlier FROM treadle.keys WHERE session = nums[i] AND key = changes[i] ->> 'key'
                        AND treadle.holds_claim(nums[i], epochs[i], owners[i]);
                END IF;
                IF earlier.session IS NOT NULL THEN
                    RETURN NEXT ARRAY[1, earlier.first - 1, earlier.last, 0];
                ELSE
                    UPDATE treadle.sessions SET head = head + counts[i]
                        WHERE num = nums[i] AND epoch = epochs[i] AND owner = owners[i] AND head = seqs[i];
                    IF NOT FOUND THEN
                        RETURN NEXT ARRAY[2, 0, 0, 0];
                    ELSE
                        PERFORM treadle.insert_facts(nums[i], seqs[i], bodies, start, counts[i]);
                        IF changes[i] IS NOT NULL THEN
                            PERFORM treadle.change_session(nums[i], changes[i]);
                            IF changes[i] ? 'key' THEN
                                INSERT INTO treadle.keys
                                    VALUES (nums[i], changes[i] ->> 'key', seqs[i] + 1, seqs[i] + counts[i]);
                            END IF;
                        END IF;
                        RETURN NEXT ARRAY[0, seqs[i], seqs[i] + counts[i], lastval()];
                    END IF;
                END IF;
                start := start + counts[i];
            END LOOP;
        END $$""",
    # A session is claimed only by a process that knows all its facts, its agent and its folder.
    """CREATE FUNCTION treadle.serves(found treadle.sessions, agents text[], folders text[], reader integer)
        RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
        SELECT found.min_reader <= reader AND (agents IS NULL OR found.agent = ANY (agents))
            AND (folders IS NULL OR found.workspace = '' OR EXISTS (
                SELECT 1 FROM unnest(folders) AS folder WHERE starts_with(found.workspace || '/', folder))) $$""",
    """CREATE FUNCTION treadle.take_session(session_num bigint, claimant text, until double precision)
        RETURNS void LANGUAGE sql AS $$
        UPDATE treadle.sessions SET owner = claimant, epoch = epoch + 1, lease = until, wake_at = NULL,
            status = CASE WHEN status = 'waiting' THEN 'running' ELSE status END WHERE num = session_num $$""",
    # The result is the session as it was before the claim.
    """CREATE FUNCTION treadle.claim_session(wanted text, claimant text, ttl double precision, agents text[],
            folders text[], reader integer, given double precision) RETURNS SETOF treadle.sessions
        LANGUAGE plpgsql SET lock_timeout = '4s' AS $$
        DECLARE
            moment double precision := treadle.now_or(given);
            due treadle.sessions;
            lapsed treadle.sessions;
        BEGIN
            IF wanted <> '' THEN
                SELECT * INTO due FROM treadle.sessions s WHERE id = wanted AND (owner = '' OR lease <= moment)
                    AND treadle.serves(s, agents, folders, reader) FOR UPDATE;
            ELSE
                SELECT * INTO due FROM treadle.sessions s WHERE owner = '' AND wake_at <= moment
                    AND treadle.serves(s, agents, folders, reader)
                    ORDER BY wake_at, num LIMIT 1 FOR UPDATE SKIP LOCKED;
                SELECT * INTO lapsed FROM treadle.sessions s WHERE owner <> '' AND lease <= moment
                    AND treadle.serves(s, agents, folders, reader)
                    ORDER BY lease, num LIMIT 1 FOR UPDATE SKIP LOCKED;
                IF due.num IS NULL OR lapsed.lease < due.wake_at THEN
                    due := coalesce(lapsed, due);
                END IF;
            END IF;
            IF due.num IS NOT NULL THEN
                PERFORM treadle.take_session(due.num, claimant, moment + ttl);
                RETURN NEXT due;
            END IF;
        END $$""",
    # A renewal locks its rows in the order in which an append does.
    """CREATE FUNCTION treadle.renew_claims(nums bigint[], epochs bigint[], owners text[], ttls double precision[],
            given double precision) RETURNS SETOF boolean LANGUAGE plpgsql SET lock_timeout = '4s' AS $$
        BEGIN
            FOR i IN 1 .. cardinality(nums) LOOP
                UPDATE treadle.sessions SET lease = treadle.now_or(given) + ttls[i]
                    WHERE num = nums[i] AND epoch = epochs[i] AND owner = owners[i];
                RETURN NEXT FOUND;
            END LOOP;
        END $$""",
    """CREATE FUNCTION treadle.create_session(about jsonb, bodies bytea[], claim_num bigint, claim_epoch bigint,
            claim_owner text) RETURNS text LANGUAGE plpgsql SET lock_timeout = '4s' AS $$
        DECLARE
            created bigint;
        BEGIN
            PERFORM treadle.begin_facts();
            IF claim_num IS NOT NULL AND NOT treadle.holds_claim(claim_num, claim_epoch, claim_owner) THEN
                RETURN 'claim lost';
            END IF;
            INSERT INTO treadle.sessions (id, agent, workspace, parent, name, folded_name, named_by_user, status,
                    turns, cost, created_at, updated_at, pinned, archived, model, min_reader, head)
                SELECT id, agent, workspace, parent, name, folded_name, named_by_user, status,
                    turns, cost, created_at, updated_at, pinned, archived, model, min_reader, cardinality(bodies)
                FROM jsonb_populate_record(NULL::treadle.sessions, about)
                ON CONFLICT (id) DO NOTHING RETURNING num INTO created;
            IF created IS NULL THEN
                RETURN 'taken';
            END IF;
            PERFORM treadle.insert_facts(created, 0, bodies, 0, cardinality(bodies));
            RETURN lastval()::text;
        END $$""",
    # The result is the outcome, the last position in the store, the first and last in the session, the number of the
    # session, and its epoch and former owner if it was claimed.
    """CREATE FUNCTION treadle.post_facts(wanted text, post_key text, bodies bytea[], changes jsonb, wakes boolean,
            claim_num bigint, claim_epoch bigint, claim_owner text, claimant text, ttl double precision,
            agents text[], folders text[], reader integer, given double precision) RETURNS text[]
        LANGUAGE plpgsql SET lock_timeout = '4s' AS $$
        DECLARE
            moment double precision := treadle.now_or(given);
            found treadle.sessions;
            earlier treadle.keys;
            claimed text[] := ARRAY['', ''];
        BEGIN
            PERFORM treadle.begin_facts();
            IF claim_num IS NOT NULL THEN
                PERFORM FROM treadle.sessions
                    WHERE num IN (claim_num, (SELECT num FROM treadle.sessions WHERE id = wanted))
                    ORDER BY num FOR UPDATE;
                IF NOT treadle.holds_claim(claim_num, claim_epoch, claim_owner) THEN
                    RETURN ARRAY['claim lost'];
                END IF;
            END IF;
            SELECT * INTO found FROM treadle.sessions WHERE id = wanted FOR UPDATE;
            IF found.num IS NULL THEN
                RETURN ARRAY['no session'];
            END IF;
            SELECT * INTO earlier FROM treadle.keys WHERE session = found.num AND key = post_key;
            IF earlier.session IS NOT NULL THEN
                RETURN ARRAY['repeated', '0', earlier.first::text, earlier.last::text, found.num::text, '', ''];
            END IF;
            PERFORM treadle.insert_facts(found.num, found.head, bodies, 0, cardinality(bodies));
            INSERT INTO treadle.keys VALUES (found.num, post_key, found.head + 1, found.head + cardinality(bodies));
            UPDATE treadle.sessions SET head = head + cardinality(bodies),
                wake_at = CASE WHEN wakes THEN least(wake_at, moment) ELSE wake_at END WHERE num = found.num;
            IF changes IS NOT NULL THEN
                PERFORM treadle.change_session(found.num, changes);
            END IF;
            IF claimant IS NOT NULL AND (found.owner = '' OR found.lease <= moment) THEN
                SELECT * INTO found FROM treadle.sessions WHERE num = found.num;
                IF treadle.serves(found, agents, folders, reader) THEN
                    PERFORM treadle.take_session(found.num, claimant, moment + ttl);
                    claimed := ARRAY[(found.epoch + 1)::text, found.owner];
                END IF;
            ELSE
                SELECT * INTO found FROM treadle.sessions WHERE num = found.num;
            END IF;
            RETURN ARRAY['posted', lastval()::text, (found.head - cardinality(bodies) + 1)::text,
                found.head::text, found.num::text] || claimed;
        END $$""",
    """CREATE FUNCTION treadle.delete_session(wanted text, given double precision) RETURNS text
        LANGUAGE plpgsql SET lock_timeout = '4s' AS $$
        DECLARE
            found treadle.sessions;
        BEGIN
            SELECT * INTO found FROM treadle.sessions WHERE id = wanted FOR UPDATE;
            IF found.num IS NULL THEN
                RETURN 'no session';
            ELSIF found.owner <> '' AND found.lease > treadle.now_or(given) THEN
                RETURN 'running';
            END IF;
            DELETE FROM treadle.facts WHERE session = found.num;
            DELETE FROM treadle.keys WHERE session = found.num;
            DELETE FROM treadle.artifacts WHERE session = found.num;
            DELETE FROM treadle.sessions WHERE num = found.num;
            RETURN 'deleted';
        END $$""",
)

_FIRST = (*_TABLES, *POSITION_FUNCTIONS, *_FUNCTIONS, *WORD_TABLES, *MEMORY_TABLES, *CONTENT_TABLES, *INCOMING_TABLES)
MIGRATIONS: tuple[Migration, ...] = (_FIRST,)


async def migrate(connection: AsyncConnection, where: str, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Create the tables of a new store, or bring an older one up to date. Other nodes wait, or go on with their work.

    A database that is a release newer is used as it is: it only has more.
    """
    if await _read_version(connection, where, migrations) >= len(migrations):
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        version = await _read_version(connection, where, migrations)
        if version == 0:
            cursor = await connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'treadle'")
            if await cursor.fetchone() is None:  # an administrator may have made it for a user that may not
                await connection.execute("CREATE SCHEMA treadle")
            await connection.execute(
                "CREATE TABLE treadle.versions (version integer PRIMARY KEY, oldest_node integer NOT NULL)"
            )
        for number, migration in enumerate(migrations[version:], version + 1):
            for statement in migration:
                await connection.execute(statement.encode())
            # A node of the release before may go on beside this one, so it is the oldest that can use the store.
            await connection.execute("INSERT INTO treadle.versions VALUES (%s, %s)", (number, max(1, number - 1)))


async def _read_version(connection: AsyncConnection, where: str, migrations: Sequence[Migration]) -> int:
    """Read the version of the store, 0 for a new one. Refuse one that this release cannot use any more."""
    # What another process has just created is seen in this table at once, and by `to_regclass` only later.
    cursor = await connection.execute("SELECT 1 FROM pg_tables WHERE schemaname = 'treadle' AND tablename = 'versions'")
    if await cursor.fetchone() is None:
        return 0
    cursor = await connection.execute("SELECT version, oldest_node FROM treadle.versions ORDER BY version DESC LIMIT 1")
    version, oldest = await cursor.fetchone() or (0, 0)
    if oldest > len(migrations):
        raise StoreTooNew(
            f"{where} has store version {version}, which needs a treadle that knows version {oldest}; this one knows "
            f"{len(migrations)}. Nothing was changed. Upgrade treadle to open it"
        )
    return version
