"""What a token says, and the envelope: a token recognised, and nothing more."""

import hashlib
import hmac
from typing import Any, NamedTuple, Never
from uuid import UUID

from .errors import InteractionConfigurationError

#: How many bytes of a SHA-256 an axis tag keeps.
TAG_BYTES = 8
#: How many bytes of a row's or content's digest a token keeps.
DIGEST_BYTES = 16
ABSENT = b"\xff\xff\xff\xff"


def length_prefixed(*parts: bytes | str | None) -> bytes:
    """Join parts so that no two lists look alike: each behind its length (u32), an absent one as 2**32 - 1 alone."""
    joined: list[bytes] = []
    for part in parts:
        if part is None:
            joined.append(ABSENT)
        else:
            raw = part.encode() if isinstance(part, str) else part
            joined += (len(raw).to_bytes(4, "big"), raw)
    return b"".join(joined)


def axis_tag(axis: str, pause_id: UUID, *parts: str | None) -> bytes:
    """Fold one axis of one pause into `TAG_BYTES`. The seal keeps it secret."""
    return hashlib.sha256(length_prefixed(axis, pause_id.bytes, *parts)).digest()[:TAG_BYTES]


class Terms(NamedTuple):
    """What is sealed into a token.

    Digests are the first `DIGEST_BYTES` of SHA-256; opens and closes are whole Unix seconds (UTC).
    """

    pause_id: UUID
    row_digest: bytes
    request_digest: bytes
    turn_digest: bytes
    scope: bytes
    session: bytes
    run: bytes
    call: bytes
    opens: int
    closes: int
    generation: int
    epoch: int

    def __repr__(self) -> str:
        return f"<Terms of pause {self.pause_id}, generation {self.generation}, epoch {self.epoch}>"


class Opened(NamedTuple):
    """A token that authenticated: its terms, the key that opened it (8 hex), and a digest of its text (32 bytes)."""

    terms: Terms
    kid: str
    text_digest: bytes

    @property
    def pause_id(self) -> UUID:
        """The pause the token is for."""
        return self.terms.pause_id

    def binds(self, axis: str, *parts: str | None) -> bool:
        """Tell whether the token is bound to exactly these parts on `axis`, in constant time."""
        held: bytes = getattr(self.terms, axis)
        try:
            stated = axis_tag(axis, self.terms.pause_id, *parts)
        except UnicodeEncodeError:
            return False
        return hmac.compare_digest(held, stated)


class Envelope:
    """A token recognised as ours. Opaque: what is sealed in the token is judged, never what stands here.

    Made by `decode_token` alone; it has no public constructor, no pickle, and shows nothing.
    """

    __slots__ = ("_token",)
    _token: str

    def __init__(self) -> None:
        raise InteractionConfigurationError(
            "an envelope comes from decode_token or recognise; it cannot be made by hand"
        )

    def __init_subclass__(cls) -> None:
        raise InteractionConfigurationError("an envelope cannot be subclassed")

    def __setattr__(self, name: str, value: Any) -> Never:
        raise AttributeError("an envelope cannot be changed")

    def __reduce__(self) -> Never:
        raise TypeError("an envelope cannot be pickled or copied; keep the token instead")

    def __repr__(self) -> str:
        return "<Envelope>"


def enclose(token: str) -> Envelope:
    """Make the envelope of a token that was just opened. Only `decode_token` calls this."""
    envelope = object.__new__(Envelope)
    object.__setattr__(envelope, "_token", token)
    return envelope


def token_of(envelope: Envelope) -> str:
    """Take the token out again, to open it anew.

    Raises:
        InteractionConfigurationError: it is no envelope.
    """
    if type(envelope) is not Envelope:
        raise InteractionConfigurationError(
            f"expected an envelope from decode_token or recognise, got {type(envelope).__name__}"
        )
    return envelope._token  # noqa: SLF001 - the envelope's own module
