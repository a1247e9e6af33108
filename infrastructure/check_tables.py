"""What must hold of a ledger's tables before anything in them is read: they are there, and guarded."""

from collections.abc import Iterator

from ..domain.errors import SettingsCorrupt
from .check_streams import Fault
from .store import TABLES, LedgerRecorder


def unreadable(recorder: LedgerRecorder) -> list[Fault]:
    """Tell what keeps everything else from being read: tables that are gone, and settings that are none (blocks)."""
    there = recorder.tables()
    gone = [Fault("table", f"table {name} is gone; nothing else was checked") for name in TABLES if name not in there]
    if gone:
        return gone
    try:
        recorder.settings()
    except SettingsCorrupt as none:
        return [Fault("table", f"{none}; nothing else was checked")]
    return []


def rule_faults(recorder: LedgerRecorder) -> Iterator[Fault]:
    """Tell what was changed of the rules of the tables, or added to them (blocks). What they guard is proved apart."""
    for rule in (*recorder.broken_rules(), *recorder.altered_tables()):
        yield Fault("table", f"a rule that guards the ledger's tables is broken: {rule}; find out who did that")
    for rule in recorder.added_rules():
        yield Fault("table", f"somebody added to the ledger's tables: {rule}; find out who did that, and what it does")
