-- The vault of a ledger in a SQLite file, schema@4. Statements are parted by blank lines.

-- The two data keys of a pause, each wrapped by a key outside this file. A destroyed one is null, and its tombstone says
-- since when (microseconds since 1970, UTC).
CREATE TABLE vault (
    pause TEXT PRIMARY KEY,
    content_key TEXT NOT NULL,
    person_key TEXT NOT NULL,
    content BLOB,
    person BLOB,
    made_at INTEGER NOT NULL,
    content_destroyed_at INTEGER,
    person_destroyed_at INTEGER,
    CHECK ((content IS NULL) = (content_destroyed_at IS NOT NULL)),
    CHECK ((person IS NULL) = (person_destroyed_at IS NOT NULL))
) WITHOUT ROWID;

CREATE TRIGGER vault_no_delete BEFORE DELETE ON vault BEGIN
    SELECT RAISE(ABORT, 'pauseledger: keys are destroyed, their rows stay');
END;

-- INSERT OR REPLACE would put other keys in their place, and fire no delete trigger.
CREATE TRIGGER vault_once BEFORE INSERT ON vault BEGIN
    SELECT RAISE(ABORT, 'pauseledger: the pause has keys') WHERE EXISTS (SELECT 1 FROM vault WHERE pause = NEW.pause);
END;

-- A key may be destroyed, once, or wrapped anew by another key outside; nothing else.
CREATE TRIGGER vault_guard BEFORE UPDATE ON vault
WHEN NEW.pause IS NOT OLD.pause OR NEW.made_at IS NOT OLD.made_at
    OR NEW.content_key IS NOT OLD.content_key OR NEW.person_key IS NOT OLD.person_key
    OR (OLD.content IS NULL AND (NEW.content IS NOT NULL OR NEW.content_destroyed_at IS NOT OLD.content_destroyed_at))
    OR (OLD.person IS NULL AND (NEW.person IS NOT NULL OR NEW.person_destroyed_at IS NOT OLD.person_destroyed_at))
    OR (NEW.content IS NOT OLD.content AND substr(NEW.content, 1, 4) IS substr(OLD.content, 1, 4))
    OR (NEW.person IS NOT OLD.person AND substr(NEW.person, 1, 4) IS substr(OLD.person, 1, 4))
BEGIN
    SELECT RAISE(ABORT, 'pauseledger: a key is destroyed or wrapped anew, nothing else');
END;
