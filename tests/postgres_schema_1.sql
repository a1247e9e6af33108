-- The tables of a ledger on PostgreSQL, schema@1. Only `pauseledger migrate` runs this.

CREATE TABLE {schema}.stored_events (
    originator_id uuid NOT NULL,
    originator_version bigint NOT NULL CHECK (originator_version >= 0),
    topic text NOT NULL,
    state bytea NOT NULL,
    notification_id bigint GENERATED ALWAYS AS IDENTITY (CACHE 1 NO CYCLE),
    CONSTRAINT stored_events_stream PRIMARY KEY (originator_id, originator_version),
    CONSTRAINT stored_events_position UNIQUE (notification_id)
);

-- What comes is compressed already; the server would spend time on it in vain.
ALTER TABLE {schema}.stored_events ALTER COLUMN state SET STORAGE EXTERNAL;

CREATE TABLE {schema}.ledger (
    one integer PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    ledger_id uuid NOT NULL,
    identity_key bytea NOT NULL CHECK (length(identity_key) = 32),
    epoch integer NOT NULL CHECK (epoch BETWEEN 0 AND 65535),
    schema_revision integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The one table that changes.
CREATE TABLE {schema}.lease (
    pause uuid PRIMARY KEY,
    fence integer NOT NULL,
    until timestamptz NOT NULL
) WITH (fillfactor = 80);

-- Positions are drawn before the commit. One writer at a time, from before its first row draws one until its commit is
-- visible, so that no reader passes a position that is filled in later. The key is the table's own ("PLED" and its oid).
CREATE FUNCTION {schema}.one_writer() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    PERFORM pg_advisory_xact_lock((1347175748::bigint << 32) | TG_RELID::bigint);
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    RETURN NULL;
END
$body$;

-- A version that is there is left to the primary key: that is a lost race, and no gap.
CREATE FUNCTION {schema}.in_turn() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    IF NEW.originator_version > 1 THEN
        PERFORM FROM {schema}.stored_events
        WHERE originator_id = NEW.originator_id AND originator_version = NEW.originator_version - 1;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the version before is missing' USING ERRCODE = 'PLG01';
        END IF;
    ELSIF NEW.originator_version = 0 THEN
        PERFORM FROM {schema}.stored_events WHERE originator_id = NEW.originator_id
        HAVING bool_or(originator_version = 1) AND NOT bool_or(originator_version = 0);
        IF FOUND THEN
            RAISE EXCEPTION 'the stream has begun' USING ERRCODE = 'PLG01';
        END IF;
    END IF;
    RETURN NEW;
END
$body$;

CREATE FUNCTION {schema}.append_only() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    RAISE EXCEPTION 'the log is append-only' USING ERRCODE = 'PLA01';
END
$body$;

CREATE TRIGGER stored_events_one_writer BEFORE INSERT ON {schema}.stored_events
FOR EACH STATEMENT EXECUTE FUNCTION {schema}.one_writer();

CREATE TRIGGER stored_events_in_turn BEFORE INSERT ON {schema}.stored_events
FOR EACH ROW EXECUTE FUNCTION {schema}.in_turn();

CREATE TRIGGER stored_events_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {schema}.stored_events
FOR EACH STATEMENT EXECUTE FUNCTION {schema}.append_only();

-- A session that plays replica skips ordinary triggers.
ALTER TABLE {schema}.stored_events ENABLE ALWAYS TRIGGER stored_events_one_writer;
ALTER TABLE {schema}.stored_events ENABLE ALWAYS TRIGGER stored_events_in_turn;
ALTER TABLE {schema}.stored_events ENABLE ALWAYS TRIGGER stored_events_append_only;

REVOKE ALL ON SCHEMA {schema} FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA {schema} FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC;
