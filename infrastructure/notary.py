"""The notary: seals, signs and anchors, once or for as long as somebody follows, and raises the alarm."""

import time
from collections.abc import Sequence
from dataclasses import replace

from ..domain.errors import LedgerError
from ..domain.ports import Journal
from .anchors import Anchor, AnchorUnavailable
from .merkle import Unproved
from .sealer import Sealer, Sealing

#: While following (seconds): how often rows are sealed; how often a head is signed at most; how often the whole log is
#: looked through for late rows; how long nothing is sealed after an alarm.
SEAL, HEAD, LATE, ALARM = 1.0, 10.0, 600.0, 60.0


class AnchorsSilent(AnchorUnavailable):
    """Some anchors could not speak; all else was done.

    Attributes:
        done: What was.
    """

    def __init__(self, names: Sequence[str], done: Sealing) -> None:
        says = f"could not speak: {', '.join(names)}; the log is sealed, and every other anchor keeps its head"
        super().__init__(says, outcome="unknown")
        self.done = done


class Notary:
    """One sealer and the anchors it keeps heads in. Every method blocks; not to be shared by threads.

    Raises (every method):
        StoreUnavailable: the store could not speak.
    """

    def __init__(
        self, sealer: Sealer, anchors: Sequence[Anchor], journal: Journal, *, anchor_seconds: float = 0.0
    ) -> None:
        self._sealer = sealer
        self._anchors = anchors
        self._journal = journal
        self._anchor_seconds = anchor_seconds
        self._head_due = self._late_due = self._anchor_due = self._not_before = 0.0
        self._anchored: dict[int, str] = {}
        self._silent: list[str] = []

    @property
    def batch(self) -> int:
        """How many rows are sealed at once: after fewer nothing is waiting."""
        return self._sealer.batch

    def seal(self) -> Sealing:
        """Seal all there is, hold it against what the anchors keep, sign a head, and anchor it.

        Raises:
            Unproved: the log does not begin with what was signed before. Nothing is signed, and no anchor changed.
            AnchorsSilent: an anchor could not speak; the log is sealed, and the others keep its head.
        """
        done = self._sealer.seal(sign=False)
        self._tell(done.late)
        done = replace(done, head=self._sign_and_anchor(self._hold()))
        if self._silent:
            raise AnchorsSilent(self._silent, done)
        return done

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
        if now < self._anchor_due:
            self._sealer.sign()
            return
        spoke = self._hold()
        # Not before: while the tree does not begin with what an anchor keeps, no head is signed.
        self._anchor_due = now + self._anchor_seconds
        self._sign_and_anchor(spoke)

    def _sign_and_anchor(self, spoke: Sequence[int]) -> str | None:
        """Sign the head, and keep it in the anchors that were held against it."""
        head = self._sealer.sign()
        if head is not None:
            for number in spoke:
                self._publish(number, head)
        return head

    def _tell(self, late: Sequence[int]) -> None:
        for position in late:
            self._journal.note("late_leaf", position=position)

    def _hold(self) -> list[int]:
        """Hold the tree against what each anchor keeps, and tell which spoke. A silent one keeps nobody from anything.

        It is sent nothing either: what it keeps may be of a log that this one does not begin with.
        """
        self._silent, spoke = [], []
        for number, anchor in enumerate(self._anchors):
            try:
                kept = anchor.newest()
            except Exception as gone:  # noqa: BLE001 - a host's own anchor may raise anything
                self._unavailable(anchor, gone)
                continue
            if kept is not None:
                self._begin_with(anchor, kept)
            spoke.append(number)
        return spoke

    def _begin_with(self, anchor: Anchor, kept: str) -> None:
        try:
            self._sealer.must_begin_with(kept)
        except Unproved as broken:
            raise Unproved(f"{broken} (kept by {anchor.name})") from None

    def _publish(self, number: int, head: str) -> None:
        if self._anchored.get(number) == head:
            return
        try:
            self._anchors[number].publish(head)
        except Exception as gone:  # noqa: BLE001 - a host's own anchor may raise anything
            self._unavailable(self._anchors[number], gone)
        else:
            self._anchored[number] = head

    def _unavailable(self, anchor: Anchor, gone: Exception) -> None:
        # What is not ours may quote a credential.
        says = str(gone) if isinstance(gone, LedgerError) else type(gone).__name__
        self._journal.note("anchor_unavailable", anchor=anchor.name, says=says)
        self._silent.append(anchor.name)
