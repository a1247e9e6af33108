"""What must hold of the vault: every key that a row names is there, and none was destroyed without an order."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from eventsourcing.persistence import Notification
from pydantic_core import from_json

from ..domain.errors import InteractionConfigurationError
from ..domain.ids import Identity
from .check_streams import Fault
from .keys import KeyRing
from .sealed import sealed_rows
from .store import KEY_KINDS, WRAPPER_BYTES, LedgerRecorder, VaultRow
from .vault import CIPHER, DATA_KEY_BYTES, Vault, unwraps_some

_BATCH = 500
_FRONT = 40
#: As many bytes as a wrapped key has: the id of what wraps it, the key itself, and a tag of 16.
_WRAPPED = bytes(WRAPPER_BYTES + DATA_KEY_BYTES + 16)
#: How a header names a key, and its pause. Quotes inside of a text are escaped, so that none can hold this.
_NAMED = re.compile(rb'"cipher":"%b","key":"([0-9a-f-]{36})"' % CIPHER.encode())
_PAUSE = re.compile(rb'"pause":"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"')


def vault_faults(recorder: LedgerRecorder, ring: KeyRing | None = None) -> Iterator[Fault]:
    """Hold the vault against the rows, and the rows against the vault (blocks); a batch of each is held at once."""
    check = VaultCheck(recorder, ring)
    for rows in sealed_rows(recorder).streams(_BATCH):
        yield from check.read(rows)
    yield from check.ended()


class VaultCheck:
    """The vault beside the rows, while somebody goes through these, each stream from its beginning. Blocks.

    With a ring every data key is unwrapped as well; without one, whether it is what was written is not known.
    """

    def __init__(self, recorder: LedgerRecorder, ring: KeyRing | None = None) -> None:
        self._recorder = recorder
        self._ring = ring
        self._stream = _Stream(None)

    def read(self, rows: Sequence[Notification]) -> Iterator[Fault]:
        """Look for the keys that some rows name, and follow the orders among them."""
        named: list[tuple[Notification, UUID, bytes]] = []
        for row in rows:
            if row.originator_id != self._stream.id:
                yield from self._stream.ended()
                self._stream = _Stream(row.originator_id)
            named += self._stream.keys(row)
            yield from self._stream.read(row)
        yield from _missing(self._recorder, named)

    def ended(self) -> Iterator[Fault]:
        """Go through the vault, once there are no more rows."""
        yield from self._stream.ended()
        yield from _rows(self._recorder, self._ring)


@dataclass(slots=True)
class _Stream:
    """One stream while it is read: which keys it named, and which of its orders have not ended."""

    id: object
    named: set[bytes] = field(default_factory=set)
    orders: dict[tuple[UUID, str], int] = field(default_factory=dict)

    def keys(self, row: Notification) -> Iterator[tuple[Notification, UUID, bytes]]:
        """Find the keys that a row is the first of its stream to name, and the pause whose they are."""
        header = _header(row)
        for key in _NAMED.findall(header):
            if key not in self.named:
                self.named.add(key)
                pause = _PAUSE.search(header)
                yield row, UUID(pause[1].decode()) if pause else UUID(int=0), key

    def read(self, row: Notification) -> Iterator[Fault]:
        """Follow the orders."""
        if not row.topic.startswith("erasure."):
            return
        said = _said(row)
        if said is None:
            says = "what it says of an erasure cannot be read"
            yield Fault("vault", says, row.id, stream=_id(row), version=row.originator_version)
        elif said[2] == "ordered":
            self.orders[said[:2]] = row.id
        else:
            self.orders.pop(said[:2], None)

    def ended(self) -> Iterator[Fault]:
        """Tell what was ordered and has not ended."""
        for (pause, kind), position in self.orders.items():
            says = f"erasing {kind} was ordered and has not ended; `pauseledger erase` goes on with it"
            yield Fault("vault", says, position, stream=pause)


def _missing(recorder: LedgerRecorder, named: Sequence[tuple[Notification, UUID, bytes]]) -> Iterator[Fault]:
    """Look for the keys that rows name."""
    rows = recorder.vault(sorted({pause for _, pause, _ in named})) if named else []
    there = {str(key).encode() for row in rows for key in (row.content_key, row.person_key)}
    for row, _, key in named:
        if key not in there:
            yield Fault("vault", "the row names a key that is not in the vault", row.id)


def _rows(recorder: LedgerRecorder, ring: KeyRing | None) -> Iterator[Fault]:
    """Go through the vault: are its keys what was written, was what is gone ordered, and is what was ended gone?"""
    held, last = recorder.settings(), None
    identity, vault = Identity(held.ledger_id, held.identity_key), Vault(held.ledger_id, ring)
    at_hand = ring is not None and _unwraps(recorder, ring)
    while True:
        try:
            rows = recorder.vault_after(last, _BATCH)
        except ValueError:
            yield Fault("vault", f"behind pause {last} the vault holds what is no key; nothing behind it was checked")
            return
        if not rows:
            return
        yield from _against_orders(recorder, identity, rows)
        yield from _odd(rows)
        if at_hand:
            yield from _spoilt(vault, rows)
        last = rows[-1].pause


def _unwraps(recorder: LedgerRecorder, ring: KeyRing) -> bool:
    """Tell whether a ring is this ledger's: by another one nothing can be said of its keys."""
    try:
        return unwraps_some(recorder, ring)
    except ValueError:
        # What cannot be read is told by whoever goes through the vault.
        return False


