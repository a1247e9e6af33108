"""Segments sealed under two data keys a pause: where they open, and where they never do."""

import base64
import hashlib
import json
from uuid import UUID

import pytest
from eventsourcing.persistence import StoredEvent
from pauseledger import InteractionConfigurationError, LedgerCorrupt
from pauseledger.domain.content import Content, ContentErasedError
from pauseledger.domain.facts import ActorRecord, Withdrawn
from pauseledger.infrastructure import vault as vaults
from pauseledger.infrastructure.keys import Key, KeyFile, KeyRing
from pauseledger.infrastructure.mapper import FactMapper
from pauseledger.infrastructure.vault import DataKey, PauseKeys, Sealing, Vault

LEDGER, OTHER_LEDGER = UUID("00000000-0000-4000-8000-00000000abcd"), UUID("00000000-0000-4000-8000-00000000dcba")
PAUSE, OTHER = UUID("004a0000-0000-8000-8000-000000000001"), UUID("004a0000-0000-8000-8000-000000000002")
AT = "2026-03-05T12:00:00.000250Z"


def ring(*secrets: bytes) -> KeyRing:
    """Vault keys named 00000001 and so on; the first wraps."""
    return KeyRing(
        Key(kid=f"{at:08x}", secret=secret, state="opens" if at > 1 else "mints", use="vault")
        for at, secret in enumerate(secrets, 1)
    )


RING = ring(bytes(32))


def content(clear: bytes, kind="content") -> Content:
    body = bytes(16) + clear
    made = Content(media_type="text/plain", size=len(clear), digest=hashlib.sha256(body).hexdigest())
    made.held.body, made.held.kind = body, kind
    return made


def fact(stream=PAUSE, version=2, note=b"what was said", who=b"maria") -> Withdrawn:
    by = ActorRecord(tag="0123456789abcdef", kind="person", assurance="claimed", who=content(who, "person"))
    place = {"originator_id": stream, "originator_version": version, "predecessor": bytes(32), "ledger": LEDGER}
    said = {"scope": {"tenant_id": "t"}, "at": AT, "attempt": OTHER_LEDGER, "writer": "test", "reason": "host"}
    return Withdrawn.model_validate({**place, **said, "pause": PAUSE, "by": by, "note": content(note)})


def sealed(vault: Vault, one: Withdrawn, sealing: Sealing) -> StoredEvent:
    [(row, _)] = FactMapper(LEDGER, vault=vault).encode([one], sealing)
    return row


def held(vault: Vault) -> dict[UUID, DataKey]:
    """The keys of all that a vault has learned, as if they had been read with a row."""
    return vault.opening([keys.row for _, keys in vault._known.values()])


def texts(vault: Vault, row: StoredEvent) -> tuple[bytes | None, bytes | None]:
    """The note and the name as they are read, None where the bytes are not those that were digested."""
    read = FactMapper(LEDGER, vault=vault).decode(row, bytes(32), held(vault)).fact
    return tuple(one.clear() if one.intact else None for one in (read.note, read.by.who))


def fixed_keys(vault: Vault) -> Sealing:
    """The keys of PAUSE, the same every day."""
    ids = [UUID(f"00000000-0000-4000-8000-00000000000{n}") for n in (1, 2)]
    wrapped = [
        vault._wrap(PAUSE, kind, key, bytes([n] * 32))
        for n, (kind, key) in enumerate(zip(("content", "person"), ids, strict=True), 7)
    ]
    row = vaults.VaultRow(PAUSE, *ids, *wrapped)
    return Sealing(True, {PAUSE.int: vault._keys(PAUSE, row)}, (row,))


def test_a_golden_row():
    """Pinned for good: what is sealed today is opened in years."""
    vault = Vault(LEDGER, RING)
    sealing = fixed_keys(vault)
    row = sealed(vault, fact(), sealing)
    assert row == sealed(vault, fact(), sealing)
    assert (
        hashlib.sha256(b"".join(sealing.made[0].content + sealing.made[0].person for _ in (1,))).hexdigest()
        == GOLDEN_KEYS
    )
    assert hashlib.sha256(row.state).hexdigest() == GOLDEN_ROW
    header = json.loads(row.state[40 : 40 + int.from_bytes(row.state[36:40], "big")])
    assert (header["note"]["cipher"], header["note"]["key"]) == ("aes-256-gcm", str(sealing.made[0].content_key))
    assert header["by"]["who"]["key"] == str(sealing.made[0].person_key)
    assert header["note"]["stored"] == 16 + 13 + 16
    assert b"maria" not in row.state
    assert b"what was said" not in row.state
    reader = Vault(LEDGER, RING)
    reader.learn([PAUSE], sealing.made)
    assert texts(reader, row) == (b"what was said", b"maria")


