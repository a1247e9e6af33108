"""Pause an agent's turn for a person, redeem the answer exactly once, and prove it years later."""

from .domain.axes import Axes, Scope
from .domain.capability import HumanInteractionCapability, Operator
from .domain.commands import (
    STORED,
    Actor,
    AnswerCommand,
    Dispatch,
    LapseAnswer,
    LapseCommand,
    Observation,
    PauseCommand,
    PauseReceipt,
    Receipt,
    RecoverCommand,
    ReissueCommand,
    ResumeCommand,
    ResumeOutcome,
    Routing,
    SettleCommand,
    Sibling,
    WithdrawCommand,
)
from .domain.continuation import (
    NO_DECODE_TRANSPORT,
    NO_PAUSE_CAPABILITY,
    NOT_A_CAPABILITY_TOKEN,
    Recognition,
    recognise,
)
from .domain.envelope import Envelope
from .domain.errors import *  # noqa: F403 - the whole tree of errors stands on the face
from .domain.facts import Agent
from .domain.interactions import APPROVAL, ASK_USER, AskUserAnsweredEvent, Interaction
from .domain.kernel_resume import RESUME_PROMPT, ResumedTurn, continuing, prepare
from .domain.rehydration import NOT_ANSWERED, NOT_DISPATCHED, rehydrate
from .domain.turn import CheckpointReference, PausedTurn, Turn
from .infrastructure.settings import LedgerSettings
from .infrastructure.wiring import Ledger, open_ledger