def _against_orders(recorder: LedgerRecorder, identity: Identity, rows: Sequence[VaultRow]) -> Iterator[Fault]:
    """Hold keys against the orders on record. These stand before a key is gone, so the vault is read first."""
    streams = {identity.erasures(row.pause): row.pause for row in rows}
    newest: dict[tuple[UUID, str], str] = {}
    destroyed: set[tuple[UUID, str]] = set()
    for fact in recorder.load(list(streams)).rows:
        said = _said(fact)
        if said is not None:
            key = streams[_id(fact)], said[1]
            newest[key] = said[2]
            destroyed |= {key} if said[2] == "destroyed" else set()
    # An erasure beside the check may have ended since: what stood before its end is looked at again.
    again = {one.pause: one for one in recorder.vault(sorted({pause for pause, _ in destroyed}))} if destroyed else {}
    for row in rows:
        for kind in KEY_KINDS:
            key = row.pause, kind
            if getattr(row, kind) is None:
                yield from _unordered(kind, row.pause, newest.get(key))
            elif key in destroyed and getattr(again.get(row.pause), kind, None) is not None:
                # A backup that was put back, or somebody who undid it.
                says = f"that the {kind} key was destroyed is on record, and it stands; erase it again"
                yield Fault("vault", says, stream=row.pause)


def _unordered(kind: str, pause: UUID, word: str | None) -> Iterator[Fault]:
    if word is None:
        yield Fault("vault", f"the {kind} key was destroyed, and nobody ordered it", stream=pause)
    elif word == "held":
        # An order that met a hold is over: it licenses nothing that comes later.
        yield Fault("vault", f"the {kind} key was destroyed, and its order had ended at a hold", stream=pause)


def _odd(rows: Sequence[VaultRow]) -> Iterator[Fault]:
    for row in rows:
        for kind in KEY_KINDS:
            held = getattr(row, kind)
            if held is not None and len(held) != len(_WRAPPED):
                yield Fault("vault", f"the {kind} key is no wrapped key", stream=row.pause)


def _spoilt(vault: Vault, rows: Sequence[VaultRow]) -> Iterator[Fault]:
    """Unwrap every key: another pause's, another kind's and another ledger's do not open."""
    for key in vault.opening(rows).values():
        try:
            spoilt = len(key.wrapped or b"") == len(_WRAPPED) and key.aead() is None
        except InteractionConfigurationError:
            says = f"the {key.kind} key is wrapped by a vault key that is not in the key ring here"
            yield Fault("vault", says, stream=key.pause)
            continue
        if spoilt:
            yield Fault("vault", f"the {key.kind} key is not what was written", stream=key.pause)


def _said(row: Notification) -> tuple[UUID, str, str] | None:
    """Tell of which pause and key a fact of an erasure is, and `ordered`, `destroyed` or `held`; None: it says none."""
    try:
        said = from_json(_header(row))
        pause, kind = UUID(said["pause"]), said["kind"]
        word = "ordered" if row.topic.partition("@")[0] == "erasure.ordered" else said["outcome"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return (pause, kind, word) if kind in KEY_KINDS and word in {"ordered", "destroyed", "held"} else None


def _header(row: Notification) -> bytes:
    return row.state[_FRONT : _FRONT + int.from_bytes(row.state[_FRONT - 4 : _FRONT], "big")]


def _id(row: Notification) -> UUID:
    return row.originator_id if isinstance(row.originator_id, UUID) else UUID(row.originator_id)
