"""What auditors have read: each reading is a fact, in a stream of its own."""

import hashlib
from typing import Literal
from uuid import UUID

from .facts import ActorRecord, Fact

#: What was read.
Reads = Literal["check", "head", "prove", "export"]


class AuditRead(Fact):
    """An auditor read the ledger. No fact of a pause: it stands in its own stream.

    Attributes:
        about: The pause that was read; None where it was all of them.
        up_to: The newest position there was.
    """

    NAME = "audit.read"
    reads: Reads
    about: UUID | None = None
    up_to: int
    by: ActorRecord


def reading_stream(ledger_id: UUID) -> UUID:
    """Derive the id of a ledger's one stream of readings: a version 8 UUID out of a hash, which SQL can derive too."""
    raw = bytearray(hashlib.sha256(b"readings" + ledger_id.bytes).digest()[:16])
    raw[6], raw[8] = raw[6] & 15 | 128, raw[8] & 63 | 128
    return UUID(bytes=bytes(raw))