GOLDEN_KEYS = "c4d2f7c93ed5f5abc9aafdbab315a48b0e35190f3963995561880ab9917883cd"
GOLDEN_ROW = "2385044b54df4bf4e0bfe436c5519852fe0c1a7d8502cf83612b7bca98894722"


@pytest.fixture
def vault() -> Vault:
    vault = Vault(LEDGER, RING)
    vault.learn([PAUSE], [])
    return vault


def place(*, number, **row):
    return vaults.within(row.pop("ledger")) + vaults.placed(**row), number


def learned(vault: Vault, *rows) -> Vault:
    reader = Vault(vault.ledger, RING)
    reader.learn([row.pause for row in rows], rows)
    return reader


@pytest.mark.parametrize("moved", ["stream", "version", "topic", "number", "ledger"])
def test_a_segment_opens_in_its_own_place_alone(vault, moved):
    sealing = vault.sealing([PAUSE])
    key = sealing.keys[PAUSE.int].content
    at = {"ledger": LEDGER, "stream": PAUSE, "version": 2, "topic": "pause.withdrawn@1", "number": 0}
    other = {"ledger": OTHER_LEDGER, "stream": OTHER, "version": 3, "topic": "pause.abandoned@1", "number": 1}
    body, digest = b"s" * 16 + b"text", "0" * 64
    shut = key.seal(body, *place(**at), digest)
    assert key.open(shut, *place(**at), digest) == body
    assert key.open(shut, *place(**{**at, moved: other[moved]}), digest) == b""
    assert sealing.keys[PAUSE.int].person.open(shut, *place(**at), digest) == b""
    assert key.open(shut, *place(**at), "1" * 64) == b""


def test_swapped_vault_rows_open_nothing(vault):
    mine, theirs = vault.sealing([], [PAUSE]), vault.sealing([], [OTHER])
    row = sealed(vault, fact(), mine)
    swapped = theirs.made[0]._replace(
        pause=PAUSE, content_key=mine.made[0].content_key, person_key=mine.made[0].person_key
    )
    assert texts(learned(vault, swapped), row) == (None, None)
    crossed = mine.made[0]._replace(content=mine.made[0].person, person=mine.made[0].content)
    assert texts(learned(vault, crossed), row) == (None, None)
    with pytest.raises(LedgerCorrupt, match="not what was written"):
        sealed(vault, fact(), learned(vault, crossed).sealing([PAUSE]))


def test_another_ledgers_keys_open_nothing(vault):
    foreign = Vault(OTHER_LEDGER, RING).sealing([], [PAUSE]).made[0]
    row = sealed(vault, fact(), vault.sealing([], [PAUSE]))
    named = json.loads(row.state[40 : 40 + int.from_bytes(row.state[36:40], "big")])
    swapped = foreign._replace(content_key=UUID(named["note"]["key"]), person_key=UUID(named["by"]["who"]["key"]))
    assert texts(learned(vault, swapped), row) == (None, None)


def test_under_another_wrapping_key_of_the_same_name_nothing_opens(vault):
    sealing = vault.sealing([PAUSE])
    row = sealed(vault, fact(), sealing)
    reader = Vault(LEDGER, ring(b"x" * 32))
    reader.learn([PAUSE], sealing.made)
    assert texts(reader, row) == (None, None)


def test_a_missing_wrapping_key_is_named(vault):
    sealing = vault.sealing([PAUSE])
    row = sealed(vault, fact(), sealing)
    for other in (None, KeyRing([Key(kid="0000000f", secret=bytes(32), state="mints", use="vault")])):
        reader = Vault(LEDGER, other)
        reader.learn([PAUSE], sealing.made)
        with pytest.raises(InteractionConfigurationError, match="vault key 00000001 is not in the key ring"):
            texts(reader, row)
        with pytest.raises(InteractionConfigurationError, match="00000001"):
            sealed(reader, fact(), reader.sealing([PAUSE]))


