"""The door: is a string one of our tokens, and if not, why not, by name."""

from typing import Any

from .envelope import Envelope
from .errors import InteractionConfigurationError

NO_PAUSE_CAPABILITY = "no_pause_capability"
NO_DECODE_TRANSPORT = "no_decode_transport"
NOT_A_CAPABILITY_TOKEN = "not_a_capability_token"  # noqa: S105 - a reason, no secret


class Recognition:
    """What the door found: an envelope to continue with, or why it cannot; exactly one of the two."""

    __slots__ = ("envelope", "refusal")

    def __init__(self, *, envelope: Envelope | None = None, refusal: str | None = None) -> None:
        if (envelope is None) == (refusal is None):
            raise InteractionConfigurationError("a recognition is an envelope or a refusal, exactly one of the two")
        self.envelope = envelope
        self.refusal = refusal

    def __repr__(self) -> str:
        return f"<Recognition {self.refusal or 'of an envelope'}>"


def recognise(capability: Any, pause_token: str) -> Recognition:
    """Ask the three questions of the door, all before anything is redeemed.

    Raises:
        TokenForged: it has our prefix, and is not ours. What else `decode_token` raises propagates as well.
    """
    if capability is None:
        return Recognition(refusal=NO_PAUSE_CAPABILITY)
    decode = getattr(capability, "decode_token", None)
    if decode is None:
        return Recognition(refusal=NO_DECODE_TRANSPORT)
    envelope = decode(pause_token)
    if envelope is None:
        return Recognition(refusal=NOT_A_CAPABILITY_TOKEN)
    return Recognition(envelope=envelope)
