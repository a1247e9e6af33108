"""Reading a turn back from its durable checkpoint, and proving that it is the one that was paused."""

import hashlib
from uuid import UUID

from . import strict_json
from .content import ContentAlteredError, ContentErasedError
from .errors import InteractionConfigurationError, PauseRejected, TurnMismatch, TurnMissing
from .facts import TurnRecord
from .pause import Pause
from .ports import Checkpoints
from .services import Services
from .turn import CheckpointReference, PausedTurn


async def read_turn(services: Services, lead: Pause, pause_id: UUID) -> PausedTurn:
    """Rebuild the paused turn, never from process memory. `pause_id` is whose refusal it would be.

    Raises:
        TurnMissing: its checkpoint is gone.
        TurnMismatch: its checkpoint is not what was paused.
        InteractionConfigurationError: its format or its checkpoint store is not known here.
    """
    record = lead.paused.turn
    text = await _text(services, record, pause_id)
    try:
        entries = strict_json.reread(text)
        return services.transcripts.read(record.format, text, entries)
    except PauseRejected as rejected:
        if rejected.name == "format_unknown":
            raise InteractionConfigurationError(
                f"register a codec for {record.format!r} to continue this turn"
            ) from None
        raise TurnMismatch(pause_id, rule=rejected.name) from None
    except strict_json.Unfit as unfit:
        raise TurnMismatch(pause_id, rule=unfit.name) from None


async def _text(services: Services, record: TurnRecord, pause_id: UUID) -> bytes:
    if record.content is not None:
        if record.content.digest != record.digest:
            raise TurnMismatch(pause_id)
        try:
            return record.content.clear()
        except ContentAlteredError:
            raise TurnMismatch(pause_id) from None
        except ContentErasedError:
            raise TurnMissing(pause_id, rule="erased") from None
    if record.checkpoint is None:
        raise TurnMissing(pause_id)
    store = checkpoint_store(services, record.checkpoint.store)
    where = CheckpointReference(
        record.format, record.checkpoint.store, record.checkpoint.locator, record.checkpoint.version
    )
    text = await store.read(where)
    if text is None:
        raise TurnMissing(pause_id)
    require_bytes(text)
    if hashlib.sha256(text).hexdigest() != record.digest:
        raise TurnMismatch(pause_id)
    return text


def require_bytes(text: object) -> None:
    """Check what a checkpoint port gave.

    Raises:
        InteractionConfigurationError: it is not bytes.
    """
    if not isinstance(text, bytes):
        raise InteractionConfigurationError(f"a checkpoint port gives bytes or None, not {type(text).__name__}")


def checkpoint_store(services: Services, name: str) -> Checkpoints:
    """Find the port to where a host keeps its turns.

    Raises:
        InteractionConfigurationError: it is not wired.
    """
    if name not in services.checkpoints:
        raise InteractionConfigurationError(
            f"no checkpoint store named {name!r} is wired; pass it to open_ledger's settings"
        )
    return services.checkpoints[name]
