-- How many write at once and a reader still misses nothing, schema@2. Only `pauseledger migrate` runs this.

-- Positions are drawn before the commit, so one may turn up after a higher one was read. Each statement that inserts
-- takes, before its first row draws a position, a shared lock that says: mine are above the floor F, the sequence's last
-- value. It is held until the commit is visible. Shared locks never wait for each other, so writers share flushes; an
-- exclusive one that somebody else holds on the key is an error at once. The key: the table's oid, the low half of F.
CREATE FUNCTION {schema}.take_floor() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    -- A transaction that somebody forgot would hold up every reader for as long as it lasts.
    IF clock_timestamp() - transaction_timestamp() > interval '30 seconds' THEN
        RAISE EXCEPTION 'a transaction may insert in its first 30 seconds' USING ERRCODE = 'PLF01';
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF NOT pg_try_advisory_xact_lock_shared(
        TG_RELID::bigint::bit(32)::integer,
        coalesce(pg_sequence_last_value({positions}::regclass), 0)::bit(32)::integer
    ) THEN
        RAISE EXCEPTION 'somebody holds the lock of this floor for himself' USING ERRCODE = 'PLF02';
    END IF;
    RETURN NULL;
END
$body$;

-- Everything at or below the bound is committed, or gone for good. The order is fixed: first the last value, then the
-- locks. A writer whose lock is not seen draws its positions after the last value was read, and so above it.
CREATE FUNCTION {schema}.bound() RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    highest bigint;
    floor bigint;
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'a standby has none of the locks' USING ERRCODE = 'PLF03';
    END IF;
    -- The rows are read after this, and have to be those of a later moment.
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'read the log in READ COMMITTED' USING ERRCODE = 'PLF04';
    END IF;
    -- Null where nothing was drawn yet; the sequence's own column says 1 there.
    highest := coalesce(pg_sequence_last_value({positions}::regclass), 0);
    -- A key is half a floor. The other half is that which brings it next to the last value.
    SELECT min(highest + ((objid::bigint - highest + 2147483648) & 4294967295) - 2147483648) INTO floor
    FROM pg_locks
    WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted AND objsubid = 2
        AND classid = {events_name}::regclass::oid
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database());
    RETURN least(highest, floor);
END
$body$;

-- Reads the log from a position up to another one, as far as the bound. It keeps no position: whoever follows goes on
-- after the last row returned, never after the bound, which a crash can lower. `most_bytes` cuts states short.
CREATE FUNCTION {schema}.read_log(
    start bigint, stop bigint, topics text[], most_bytes integer, most_rows bigint
) RETURNS TABLE (originator_id uuid, originator_version bigint, topic text, state bytea, notification_id bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
#variable_conflict use_column
DECLARE
    last bigint := least(stop, {schema}.bound());
BEGIN
    -- A statement of its own: the bound's would not see what was committed while it looked.
    RETURN QUERY
    SELECT event.originator_id, event.originator_version, event.topic,
        CASE WHEN most_bytes IS NULL THEN event.state ELSE substring(event.state FROM 1 FOR most_bytes) END,
        event.notification_id
    FROM {schema}.stored_events AS event
    WHERE event.notification_id BETWEEN start AND last AND (topics IS NULL OR event.topic = ANY(topics))
    ORDER BY event.notification_id LIMIT most_rows;
END
$body$;

-- The newest position that a reader may be given; null where there is none.
CREATE FUNCTION {schema}.newest_position() RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    last bigint := {schema}.bound();
BEGIN
    RETURN (SELECT max(notification_id) FROM {schema}.stored_events WHERE notification_id <= last);
END
$body$;

-- Who holds a floor, lowest first: what stands above it waits for them. Without a pid it is a prepared transaction.
CREATE VIEW {schema}.floor_holders AS
SELECT
    highest.last + ((lock.objid::bigint - highest.last + 2147483648) & 4294967295) - 2147483648 AS floor,
    lock.pid, holder.usename AS role, holder.application_name, holder.client_addr, holder.state,
    coalesce(holder.xact_start, prepared.prepared) AS since, prepared.gid AS prepared_as
FROM (SELECT coalesce(pg_sequence_last_value({positions}::regclass), 0) AS last) AS highest
CROSS JOIN pg_locks AS lock
LEFT JOIN pg_stat_activity AS holder ON holder.pid = lock.pid
LEFT JOIN pg_prepared_xacts AS prepared
    ON lock.pid IS NULL AND split_part(lock.virtualtransaction, '/', 2) = prepared.transaction::text
WHERE lock.locktype = 'advisory' AND lock.mode = 'ShareLock' AND lock.granted AND lock.objsubid = 2
    AND lock.classid = {events_name}::regclass::oid
    AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY floor;

CREATE TRIGGER stored_events_floor BEFORE INSERT ON {schema}.stored_events
FOR EACH STATEMENT EXECUTE FUNCTION {schema}.take_floor();

-- A session that plays replica skips ordinary triggers.
ALTER TABLE {schema}.stored_events ENABLE ALWAYS TRIGGER stored_events_floor;

REVOKE ALL ON SCHEMA {schema} FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA {schema} FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC;
