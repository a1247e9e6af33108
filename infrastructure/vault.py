"""The vault at work: two data keys a pause, and segments sealed under them until one of the keys is destroyed.

A pause has two data keys: `content` for what was said (request, turn, answers, notes) and `person` for who said it and
whom it was for. They are drawn with the pause, written in the same statement as its first row, and wrapped by a key
outside the store (keys.py). Destroying one makes its segments unreadable wherever the rows were copied to; the rows
stay, and so do the chain, every proof and every view.

- A segment is sealed as it would be stored: AES-256-GCM (NIST SP 800-38D) over the compressed body. Associated data,
  length-prefixed: "plv/1", ledger, stream, version, topic, segment number. So it opens in its own place alone.
- The nonce is the first 12 bytes of SHA-256 over "plv/1 nonce", the associated data and the content's digest, length-
  prefixed. The digest covers 16 random bytes of salt, so no two bodies of one key share a nonce, and the same fact
  always becomes the same row, whoever encodes it and how often.
- A data key is wrapped by AES-256-GCM-SIV (RFC 8452): id of the wrapping key 4, then the sealed key 48; its nonce is
  the first 12 bytes of the data key's own id, which is random. Associated data: "plv/1 key", ledger, pause, kind, id.

A process keeps data keys it has met, at most `REMEMBERED` pauses and none longer than `KEPT_SECONDS`, to seal with and
to spare unwrapping. It never opens a segment by one of these: a row is opened by the keys that were read with it, and
one that came without those of its pause by what the vault holds once a text of it is asked for.
"""

import hashlib
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from time import monotonic
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESGCMSIV

from ..domain.content import Content, ContentErasedError, Held
from ..domain.envelope import length_prefixed
from ..domain.errors import InteractionConfigurationError, LedgerCorrupt, PauseClosed
from ..domain.facts import FACTS, Fact
from ..domain.presenting import Presented
from .keys import VAULT_ENVIRONMENT, Key, KeyRing
from .store import KEY_KINDS, KeyKind, LedgerRecorder, VaultRow, wrapper_of

_log = logging.getLogger("pauseledger.vault")

CIPHER = "aes-256-gcm"
NONCE_BYTES = 12
DATA_KEY_BYTES = 32
#: The keys of so many pauses are remembered.
REMEMBERED = 1024
#: And for so long (seconds) after they were last seen in the vault.
KEPT_SECONDS = 60.0

#: The facts whose texts are sealed under the keys of the pause they name.
SEALED: frozenset[type[Fact]] = frozenset((*FACTS, Presented))


class DataKey:
    """One data key, unwrapped when it is first needed."""

    __slots__ = ("_aead", "_name", "_vault", "clear", "id", "kind", "pause", "wrapped")

    def __init__(self, vault: "Vault", pause: UUID, kind: KeyKind, key_id: UUID, wrapped: bytes | None) -> None:
        self._vault = vault
        self._aead: AESGCM | None = None
        self._name: str | None = None
        #: Where it was just drawn, it need not be unwrapped.
        self.clear: bytes | None = None
        self.pause = pause
        self.kind = kind
        self.id = key_id
        self.wrapped = wrapped

    def __repr__(self) -> str:
        return f"<DataKey {self.id} ({self.kind}) of pause {self.pause}>"

    @property
    def name(self) -> str:
        """Its id, as headers spell it."""
        if self._name is None:
            self._name = str(self.id)
        return self._name

    def seal(self, body: bytes, row: bytes, number: int, digest: str) -> bytes:
        """Seal a segment for its place: its row (within its ledger), and its number there.

        Raises:
            LedgerCorrupt: the key in the vault is not what was written.
            InteractionConfigurationError: the key that wraps it is not here.
        """
        aead = self._aead or self.aead()
        if aead is None:
            raise LedgerCorrupt(self.pause, 0, f"its {self.kind} key in the vault is not what was written")
        place = b"".join((row, _FOUR, number.to_bytes(4, "big")))
        return aead.encrypt(_nonce(place, digest), body, place)

    def open(self, sealed: bytes, row: bytes, number: int, digest: str) -> bytes:
        """Open a segment; nothing (b"") where it, its place or its key was altered.

        Raises:
            ContentErasedError: the key was destroyed.
            InteractionConfigurationError: the key that wraps it is not here.
        """
        if self.wrapped is None:
            raise ContentErasedError(digest)
        aead = self._aead or self.aead()
        place = b"".join((row, _FOUR, number.to_bytes(4, "big")))
        try:
            return b"" if aead is None else aead.decrypt(_nonce(place, digest), sealed, place)
        except InvalidTag:
            return b""

    def aead(self) -> AESGCM | None:
        """Unwrap it, once; None where it does not open."""
        if self._aead is None and self.wrapped is not None:
            clear = self.clear or self._vault.unwrapped(self)
            self._aead = None if clear is None else AESGCM(clear)
        return self._aead


