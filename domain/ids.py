"""Ids and tags: derived under the ledger's identity key, so that the same pause is found again."""

import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from uuid import UUID

from .axes import Axes, Scope
from .envelope import length_prefixed

EPOCH_YEAR = 2020
#: So many folded texts are remembered: those of one tenant, run or person are asked for again and again.
REMEMBERED = 1024


def month_of(moment: datetime) -> int:
    """Count months since January 2020 (UTC)."""
    utc = moment.astimezone(UTC)
    return (utc.year - EPOCH_YEAR) * 12 + utc.month - 1


def candidate_months(moment: datetime, *, given: bool) -> tuple[int, ...]:
    """List the months an id may stand under: on a month's first day, the month before as well.

    A host that gives `run_started` names the month itself.
    """
    this = month_of(moment)
    if given or moment.astimezone(UTC).day != 1:
        return (this,)
    return (this, month_of(moment - timedelta(days=1)))


class Identity:
    """The ledger's identity key at work. It never rotates, and never shows itself."""

    def __init__(self, ledger_id: UUID, key: bytes) -> None:
        self.ledger_id = ledger_id
        # Copied for each: to begin one anew takes twice as long.
        self._keyed = hmac.new(key, digestmod=hashlib.sha256)
        self._mac = lru_cache(REMEMBERED)(self._folded)

    def __repr__(self) -> str:
        return f"<Identity of ledger {self.ledger_id}>"

    def _folded(self, *parts: bytes | str | None) -> bytes:
        mac = self._keyed.copy()
        mac.update(length_prefixed(*parts))
        return mac.digest()

    def _id(self, month: int, *parts: bytes | str | None) -> UUID:
        raw = bytearray(month.to_bytes(2, "big") + self._mac(*parts)[:14])
        raw[6] = 0x80 | raw[6] & 0x0F  # version 8, RFC 9562 section 5.8
        raw[8] = 0x80 | raw[8] & 0x3F  # the RFC's variant
        return UUID(bytes=bytes(raw))

    def lead(self, month: int, scope: Scope, *, session_id: str, run_id: str, turn_key: bytes, occurrence: int) -> UUID:
        """Derive the lead's pause id; `turn_key` is the turn's SHA-256, or the host's idempotency key."""
        parts = (*scope.parts(), session_id, run_id, turn_key, occurrence.to_bytes(4, "big"))
        return self._id(month, "lead", *parts)

    def sibling(self, lead: UUID, call_address: str) -> UUID:
        """Derive a sibling's pause id from its lead and its call."""
        return self._id(int.from_bytes(lead.bytes[:2], "big"), "sibling", lead.bytes, call_address)

    def refusals(self, pause: UUID) -> UUID:
        """Derive the id of a pause's refusal stream."""
        return self._id(int.from_bytes(pause.bytes[:2], "big"), "refusals", pause.bytes)

    def presentation(self, pause: UUID, person: str, rendering: str) -> UUID:
        """Derive the id of the stream of one rendering shown to one person; their tag, its digest."""
        return self._id(int.from_bytes(pause.bytes[:2], "big"), "presented", pause.bytes, person, rendering)

    def erasures(self, pause: UUID) -> UUID:
        """Derive the id of the stream of a pause's erasures."""
        return self._id(int.from_bytes(pause.bytes[:2], "big"), "erasures", pause.bytes)

    def custody(self, tenant_id: str) -> UUID:
        """Derive the id of the stream of a tenant's holds and retention floors."""
        return self._id(0, "custody", tenant_id)

    def tag(self, kind: str, *parts: bytes | str | None) -> str:
        """Fold something that may be compared but not read into 16 hex."""
        return self._mac(kind, *parts)[:8].hex()

    def presented(self, axes: Axes) -> dict[str, str | None]:
        """Fold the axes an attempt stated."""
        scope = axes.scope
        stated = {"session": axes.session_id, "run": axes.run_id, "call": axes.call_id}
        tags = {axis: None if value is None else self.tag(axis, value) for axis, value in stated.items()}
        return {"scope": None if scope is None else self.tag("scope", *scope.parts()), **tags}
