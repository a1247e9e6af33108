"""The whole check of one ledger: tables, rows, tree, heads, vault and views."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain

from .check import Check, Checked, Progress
from .check_apart import WORTH, Opening, comparing, seldom_collected
from .check_streams import Fault
from .check_tables import rule_faults
from .check_tree import Kept
from .check_vault import VaultCheck
from .keys import KeyRing
from .notes import Verifier
from .sealed import sealed_rows
from .store import LedgerRecorder


def check_ledger(
    recorder: LedgerRecorder,
    opening: Opening | None,
    *,
    keys: Sequence[Verifier] = (),
    heads: Sequence[Kept] = (),
    ring: KeyRing | None = None,
    progress: Progress | None = None,
) -> Checked:
    """Check all there is, once `unreadable` finds nothing (blocks). Memory does not grow with the ledger.

    The views are left out where `opening` is None; those of a large ledger are compared by a process of their own
    meanwhile. `keys` and `heads` are as for `Check`. Without `ring`, the keys outside that wrap the vault's, it is not
    known whether these are what was written.

    Raises:
        StoreUnavailable: a store could not speak.
        InteractionConfigurationError: the database role lacks the right.
    """
    check = Check(recorder, sealed_rows(recorder), keys, heads, VaultCheck(recorder, ring))
    with seldom_collected(), ExitStack() as stack:
        views: Iterable[Fault] = ()
        if opening is not None and (recorder.max_notification_id() or 0) >= WORTH:
            # A pool's threads would be in the way, and its connections are not for two.
            recorder.rest()
            views = stack.enter_context(comparing(opening, progress))
        elif opening is not None:
            views = _here(opening, progress)
        return check.run(progress, chain(rule_faults(recorder), views))


def _here(opening: Opening, progress: Progress | None) -> Iterator[Fault]:
    yield from opening.faults(progress)