class PauseKeys(NamedTuple):
    """The two data keys of a pause; none where it has none."""

    row: VaultRow | None
    content: DataKey | None
    person: DataKey | None

    def opening(self) -> list[tuple[int, DataKey]]:
        """Name each by the number of its id."""
        return [(key.id.int, key) for key in (self.content, self.person) if key is not None]


class Sealing(NamedTuple):
    """The keys one append seals with, and those of them that it has to bring into the vault.

    Attributes:
        on: Whether texts are encrypted here at all.
        keys: By the number of the pause's id, which is hashed and compared in a tenth of an id's time.
    """

    on: bool = False
    keys: Mapping[int, PauseKeys] = MappingProxyType({})
    made: tuple[VaultRow, ...] = ()

    def of(self, fact: Fact, row: bytes) -> "SegmentSeal | None":
        """Give the seal for the segments of a fact's row; None where they are stored as they are.

        What is recorded of those who run the ledger (switches, holds, erasures) is never encrypted: who erased
        something must outlive it.
        """
        if not self.on or type(fact) not in SEALED:
            return None
        return SegmentSeal(self.keys.get(fact.pause.int), fact, row)


class SegmentSeal:
    """Seals the segments of one row."""

    __slots__ = ("_fact", "_keys", "_row")

    def __init__(self, keys: PauseKeys | None, fact: Fact, row: bytes) -> None:
        self._keys = keys
        self._fact = fact
        self._row = row

    def seal(self, content: Content, body: bytes, number: int) -> tuple[bytes, str] | None:
        """Seal a segment, and name its key. None: it is left out of the row.

        A person's id is left out where no key can hold it: of a pause that is not in this store, and of one whose
        person key was destroyed. What could never be erased is not written; the tag beside it still compares.

        Raises:
            PauseClosed: what was said in the pause was erased, and nothing can be added.
        """
        held: Held = content.held
        keys, of_person = self._keys, held.kind == "person"
        key = None if keys is None else keys.person if of_person else keys.content
        if key is None or key.wrapped is None:
            if of_person:
                return None
            raise PauseClosed(self._fact.pause, "erased")
        return key.seal(body, self._row, number, content.digest), key.name


class SegmentsOpened:
    """Opens the segments of one row, when somebody asks, by the `keys` read with it; others are read then, blocking."""

    __slots__ = ("_keys", "_pause", "_row", "_vault")

    def __init__(self, vault: "Vault", row: bytes, pause: str, keys: Mapping[int, DataKey]) -> None:
        self._vault = vault
        self._row = row
        self._pause = pause
        self._keys = keys

    def open(self, content: Content, stored: bytes) -> bytes:
        """Open a segment; nothing (b"") where it, its place or its key was altered.

        Raises:
            ContentErasedError: its key was destroyed.
            InteractionConfigurationError: the key that wraps its key is not here.
        """
        named = content.key
        if named is None:
            return b""
        # Those that were loaded with the row are kept by whoever holds the row.
        key = self._keys.get(named.int) or self._vault.fetched(self._pause, named)
        if key is None:
            return b""
        return key.open(stored, self._row, content.segment, content.digest)


