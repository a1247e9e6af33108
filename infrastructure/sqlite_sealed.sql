-- The sealed log in a SQLite file, schema@3. Statements are parted by blank lines.

-- Which row stands at which leaf of the tree. leaf_hash is that of RFC 6962, over the row's digest.
CREATE TABLE sealed (
    leaf_index INTEGER PRIMARY KEY CHECK (leaf_index >= 0),
    notification_id INTEGER NOT NULL UNIQUE,
    leaf_hash BLOB NOT NULL CHECK (length(leaf_hash) = 32)
);

-- The hash of each complete subtree of 256 ** line leaves; what proofs are made of, and can be made anew from the leaves.
CREATE TABLE sealed_tiles (
    line INTEGER NOT NULL CHECK (line > 0),
    place INTEGER NOT NULL,
    hash BLOB NOT NULL CHECK (length(hash) = 32),
    PRIMARY KEY (line, place)
) WITHOUT ROWID;

-- Every head that was signed. made_at is in microseconds since 1970, UTC.
CREATE TABLE tree_heads (
    size INTEGER PRIMARY KEY,
    checkpoint TEXT NOT NULL,
    made_at INTEGER NOT NULL
);

-- How many leaves there are, and the highest position among them. It goes forward with the leaves it counts.
CREATE TABLE sealing (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    size INTEGER NOT NULL,
    position INTEGER NOT NULL
);

INSERT INTO sealing VALUES (1, 0, 0);

CREATE TRIGGER sealed_no_update BEFORE UPDATE ON sealed BEGIN
    SELECT RAISE(ABORT, 'pauseledger: the sealed log is append-only');
END;

CREATE TRIGGER sealed_no_delete BEFORE DELETE ON sealed BEGIN
    SELECT RAISE(ABORT, 'pauseledger: the sealed log is append-only');
END;

CREATE TRIGGER sealed_in_turn BEFORE INSERT ON sealed BEGIN
    SELECT RAISE(ABORT, 'pauseledger: the leaf is taken') WHERE EXISTS (
        SELECT 1 FROM sealed WHERE leaf_index = NEW.leaf_index OR notification_id = NEW.notification_id);
END;

CREATE TRIGGER sealed_tiles_no_update BEFORE UPDATE ON sealed_tiles BEGIN
    SELECT RAISE(ABORT, 'pauseledger: the sealed log is append-only');
END;

CREATE TRIGGER sealed_tiles_no_delete BEFORE DELETE ON sealed_tiles BEGIN
    SELECT RAISE(ABORT, 'pauseledger: the sealed log is append-only');
END;

CREATE TRIGGER sealed_tiles_in_turn BEFORE INSERT ON sealed_tiles BEGIN
    SELECT RAISE(ABORT, 'pauseledger: the place is taken') WHERE EXISTS (
        SELECT 1 FROM sealed_tiles WHERE line = NEW.line AND place = NEW.place);
END;

CREATE TRIGGER tree_heads_no_update BEFORE UPDATE ON tree_heads BEGIN
    SELECT RAISE(ABORT, 'pauseledger: heads are append-only');
END;

CREATE TRIGGER tree_heads_no_delete BEFORE DELETE ON tree_heads BEGIN
    SELECT RAISE(ABORT, 'pauseledger: heads are append-only');
END;

CREATE TRIGGER tree_heads_in_turn BEFORE INSERT ON tree_heads BEGIN
    SELECT RAISE(ABORT, 'pauseledger: the head is there') WHERE EXISTS (
        SELECT 1 FROM tree_heads WHERE size = NEW.size);
END;

CREATE TRIGGER sealing_forward BEFORE UPDATE ON sealing BEGIN
    SELECT RAISE(ABORT, 'pauseledger: sealing goes forward alone, by the leaves that are there')
    WHERE NEW.one <> 1 OR NEW.size <= OLD.size OR NEW.position < OLD.position
        OR (SELECT count(*) FROM sealed WHERE leaf_index >= OLD.size) <> NEW.size - OLD.size
        OR (SELECT max(leaf_index) FROM sealed) <> NEW.size - 1;
END;

CREATE TRIGGER sealing_no_delete BEFORE DELETE ON sealing BEGIN
    SELECT RAISE(ABORT, 'pauseledger: there is one sealing');
END;

CREATE TRIGGER sealing_no_insert BEFORE INSERT ON sealing BEGIN
    SELECT RAISE(ABORT, 'pauseledger: there is one sealing');
END;
