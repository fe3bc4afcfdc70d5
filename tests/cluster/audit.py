"""What the database itself saw: a trigger writes down who stored each fact and who took each session over, and when.

It is apart from the code under test, and its time is that of the database.
"""

_NOW = "extract(epoch FROM clock_timestamp())::double precision"
AUDIT = (
    "CREATE SCHEMA audit",
    """CREATE TABLE audit.facts (
        session bigint, seq integer, epoch bigint, owner text, at double precision, PRIMARY KEY (session, seq))""",
    """CREATE TABLE audit.claims (
        session bigint, epoch bigint, owner text, earlier_owner text, earlier_lease double precision,
        at double precision)""",
    f"""CREATE FUNCTION audit.note_fact() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO audit.facts SELECT NEW.session, NEW.seq, epoch, owner, {_NOW}
                FROM treadle.sessions WHERE num = NEW.session;
            RETURN NULL;
        END $$""",
    f"""CREATE FUNCTION audit.note_claim() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO audit.claims VALUES (NEW.num, NEW.epoch, NEW.owner, OLD.owner, OLD.lease, {_NOW});
            RETURN NULL;
        END $$""",
    "CREATE TRIGGER note_fact AFTER INSERT ON treadle.facts FOR EACH ROW EXECUTE FUNCTION audit.note_fact()",
    """CREATE TRIGGER note_claim AFTER UPDATE OF epoch ON treadle.sessions FOR EACH ROW
        WHEN (OLD.epoch <> NEW.epoch) EXECUTE FUNCTION audit.note_claim()""",
)
