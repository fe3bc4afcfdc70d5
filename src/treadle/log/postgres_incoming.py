"""Where the facts of copied sessions lie in a PostgreSQL log until their session is complete."""

from __future__ import annotations

INCOMING_TABLES = (
    """CREATE TABLE treadle.incoming (
        source text NOT NULL,
        id text NOT NULL,
        num bigint NOT NULL,
        PRIMARY KEY (source, id))""",
    """CREATE TABLE treadle.incoming_facts (
        session bigint NOT NULL,
        seq integer NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (session, seq))""",
    # It takes positions as every append does.
    """CREATE FUNCTION treadle.publish_session(about jsonb, known_num bigint, after integer, bodies bytea[],
            keys jsonb) RETURNS bigint LANGUAGE plpgsql SET lock_timeout = '4s' AS $$
        DECLARE
            entry treadle.sessions := jsonb_populate_record(NULL::treadle.sessions, about);
            target bigint;
            added integer := cardinality(bodies);
        BEGIN
            PERFORM treadle.begin_facts();
            IF after = 0 THEN
                entry.num := coalesce(known_num, nextval(pg_get_serial_sequence('treadle.sessions', 'num')));
                INSERT INTO treadle.sessions OVERRIDING SYSTEM VALUE VALUES (entry.*)
                    ON CONFLICT (id) DO NOTHING RETURNING num INTO target;
            ELSE
                UPDATE treadle.sessions AS old SET head = entry.head, agent = entry.agent, name = entry.name,
                    folded_name = entry.folded_name, named_by_user = entry.named_by_user, status = entry.status,
                    turns = entry.turns, cost = entry.cost, updated_at = entry.updated_at, pinned = entry.pinned,
                    archived = entry.archived, model = entry.model, wake_at = entry.wake_at, owner = '', lease = 0,
                    min_reader = greatest(old.min_reader, entry.min_reader),
                    epoch = greatest(old.epoch, entry.epoch)
                WHERE num = known_num AND id = entry.id AND head = after
                    AND (owner = '' OR lease <= treadle.now_or(NULL)) RETURNING num INTO target;
            END IF;
            IF target IS NULL THEN
                RETURN NULL;
            END IF;
            IF added > 0 THEN
                PERFORM treadle.insert_facts(target, after, bodies, 0, added);
            ELSE
                INSERT INTO treadle.facts (session, seq, position, body)
                    SELECT session, seq, nextval('treadle.positions'), body FROM (
                        SELECT * FROM treadle.incoming_facts
                        WHERE session = target AND seq > after AND seq <= entry.head ORDER BY seq) AS arrived;
                GET DIAGNOSTICS added = ROW_COUNT;
                DELETE FROM treadle.incoming_facts WHERE session = target;
                DELETE FROM treadle.incoming WHERE num = target;
            END IF;
            IF added <> entry.head - after THEN
                RAISE EXCEPTION 'session % has % of its facts after %, not %',
                    entry.id, added, after, entry.head - after;
            END IF;
            INSERT INTO treadle.keys (session, key, first, last)
                SELECT target, key, first, last
                FROM jsonb_to_recordset(keys) AS used (key text, first integer, last integer)
                ON CONFLICT DO NOTHING;
            RETURN target;
        END $$""",
)