class Vault:
    """Data keys of one ledger: made, wrapped, remembered for a while, looked up. Safe from several threads.

    Args:
        ledger: The ledger's id.
        ring: The keys that wrap; None where texts are stored as they are.
        fetch: Reads rows of the vault for readers that came by a row alone; it blocks.
    """

    def __init__(
        self,
        ledger: UUID,
        ring: KeyRing | None = None,
        fetch: Callable[[Sequence[UUID]], Sequence[VaultRow]] = lambda _: (),
    ) -> None:
        self.ledger = ledger
        #: What the place of every row of this ledger begins with.
        self.within = within(ledger)
        self._ring = ring
        self._fetch = fetch
        # Both by the number of a pause's id.
        self._known: OrderedDict[int, tuple[float, PauseKeys]] = OrderedDict()
        self._wrappers: dict[str, AESGCMSIV] = {}
        self._contested: set[int] = set()

    # Knowing

    def learn(self, pauses: Iterable[UUID], rows: Sequence[VaultRow]) -> dict[int, DataKey]:
        """Take over what a read of the vault found about these pauses, and that it found nothing of the others.

        Returns:
            The data keys found, by the numbers of their ids; those known are not unwrapped again.
        """
        opening: dict[int, DataKey] = {}
        if self._ring is None and not rows:
            return opening
        found = {row.pause.int: row for row in rows}
        now = monotonic()
        for pause in pauses:
            keys = self._of(pause, found.get(pause.int))
            self._remember(pause, keys, now)
            opening.update(keys.opening())
        return opening

    def keep(self, sealing: Sealing) -> None:
        """Take over the keys of an append that stands."""
        self._contested.difference_update(sealing.keys)
        for row in sealing.made:
            self._remember(row.pause, sealing.keys[row.pause.int], monotonic())

    def forget(self, pauses: Iterable[UUID]) -> None:
        """Know nothing of these pauses any more."""
        for pause in pauses:
            self._known.pop(pause.int, None)

    def contested(self, pauses: Iterable[UUID]) -> None:
        """Know nothing of these pauses any more: somebody else brought keys, or a fact, first."""
        for pause in pauses:
            self._known.pop(pause.int, None)
            self._contested.add(pause.int)
        while len(self._contested) > REMEMBERED:
            self._contested.pop()

    def opening(self, rows: Iterable[VaultRow]) -> dict[int, DataKey]:
        """Give the data keys of rows just read, as `learn` does, and remember nothing of them."""
        return {number: key for row in rows for number, key in self._of(row.pause, row).opening()}

    def fetched(self, pause: str, key_id: UUID) -> DataKey | None:
        """Read a data key out of the vault; blocks."""
        return self.opening(self._fetch([UUID(pause)])).get(key_id.int)

    def _of(self, pause: UUID, row: VaultRow | None) -> PauseKeys:
        known = self._known.get(pause.int)
        return known[1] if known is not None and known[1].row == row else self._keys(pause, row)

    def _remember(self, pause: UUID, keys: PauseKeys, now: float) -> None:
        known = self._known
        known[pause.int] = now, keys
        known.move_to_end(pause.int)
        while known:
            oldest = next(iter(known))
            if len(known) <= REMEMBERED and now - known[oldest][0] <= KEPT_SECONDS:
                return
            known.pop(oldest, None)

    def _keys(self, pause: UUID, row: VaultRow | None) -> PauseKeys:
        if row is None:
            return PauseKeys(None, None, None)
        content = DataKey(self, pause, "content", row.content_key, row.content)
        return PauseKeys(row, content, DataKey(self, pause, "person", row.person_key, row.person))

    # Sealing

    def unknown(self, pauses: Iterable[UUID]) -> list[UUID]:
        """List those of these pauses that the vault has to be asked about before their facts are sealed."""
        if self._ring is None:
            return []
        oldest = monotonic() - KEPT_SECONDS
        return [pause for pause in pauses if (at := self._known.get(pause.int)) is None or at[0] < oldest]

    def sealing(self, pauses: Iterable[UUID], new: Iterable[UUID] = (), *, making: bool = True) -> Sealing:
        """Give the keys of these pauses, and make them for those that have none; `new` ones were never stored.

        Without `making` those that have none go without, and what needs a key is left out.

        Raises:
            InteractionConfigurationError: texts are encrypted in this ledger, and the keys for that are not here.
        """
        keys = {pause.int: at[1] for pause in pauses if (at := self._known.get(pause.int)) is not None}
        if self._ring is None:
            # A pause that has keys was begun where texts are encrypted: nothing of it is stored as it is.
            return Sealing(any(one.row is not None for one in keys.values()), keys)
        made: list[VaultRow] = []
        for pause in new:
            # Keys may outlive their pause, where rows alone were lost: then its append is contested, and goes on with
            # those that the read after it found. Whatever was known before may be of a store since set back.
            known = self._known.get(pause.int)
            if pause.int in self._contested and known is not None:
                keys[pause.int] = known[1]
            else:
                keys[pause.int] = PauseKeys(None, None, None)
        for pause in [UUID(int=number) for number, one in keys.items() if making and one.row is None]:
            keys[pause.int] = self._make(pause)
            row = keys[pause.int].row
            assert row is not None  # noqa: S101 - it was just made
            made.append(row)
        return Sealing(True, keys, tuple(made))

    def _make(self, pause: UUID) -> PauseKeys:
        drawn = secrets.token_bytes(2 * DATA_KEY_BYTES + 32)
        ids = [UUID(bytes=drawn[at : at + 16], version=4) for at in (64, 80)]
        clear = [drawn[:DATA_KEY_BYTES], drawn[DATA_KEY_BYTES : 2 * DATA_KEY_BYTES]]
        wrapped = [self._wrap(pause, *one) for one in zip(KEY_KINDS, ids, clear, strict=True)]
        keys = self._keys(pause, VaultRow(pause, ids[0], ids[1], wrapped[0], wrapped[1]))
        for key, bare in zip((keys.content, keys.person), clear, strict=True):
            assert key is not None  # noqa: S101 - of a row that is there
            key.clear = bare
        return keys

    # Wrapping

    def _wrap(self, pause: UUID, kind: KeyKind, key_id: UUID, clear: bytes) -> bytes:
        assert self._ring is not None  # noqa: S101 - whoever makes keys has one
        outer = self._ring.minting
        sealed = self._wrapper(outer).encrypt(key_id.bytes[:NONCE_BYTES], clear, self._bound(pause, kind, key_id))
        return bytes.fromhex(outer.kid) + sealed

    def unwrapped(self, key: DataKey) -> bytes | None:
        """Unwrap a data key; None where it is not what was wrapped, for this pause and as this kind.

        Raises:
            InteractionConfigurationError: the key that wraps it is not here.
        """
        wrapped = bytes(key.wrapped or b"")
        kid = wrapper_of(wrapped) or ""
        require_wrapper(kid, self._ring)
        outer = None if self._ring is None else self._ring.by_kid(kid)
        assert outer is not None  # noqa: S101 - it was just required
        bound = self._bound(key.pause, key.kind, key.id)
        try:
            return self._wrapper(outer).decrypt(key.id.bytes[:NONCE_BYTES], wrapped[len(kid) // 2 :], bound)
        except (InvalidTag, ValueError):
            return None

    def _wrapper(self, outer: Key) -> AESGCMSIV:
        wrapper = self._wrappers.get(outer.kid)
        if wrapper is None:
            wrapper = self._wrappers[outer.kid] = AESGCMSIV(outer.secret)
        return wrapper

    def rewrapped(self, row: VaultRow) -> VaultRow | None:
        """Wrap a row's keys by the key that wraps now; None where they are already.

        Raises:
            InteractionConfigurationError: the key that wraps them is not here, or they are not what was written.
        """
        assert self._ring is not None  # noqa: S101 - the caller has one
        now, changed = self._ring.minting.kid, row
        keys = self._keys(row.pause, row)
        for key in (keys.content, keys.person):
            if key is None or key.wrapped is None or wrapper_of(key.wrapped) == now:
                continue
            clear = self.unwrapped(key)
            if clear is None:
                raise LedgerCorrupt(row.pause, 0, f"its {key.kind} key in the vault is not what was written")
            wrapped = self._wrap(row.pause, key.kind, key.id, clear)
            changed = changed._replace(content=wrapped) if key.kind == "content" else changed._replace(person=wrapped)
        return None if changed is row else changed

    def _bound(self, pause: UUID, kind: KeyKind, key_id: UUID) -> bytes:
        return length_prefixed(b"plv/1 key", self.ledger.bytes, pause.bytes, kind, key_id.bytes)


def vault_rows(recorder: LedgerRecorder, batch: int = 500) -> Iterator[VaultRow]:
    """Go through a whole vault, by pause."""
    last: UUID | None = None
    while rows := recorder.vault_after(last, batch):
        yield from rows
        last = rows[-1].pause


def require_wrapper(kid: str | None, ring: KeyRing | None) -> None:
    """Check that a ring holds the key that wraps the vault's data keys.

    Raises:
        InteractionConfigurationError: it does not.
    """
    if kid is not None and (ring is None or ring.by_kid(kid) is None):
        raise InteractionConfigurationError(
            f"what people wrote in this ledger is encrypted, and vault key {kid} is not in the key ring here: put the"
            f" key file that holds it in place (PAUSELEDGER_KEYS_DIR), or set {VAULT_ENVIRONMENT}"
        )


def require_opened(recorder: LedgerRecorder, kid: str | None, ring: KeyRing | None) -> None:
    """Check that a ring is this ledger's: of the keys that wrap its vault (`kid` is one) it holds some (blocks).

    One that is lost takes its own pauses along, and no others: it is named in the log, and to whoever asks for them.

    Raises:
        InteractionConfigurationError: it holds none.
    """
    if kid is None or (ring is not None and ring.by_kid(kid) is not None):
        return
    if ring is None or not unwraps_some(recorder, ring):
        require_wrapper(kid, ring)
    _log.error("vault key %s is not in the key ring here: what was written in the pauses it wraps is not read", kid)


def unwraps_some(recorder: LedgerRecorder, ring: KeyRing) -> bool:
    """Tell whether a ring holds any of the keys that wrap a vault (blocks)."""
    wrapped = (wrapper_of(one) for row in vault_rows(recorder) for one in (row.content, row.person))
    return any(kid is not None and ring.by_kid(kid) is not None for kid in wrapped)


# All as `length_prefixed` would spell them, without its loop: they are needed for every row and segment.
def within(ledger: UUID) -> bytes:
    """Say which ledger a row is of; `placed` says the rest."""
    return length_prefixed(b"plv/1", ledger.bytes)


def placed(stream: UUID, version: int, topic: str) -> bytes:
    """Say which row of a ledger it is."""
    # A version may have been altered into one that no row has.
    numbered = (version % (1 << 64)).to_bytes(8, "big")
    return b"".join((_SIXTEEN, stream.bytes, _EIGHT, numbered, _framed(topic)))


@lru_cache(64)
def _framed(topic: str) -> bytes:
    """Spell a topic: there are few of them."""
    return length_prefixed(topic)


def _nonce(place: bytes, digest: str) -> bytes:
    named = b"".join((_NONCE_OF, len(place).to_bytes(4, "big"), place, _DIGEST_LENGTH, digest.encode()))
    return hashlib.sha256(named).digest()[:NONCE_BYTES]


_FOUR, _EIGHT, _SIXTEEN = (length.to_bytes(4, "big") for length in (4, 8, 16))
_NONCE_OF = length_prefixed(b"plv/1 nonce")
_DIGEST_LENGTH = (64).to_bytes(4, "big")
