"""The notary: seals, signs and anchors, once or for as long as somebody follows, and raises the alarm."""

import time
from collections.abc import Sequence
from dataclasses import replace

from ..domain.ports import Journal
from .anchors import Anchor, AnchorUnavailable
from .merkle import Unproved
from .sealer import Sealer, Sealing

#: While following (seconds): how often rows are sealed; how often a head is signed at most; how often the whole log is
#: looked through for late rows; how long nothing is sealed after an alarm.
SEAL, HEAD, LATE, ALARM = 1.0, 10.0, 600.0, 60.0


class Notary:
    """One sealer and the anchors it keeps heads in. Every method blocks; not to be shared by threads.

    Raises (every method):
        StoreUnavailable: the store, or an anchor, could not speak.
    """

    def __init__(
        self, sealer: Sealer, anchors: Sequence[Anchor], journal: Journal, *, anchor_seconds: float = 0.0
    ) -> None:
        self._sealer = sealer
        self._anchors = anchors
        self._journal = journal
        self._anchor_seconds = anchor_seconds
        self._head_due = self._late_due = self._anchor_due = self._not_before = 0.0
        self._anchored = ""
        self._held = False

    def seal(self) -> Sealing:
        """Seal all there is, hold it against what the anchors keep, sign a head, and anchor it.

        Raises:
            Unproved: the log does not begin with what was signed before. Nothing is signed, and no anchor changed.
        """
        done = self._sealer.seal(sign=False)
        self._tell(done.late)
        self._must_begin_with_anchored()
        head = self._sealer.sign()
        if head is not None:
            self._publish(head)
        return replace(done, head=head)

    def tick(self) -> int:
        """Seal the next batch, and sign, anchor and look for late rows when it is time; tell how many were sealed.

        What does not hold together is told as an alarm in the log, and nothing is sealed for `ALARM` seconds.
        """
        now = time.monotonic()
        if now < self._not_before:
            return 0
        try:
            if now >= self._late_due:
                self._tell(self._sealer.seal_late())
                self._late_due = now + LATE
            moved = self._sealer.step()
            if moved < self._sealer.batch:
                self._sign(now)
        except Unproved as broken:
            self._journal.note("sealed_log_broken", says=str(broken))
            self._not_before = now + ALARM
            return 0
        return moved

    def _sign(self, now: float) -> None:
        if now < self._head_due:
            return
        self._head_due = now + HEAD
        if not self._held:
            self._must_begin_with_anchored()
            self._held = True
        head = self._sealer.sign()
        if head is not None and head != self._anchored and now >= self._anchor_due:
            self._anchor_due = now + self._anchor_seconds
            self._publish(head)

    def _tell(self, late: Sequence[int]) -> None:
        for position in late:
            self._journal.note("late_leaf", position=position)

    def _must_begin_with_anchored(self) -> None:
        for anchor in self._anchors:
            kept = anchor.newest()
            if kept is not None:
                self._begin_with(anchor, kept)

    def _begin_with(self, anchor: Anchor, kept: str) -> None:
        try:
            self._sealer.must_begin_with(kept)
        except Unproved as broken:
            raise Unproved(f"{broken} (kept by {anchor.name})") from None

    def _publish(self, head: str) -> None:
        """Anchor a head everywhere; one anchor that cannot speak keeps it from no other."""
        silent: AnchorUnavailable | None = None
        for anchor in self._anchors:
            try:
                anchor.publish(head)
            except AnchorUnavailable as gone:
                self._journal.note("anchor_unavailable", anchor=anchor.name, says=str(gone))
                silent = gone
        if silent is not None:
            raise silent
        self._anchored = head
