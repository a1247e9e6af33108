"""The keys and conditions of the tables on PostgreSQL, as the server spells them: what `check` holds them against."""

_KEYS_AND_CONDITIONS = (
    ("lease", "lease_pkey", "PRIMARY KEY (pause)"),
    ("ledger", "ledger_epoch_check", "CHECK (((epoch >= 0) AND (epoch <= 65535)))"),
    ("ledger", "ledger_identity_key_check", "CHECK ((length(identity_key) = 32))"),
    ("ledger", "ledger_one_check", "CHECK ((one = 1))"),
    ("ledger", "ledger_pkey", "PRIMARY KEY (one)"),
    ("sealed", "sealed_leaf", "PRIMARY KEY (leaf_index)"),
    ("sealed", "sealed_leaf_hash_check", "CHECK ((length(leaf_hash) = 32))"),
    ("sealed", "sealed_leaf_index_check", "CHECK ((leaf_index >= 0))"),
    ("sealed", "sealed_position", "UNIQUE (notification_id)"),
    ("sealed_tiles", "sealed_tiles_hash_check", "CHECK ((length(hash) = 32))"),
    ("sealed_tiles", "sealed_tiles_line_check", "CHECK ((line > 0))"),
    ("sealed_tiles", "sealed_tiles_pkey", "PRIMARY KEY (line, place)"),
    ("sealing", "sealing_one_check", "CHECK ((one = 1))"),
    ("sealing", "sealing_pkey", "PRIMARY KEY (one)"),
    ("stored_events", "stored_events_originator_version_check", "CHECK ((originator_version >= 0))"),
    ("stored_events", "stored_events_position", "UNIQUE (notification_id)"),
    ("stored_events", "stored_events_stream", "PRIMARY KEY (originator_id, originator_version)"),
    ("tree_heads", "tree_heads_pkey", "PRIMARY KEY (size)"),
    ("vault", "vault_content", "CHECK (((content IS NULL) = (content_destroyed_at IS NOT NULL)))"),
    ("vault", "vault_pause", "PRIMARY KEY (pause)"),
    ("vault", "vault_person", "CHECK (((person IS NULL) = (person_destroyed_at IS NOT NULL)))"),
)
_NOT_NULL = {
    "lease": "pause fence until",
    "ledger": "one ledger_id identity_key epoch schema_revision created_at",
    "sealed": "leaf_index notification_id leaf_hash",
    "sealed_tiles": "line place hash",
    "sealing": "one size position",
    "stored_events": "originator_id originator_version topic state notification_id",
    "tree_heads": "size checkpoint made_at",
    "vault": "pause content_key person_key made_at",
}

#: Table, constraint or column, and what has to hold of it.
CONSTRAINTS = (
    *_KEYS_AND_CONDITIONS,
    *((table, column, "NOT NULL") for table, columns in _NOT_NULL.items() for column in columns.split()),
)

#: What is there of them, valid and enforced at once: whatever is not has a definition that says so.
FOUND = """
SELECT relname, conname, pg_get_constraintdef(pg_constraint.oid) FROM pg_constraint
JOIN pg_class ON pg_class.oid = conrelid
WHERE relnamespace = {schema_name}::regnamespace AND relname = ANY(%(tables)b::text[]) AND contype IN ('p', 'u', 'c')
UNION ALL
SELECT relname, attname, 'NOT NULL' FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
WHERE relnamespace = {schema_name}::regnamespace AND relname = ANY(%(tables)b::text[]) AND attnum > 0 AND attnotnull
"""
