-- The sealed log, schema@3. Only `pauseledger migrate` runs this.

-- Which row stands at which leaf of the tree. leaf_hash is that of RFC 6962, over the row's digest.
CREATE TABLE {schema}.sealed (
    leaf_index bigint NOT NULL CHECK (leaf_index >= 0),
    notification_id bigint NOT NULL,
    leaf_hash bytea NOT NULL CHECK (length(leaf_hash) = 32),
    CONSTRAINT sealed_leaf PRIMARY KEY (leaf_index),
    CONSTRAINT sealed_position UNIQUE (notification_id)
);

-- The hash of each complete subtree of 256 ** line leaves; what proofs are made of, and can be made anew from the leaves.
CREATE TABLE {schema}.sealed_tiles (
    line integer NOT NULL CHECK (line > 0),
    place bigint NOT NULL,
    hash bytea NOT NULL CHECK (length(hash) = 32),
    PRIMARY KEY (line, place)
);

-- Every head that was signed.
CREATE TABLE {schema}.tree_heads (
    size bigint PRIMARY KEY,
    checkpoint text NOT NULL,
    made_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- How many leaves there are, and the highest position among them. It goes forward with the leaves it counts.
CREATE TABLE {schema}.sealing (
    one integer PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    size bigint NOT NULL DEFAULT 0,
    position bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

INSERT INTO {schema}.sealing DEFAULT VALUES;

CREATE FUNCTION {schema}.seal_forward() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    added bigint;
    last bigint;
BEGIN
    SELECT count(*), max(leaf_index) INTO added, last FROM {schema}.sealed WHERE leaf_index >= OLD.size;
    IF NEW.one <> 1 OR NEW.size <= OLD.size OR NEW.position < OLD.position
        OR added <> NEW.size - OLD.size OR last <> NEW.size - 1
    THEN
        RAISE EXCEPTION 'sealing goes forward alone, by the leaves that are there' USING ERRCODE = 'PLA01';
    END IF;
    RETURN NEW;
END
$body$;

CREATE TRIGGER sealed_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {schema}.sealed
FOR EACH STATEMENT EXECUTE FUNCTION {schema}.append_only();

CREATE TRIGGER sealed_tiles_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {schema}.sealed_tiles
FOR EACH STATEMENT EXECUTE FUNCTION {schema}.append_only();

CREATE TRIGGER tree_heads_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {schema}.tree_heads
FOR EACH STATEMENT EXECUTE FUNCTION {schema}.append_only();

CREATE TRIGGER sealing_append_only BEFORE INSERT OR DELETE OR TRUNCATE ON {schema}.sealing
FOR EACH STATEMENT EXECUTE FUNCTION {schema}.append_only();

CREATE TRIGGER sealing_forward BEFORE UPDATE ON {schema}.sealing
FOR EACH ROW EXECUTE FUNCTION {schema}.seal_forward();

-- A session that plays replica skips ordinary triggers.
ALTER TABLE {schema}.sealed ENABLE ALWAYS TRIGGER sealed_append_only;
ALTER TABLE {schema}.sealed_tiles ENABLE ALWAYS TRIGGER sealed_tiles_append_only;
ALTER TABLE {schema}.tree_heads ENABLE ALWAYS TRIGGER tree_heads_append_only;
ALTER TABLE {schema}.sealing ENABLE ALWAYS TRIGGER sealing_append_only;
ALTER TABLE {schema}.sealing ENABLE ALWAYS TRIGGER sealing_forward;

-- What an auditor may write: that they have read. The stream is the ledger's one of readings, docs/facts.md says which;
-- no other row comes this way, so that the role needs no right to insert.
CREATE FUNCTION {schema}.record_reading(version bigint, state bytea) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    id bytea;
    drawn bigint;
BEGIN
    SELECT substring(sha256(convert_to('readings', 'UTF8') || uuid_send(ledger_id)) FROM 1 FOR 16) INTO id
    FROM {schema}.ledger WHERE one = 1;
    id := set_byte(set_byte(id, 6, get_byte(id, 6) & 15 | 128), 8, get_byte(id, 8) & 63 | 128);
    INSERT INTO {schema}.stored_events (originator_id, originator_version, topic, state)
    VALUES (encode(id, 'hex')::uuid, version, 'audit.read@1', state)
    RETURNING notification_id INTO drawn;
    RETURN drawn;
END
$body$;

REVOKE ALL ON {schema}.sealed, {schema}.sealed_tiles, {schema}.tree_heads, {schema}.sealing FROM PUBLIC;
REVOKE ALL ON FUNCTION {schema}.seal_forward(), {schema}.record_reading(bigint, bytea) FROM PUBLIC;
