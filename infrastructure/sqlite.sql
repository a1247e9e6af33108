-- The tables of a ledger in a SQLite file. Statements are parted by blank lines.

-- The column is called rowid because eventsourcing's reader asks for it by that name, and because VACUUM may
-- renumber a rowid that no column stands for. AUTOINCREMENT: a position is never given twice.
CREATE TABLE stored_events (
    rowid INTEGER PRIMARY KEY AUTOINCREMENT CHECK (rowid > 0),
    originator_id TEXT NOT NULL,
    originator_version INTEGER NOT NULL CHECK (originator_version >= 0),
    topic TEXT NOT NULL,
    state BLOB NOT NULL,
    UNIQUE (originator_id, originator_version)
);

CREATE TABLE ledger (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    ledger_id TEXT NOT NULL,
    identity_key BLOB NOT NULL CHECK (length(identity_key) = 32),
    epoch INTEGER NOT NULL CHECK (epoch BETWEEN 0 AND 65535),
    schema_revision INTEGER NOT NULL,
    created_at TEXT NOT NULL
);

-- The one table that changes: until is in microseconds since 1970, UTC.
CREATE TABLE lease (
    pause TEXT PRIMARY KEY,
    fence INTEGER NOT NULL,
    until INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TRIGGER stored_events_no_update BEFORE UPDATE ON stored_events BEGIN
    SELECT RAISE(ABORT, 'pauseledger: the log is append-only');
END;

CREATE TRIGGER stored_events_no_delete BEFORE DELETE ON stored_events BEGIN
    SELECT RAISE(ABORT, 'pauseledger: the log is append-only');
END;

-- INSERT OR REPLACE removes rows without firing delete triggers (unless the connection set recursive_triggers), so a
-- taken place has to be seen before the insert. A rowid that nobody gave is -1 here. The order is fixed: a version that
-- is there is a lost race, whatever else is wrong.
CREATE TRIGGER stored_events_in_turn BEFORE INSERT ON stored_events BEGIN
    SELECT RAISE(ABORT, 'pauseledger: the stream has that version') WHERE EXISTS (
        SELECT 1 FROM stored_events
        WHERE originator_id = NEW.originator_id AND originator_version = NEW.originator_version);
    SELECT RAISE(ABORT, 'pauseledger: the position is taken') WHERE EXISTS (
        SELECT 1 FROM stored_events WHERE rowid = NEW.rowid);
    SELECT RAISE(ABORT, 'pauseledger: the stream has begun') WHERE NEW.originator_version = 0 AND EXISTS (
        SELECT 1 FROM stored_events WHERE originator_id = NEW.originator_id AND originator_version = 1);
    SELECT RAISE(ABORT, 'pauseledger: the version before is missing') WHERE NEW.originator_version > 1 AND NOT EXISTS (
        SELECT 1 FROM stored_events
        WHERE originator_id = NEW.originator_id AND originator_version = NEW.originator_version - 1);
END;
