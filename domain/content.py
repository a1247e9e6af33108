"""What people wrote: salted, digested over the very bytes, and kept beside the header that names it."""

import hashlib
import secrets
from collections.abc import Callable
from typing import Annotated, Any, Literal, Protocol, Self
from uuid import UUID

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic_core.core_schema import SerializationInfo

from .changes import made

SALT_BYTES = 16
JSON_TYPE = "application/json"
TEXT_TYPE = "text/plain; charset=utf-8"

#: What was said, or who said it and whom it was for: the two are erased apart.
ContentKind = Literal["content", "person"]

#: Lower-case hex of a SHA-256.
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class ContentAlteredError(Exception):
    """The stored bytes are not those that were digested. Judged at step 3 or 5, never shown to a caller as it is."""


class ContentErasedError(Exception):
    """The key of what was written was destroyed: nobody can read it any more. What was digested stands as it stood."""


class ContentUnreadError(Exception):
    """Only the header was read; the segment was left behind."""


class Segments(Protocol):
    """Where the segments of one row are, while its header is written or read."""

    def put(self, content: "Content") -> dict[str, Any] | None:
        """Store a content's body as the next segment, and give the header that names it; None leaves it out."""
        ...

    def source(self, content: "Content") -> Callable[[], bytes] | None:
        """Find how to read a content's body; None where segments were left behind."""
        ...


class Held:
    """The body of a content, once somebody has asked for it, and where it comes from; its kind where it is new."""

    __slots__ = ("body", "kind", "source")

    def __init__(
        self, body: bytes | None = None, source: Callable[[], bytes] | None = None, kind: ContentKind = "content"
    ) -> None:
        self.body = body
        self.source = source
        self.kind = kind


class Content(BaseModel):
    """One segment of a row, as its header names it.

    Attributes:
        segment: Its number in the row.
        size: The clear bytes, without the salt.
        stored: The bytes as stored.
        digest: SHA-256 over salt and clear bytes, lower-case hex.
        comp: How the body is compressed.
        cipher: How it is encrypted.
        key: The key it is encrypted under.
    """

    model_config = ConfigDict(frozen=True)

    segment: int = 0
    media_type: str
    size: int
    stored: int = 0
    digest: Digest
    comp: Literal["none", "zstd"] = "none"
    cipher: Literal["none", "aes-256-gcm"] = "none"
    key: UUID | None = None

    #: The bytes themselves, or how to get them. They stand beside the header, never in it.
    held: Any = Field(default_factory=Held, exclude=True, repr=False)

    @classmethod
    def of(cls, clear: bytes, media_type: str = JSON_TYPE, kind: ContentKind = "content") -> Self:
        """Salt and digest what is about to be stored."""
        body = secrets.token_bytes(SALT_BYTES) + clear
        return made(cls, {
            "segment": 0,
            "media_type": media_type,
            "size": len(clear),
            "stored": 0,
            "digest": hashlib.sha256(body).hexdigest(),
            "comp": "none",
            "cipher": "none",
            "key": None,
            "held": Held(body, kind=kind),
        })  # fmt: skip

    def body(self) -> bytes:
        """Give the salt and the clear bytes, proved against the digest.

        Raises:
            ContentAlteredError: they are not what was digested.
            ContentErasedError: their key was destroyed.
            ContentUnreadError: only the header was read.
        """
        held: Held = self.held
        if held.body is None:
            if held.source is None:
                raise ContentUnreadError(self.digest)
            body = held.source()
            if len(body) != self.size + SALT_BYTES or hashlib.sha256(body).hexdigest() != self.digest:
                raise ContentAlteredError(self.digest)
            held.body = body
        return held.body

    def clear(self) -> bytes:
        """Give the clear bytes; raises as `body` does."""
        return self.body()[SALT_BYTES:]

    @property
    def kind(self) -> ContentKind:
        """Whether it is what was said, or who said it; of one that was read, its key tells."""
        held: Held = self.held
        return held.kind

    @property
    def intact(self) -> bool:
        """Whether it can be read, and the stored bytes are those that were digested."""
        try:
            self.body()
        except (ContentAlteredError, ContentErasedError):
            return False
        return True

    @property
    def erased(self) -> bool:
        """Whether its key was destroyed, as far as it was read."""
        try:
            self.body()
        except ContentErasedError:
            return True
        except (ContentAlteredError, ContentUnreadError):
            return False
        return False

    @model_serializer(mode="wrap")
    def _write(self, handler: Callable[[Any], dict[str, Any]], info: SerializationInfo) -> dict[str, Any] | None:
        segments: Segments | None = info.context
        return handler(self) if segments is None else segments.put(self)

    @model_validator(mode="after")
    def _read(self, info: ValidationInfo) -> Self:
        segments: Segments | None = info.context
        if segments is not None:
            # What a header says of this field is not believed.
            self.__dict__["held"] = Held(source=segments.source(self))
        return self
