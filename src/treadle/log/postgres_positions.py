"""Positions of facts in the order of the whole store, as functions of the database. Writers never wait for each other.

A writer announces with a lock that nobody waits for that it may take positions above a floor. A reader stops at the
lowest floor, so that it never sees a position before an earlier one.
"""

from __future__ import annotations

_KIND = 7472
"""The upper 16 bits of the advisory locks that announce a floor. The others are the floor."""

POSITION_FUNCTIONS = (
    """CREATE FUNCTION treadle.last_position() RETURNS bigint LANGUAGE plpgsql AS $$
        BEGIN
            RETURN coalesce(pg_sequence_last_value('treadle.positions'), 0);  -- needs no right to read
        END $$""",
    # A writer takes its positions after it has locked its floor, and its lock ends after its commit is visible.
    f"""CREATE FUNCTION treadle.begin_facts() RETURNS void LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM pg_advisory_xact_lock_shared(({_KIND}::bigint << 48) + treadle.last_position());
        END $$""",
    f"""CREATE FUNCTION treadle.lowest_floor() RETURNS bigint LANGUAGE sql AS $$
        SELECT min(((classid::bigint & 65535) << 32) | objid::bigint) FROM pg_locks
            WHERE locktype = 'advisory' AND classid::bigint >> 16 = {_KIND} AND objsubid = 1
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) $$""",
    # All facts up to this position are stored, or never will be. The order of the steps matters: a writer whose lock is
    # not seen in the second one takes its positions after the first one.
    """CREATE FUNCTION treadle.settled_position() RETURNS bigint LANGUAGE plpgsql AS $$
        DECLARE
            last bigint := treadle.last_position();
        BEGIN
            RETURN least(last, treadle.lowest_floor());
        END $$""",
    # Each statement of this function sees what was committed before it, so also what ended before the floors were read.
    # A row without a fact says where the store ends, if that is before `after`. One without a place says that facts
    # are held back by writers.
    """CREATE FUNCTION treadle.read_store(after bigint, most integer, most_bytes bigint)
        RETURNS TABLE (place bigint, session bigint, id text, seq integer, body bytea) LANGUAGE plpgsql AS $$
        DECLARE
            last bigint := treadle.last_position();
            settled bigint := least(last, treadle.lowest_floor());
        BEGIN
            IF after > last THEN
                RETURN QUERY SELECT settled, NULL::bigint, NULL, NULL::integer, NULL::bytea;
                RETURN;
            END IF;
            RETURN QUERY SELECT batch.position, batch.session, sessions.id, batch.seq, batch.body FROM (
                    SELECT f.position, f.session, f.seq, f.body,
                        sum(octet_length(f.body)) OVER (ORDER BY f.position) - octet_length(f.body) AS before
                    FROM treadle.facts f WHERE f.position > after AND f.position <= settled
                    ORDER BY f.position LIMIT most) AS batch
                LEFT JOIN treadle.sessions ON num = batch.session WHERE before < most_bytes ORDER BY batch.position;
            IF NOT FOUND AND settled < last THEN
                RETURN QUERY SELECT NULL::bigint, NULL::bigint, NULL, NULL::integer, NULL::bytea;
            END IF;
        END $$""",
)