def test_a_destroyed_key_reads_as_erased_and_leaves_people_out_from_then_on(vault):
    sealing = vault.sealing([PAUSE])
    row = sealed(vault, fact(), sealing)
    reader = learned(vault, sealing.made[0]._replace(person=None))
    read = FactMapper(LEDGER, vault=reader).decode(row, bytes(32), held(reader))
    assert read.whole
    assert read.fact.note.clear() == b"what was said"
    assert read.fact.by.who.erased
    with pytest.raises(ContentErasedError):
        read.fact.by.who.clear()
    added = sealed(reader, fact(), reader.sealing([PAUSE]))
    later = FactMapper(LEDGER, vault=reader).decode(added, bytes(32), held(reader)).fact
    assert (later.by.who, later.by.tag, later.note.clear()) == (None, "0123456789abcdef", b"what was said")


def test_keys_are_wrapped_anew_and_the_former_wrapper_is_needed_no_more(vault):
    sealing = vault.sealing([PAUSE])
    row = sealed(vault, fact(), sealing)
    both = Vault(LEDGER, KeyRing([
        Key(kid="00000001", secret=bytes(32), state="opens", use="vault"),
        Key(kid="00000002", secret=b"2" * 32, state="mints", use="vault"),
    ]))  # fmt: skip
    again = both.rewrapped(sealing.made[0])
    assert both.rewrapped(again) is None
    reader = Vault(LEDGER, KeyRing([Key(kid="00000002", secret=b"2" * 32, state="mints", use="vault")]))
    reader.learn([PAUSE], [again])
    assert texts(reader, row) == (b"what was said", b"maria")


def test_what_is_remembered_has_a_bound_in_number_and_time(monkeypatch):
    monkeypatch.setattr(vaults, "REMEMBERED", 3)
    now = [0.0]
    monkeypatch.setattr(vaults, "monotonic", lambda: now[0])
    vault = Vault(LEDGER, RING)
    pauses = [UUID(int=n) for n in range(1, 6)]
    for pause in pauses:
        vault.learn([pause], [Vault(LEDGER, RING).sealing([], [pause]).made[0]])
    assert vault.unknown(pauses) == pauses[:2]
    assert len(vault._known) == 3
    now[0] = vaults.KEPT_SECONDS + 1
    assert vault.unknown(pauses) == pauses
    vault.learn([pauses[0]], [])
    assert vault._known.keys() == {pauses[0].int}


def test_a_key_file_holds_both_kinds_and_a_retired_vault_key_leaves_it(tmp_path):
    file = KeyFile(tmp_path / "keys")
    file.create()
    [tokens], [wraps] = ([life for life in file.list() if life.use == use] for use in ("tokens", "vault"))
    assert (tokens.state, wraps.state) == ("mints", "mints")
    assert file.load_vault().minting.kid == wraps.kid
    assert file.load().by_kid(wraps.kid) is None
    unused = file.new("vault")
    assert unused.state == "opens"
    file.retire(unused.kid, lambda _: ())
    assert [life.kid for life in file.list()] == [tokens.kid, wraps.kid]
    assert unused.kid not in (tmp_path / "keys" / "keys.json").read_text()


def test_a_key_file_of_before_has_no_vault_key_until_one_is_made(tmp_path):
    secret = base64.urlsafe_b64encode(bytes(32)).decode()
    key = {"kid": "01234567", "secret": secret, "state": "mints", "made_at": None, "stopped_minting_at": None}
    (tmp_path / "keys").mkdir(mode=0o700)
    (tmp_path / "keys" / "keys.json").touch(mode=0o600)
    (tmp_path / "keys" / "keys.json").write_text(json.dumps({"format": "pauseledger-keys/1", "keys": [key]}))
    file = KeyFile(tmp_path / "keys")
    assert file.load_vault() is None
    assert file.new("vault").state == "mints"
    assert file.load_vault() is not None
    assert file.load().minting.kid == "01234567"


def test_no_repr_shows_a_key(vault):
    sealing = vault.sealing([PAUSE])
    key = sealing.keys[PAUSE.int].content
    assert isinstance(key, DataKey)
    assert isinstance(sealing.keys[PAUSE.int], PauseKeys)
    shown = repr((sealing, key, RING))
    assert sealing.made[0].content.hex() not in shown
    assert str(sealing.made[0].content)[2:-1] not in shown
