"""What must hold of the vault: every key that a row names is there, and none was destroyed without an order."""

import json
import re
from collections.abc import Iterator
from uuid import UUID

from .check_streams import Fault
from .store import KEY_KINDS, LedgerRecorder
from .vault import CIPHER, vault_rows

_FRONT = 40
#: How a header names a key. Quotes inside of a text are escaped, so that none can hold this.
_NAMED = re.compile(rb'"cipher":"%b","key":"([0-9a-f-]{36})"' % CIPHER.encode())


def vault_faults(recorder: LedgerRecorder) -> Iterator[Fault]:
    """Walk the log once, and hold the vault against what it says (blocks)."""
    named: dict[bytes, int] = {}
    ordered: dict[tuple[UUID, str], int] = {}
    open_orders: dict[tuple[UUID, str], int] = {}
    for row in recorder.walk():
        header = row.state[_FRONT : _FRONT + int.from_bytes(row.state[_FRONT - 4 : _FRONT], "big")]
        for key in _NAMED.findall(header):
            named.setdefault(key, row.id)
        if row.topic.startswith("erasure."):
            said = json.loads(header)
            about = UUID(said["pause"]), said["kind"]
            if row.topic == "erasure.ordered@1":
                ordered[about] = open_orders[about] = row.id
            else:
                open_orders.pop(about, None)
    for held in vault_rows(recorder):
        for kind in KEY_KINDS:
            named.pop(str(getattr(held, f"{kind}_key")).encode(), None)
            if getattr(held, kind) is None and (held.pause, kind) not in ordered:
                yield Fault("vault", f"the {kind} key was destroyed, and nobody ordered it", stream=held.pause)
    for position in named.values():
        yield Fault("vault", "the row names a key that is not in the vault", position)
    for (pause, said_kind), position in open_orders.items():
        says = f"erasing {said_kind} was ordered and has not ended; `pauseledger erase` goes on with it"
        yield Fault("vault", says, position, stream=pause)
