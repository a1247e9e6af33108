"""What can be asked: one file is one view, its rows, its questions and how it is folded from the log."""

from .history import History
from .open_pauses import OpenPauses
from .projection import Projection
from .refusals import Refusals
from .response_times import TimesTaken
from .stranded import StrandedTurns

#: Every view.
PROJECTIONS: tuple[type[Projection], ...] = (OpenPauses, History, Refusals, TimesTaken, StrandedTurns)
