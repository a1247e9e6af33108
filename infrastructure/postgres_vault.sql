-- The vault of a ledger on PostgreSQL, schema@4. Only `pauseledger migrate` runs this.

-- The two data keys of a pause, each wrapped by a key outside the database. A destroyed one is null, and its tombstone
-- says since when.
CREATE TABLE {schema}.vault (
    pause uuid CONSTRAINT vault_pause PRIMARY KEY,
    content_key uuid NOT NULL,
    person_key uuid NOT NULL,
    content bytea,
    person bytea,
    made_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    content_destroyed_at timestamptz,
    person_destroyed_at timestamptz,
    CONSTRAINT vault_content CHECK ((content IS NULL) = (content_destroyed_at IS NOT NULL)),
    CONSTRAINT vault_person CHECK ((person IS NULL) = (person_destroyed_at IS NOT NULL))
);

-- A key may be destroyed, once, by whoever was given the right; the owner may also have it wrapped anew by another key
-- outside. Not SECURITY DEFINER: who updates is the question.
CREATE FUNCTION {schema}.guard_vault() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    IF TG_OP <> 'UPDATE' THEN
        RAISE EXCEPTION 'keys are destroyed, their rows stay' USING ERRCODE = 'PLV01';
    END IF;
    IF (NEW.pause, NEW.content_key, NEW.person_key, NEW.made_at)
            IS DISTINCT FROM (OLD.pause, OLD.content_key, OLD.person_key, OLD.made_at)
        OR (OLD.content IS NULL AND (NEW.content IS NOT NULL OR NEW.content_destroyed_at <> OLD.content_destroyed_at))
        OR (OLD.person IS NULL AND (NEW.person IS NOT NULL OR NEW.person_destroyed_at <> OLD.person_destroyed_at))
    THEN
        RAISE EXCEPTION 'a key is destroyed or wrapped anew, nothing else' USING ERRCODE = 'PLV01';
    END IF;
    IF (NEW.content <> OLD.content OR NEW.person <> OLD.person) AND NOT pg_has_role(
        current_user, (SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE'
    ) THEN
        RAISE EXCEPTION 'only the owner has keys wrapped anew' USING ERRCODE = 'PLV01';
    END IF;
    IF substring(NEW.content FROM 1 FOR 4) = substring(OLD.content FROM 1 FOR 4) AND NEW.content <> OLD.content
        OR substring(NEW.person FROM 1 FOR 4) = substring(OLD.person FROM 1 FOR 4) AND NEW.person <> OLD.person
    THEN
        RAISE EXCEPTION 'a key is wrapped anew by another key' USING ERRCODE = 'PLV01';
    END IF;
    RETURN NEW;
END
$body$;

CREATE TRIGGER vault_guard BEFORE UPDATE OR DELETE ON {schema}.vault
FOR EACH ROW EXECUTE FUNCTION {schema}.guard_vault();

CREATE TRIGGER vault_no_truncate BEFORE TRUNCATE ON {schema}.vault
FOR EACH STATEMENT EXECUTE FUNCTION {schema}.guard_vault();

-- A session that plays replica skips ordinary triggers.
ALTER TABLE {schema}.vault ENABLE ALWAYS TRIGGER vault_guard;
ALTER TABLE {schema}.vault ENABLE ALWAYS TRIGGER vault_no_truncate;

REVOKE ALL ON {schema}.vault FROM PUBLIC;
REVOKE ALL ON FUNCTION {schema}.guard_vault() FROM PUBLIC;
