"""Presenting: who was shown which rendering of a question, and when; an answer may have to cite it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from .after import After
from .commands import Presentation, PresentCommand
from .content import TEXT_TYPE, Content, Digest
from .doubt import Doubt
from .errors import PresentationMissing, PresentationStale, StoreUnavailable, VersionConflict
from .facts import ActorRecord, Fact, Tag
from .managing import Managing
from .pause import Pause
from .services import RELOADS, Services

#: The same rendering shown again to the same person within so many seconds is a repeat, and no news.
REPEAT_SECONDS = 10


class Presented(Fact):
    """Somebody was shown a rendering of a question. It stands in a stream of its own, one per person and rendering.

    Attributes:
        rendering: A tag of the rendering's digest: comparable, not readable.
        digest: The digest itself, beside the header: whoever can guess what was shown could confirm it there for good.
        request_digest: Of the request that was rendered, as the pause has it.
        generation: The pause's newest token then; a later one may have ended the earlier ones.
    """

    NAME = "pause.presented"
    rendering: Tag
    digest: Content
    request_digest: Digest
    generation: int
    to: ActorRecord
    by: ActorRecord | None = None


def rendering_digest(rendering: bytes | str) -> str:
    """Digest what somebody was shown: SHA-256 over the bytes, or over a text's UTF-8; lower-case hex."""
    return hashlib.sha256(rendering.encode() if isinstance(rendering, str) else rendering).hexdigest()


@dataclass(frozen=True, slots=True)
class Presenting:
    """Writes one presentation down; see `HumanInteractionCapability.presented`."""

    services: Services
    command: PresentCommand
    trusted: bool = False

    async def present(self) -> Presentation:
        """Judge the pause and its axes, and append to the presentation's own stream."""
        pause = await Managing(self.services, self.command, trusted=self.trusted).look()
        digest = rendering_digest(self.command.rendering)
        to = self.services.record_of(self.command.to)
        assert to is not None  # noqa: S101 - the command takes nobody else
        stream = self.services.identity.presentation(pause.id, to.tag, digest)
        attempt, doubt = self.services.stamp().attempt, Doubt()
        for _ in range(RELOADS):
            shown = await self._read(stream, doubt)
            now = self.services.pauses.now()
            last = shown[-1] if shown else None
            if last is not None and (last.attempt == attempt or _is_repeat(last, pause, now)):
                return _receipt(last, digest, existing=last.attempt != attempt)
            seen = {"to": to, **_rendered(self.services, digest)}
            try:
                [stored] = await self.services.pauses.append([self._fact(pause, stream, last, attempt, seen)])
            except VersionConflict:
                continue
            except StoreUnavailable as gone:
                await doubt.arises(gone)
                continue
            self.services.decided("presented", pause, to=to.tag)
            return _receipt(stored, digest, existing=False)
        raise StoreUnavailable(f"pause {pause.id} is too busy; {RELOADS} attempts lost their race; try again")

    async def _read(self, stream: UUID, doubt: Doubt) -> list[Presented]:
        while True:
            try:
                facts = await self.services.pauses.story([stream])
            except StoreUnavailable as gone:
                await doubt.arises(gone)
            else:
                return [fact for fact in facts if isinstance(fact, Presented)]

    def _fact(
        self, pause: Pause, stream: UUID, last: Presented | None, attempt: UUID, seen: dict[str, Any]
    ) -> Presented:
        return After(stream, pause.id, pause.paused.scope, last).write(
            self.services.stamp(attempt),
            Presented,
            request_digest=pause.paused.request.digest,
            generation=pause.generation,
            **seen,
            by=self.services.record_of(self.command.by),
        )


def judge_cited(
    pause: Pause, by: ActorRecord, cites: Sequence[UUID], facts: Sequence[Fact], *, now: datetime, within: float
) -> None:
    """Hold what an answer cites against the question and against whoever gives it; `within` is seconds.

    Every citation has to hold: of this pause, to this person, of the request as it stands, of a token that was not
    ended since, and recent enough.

    Raises:
        PresentationMissing, PresentationStale: the first rule that objects.
    """
    newest = {fact.originator_id: fact for fact in facts if isinstance(fact, Presented)}
    if not cites:
        raise PresentationMissing(pause.id, rule="cites")
    for cited in cites:
        fact = newest.get(cited)
        if fact is None or fact.pause != pause.id:
            raise PresentationMissing(pause.id, rule="unknown")
        if fact.to.tag != by.tag:
            raise PresentationMissing(pause.id, rule="another_person")
        if fact.request_digest != pause.paused.request.digest:
            raise PresentationStale(pause.id, rule="request")
        if fact.generation < pause.ends_below:
            raise PresentationStale(pause.id, rule="reissued")
        if now - fact.at > timedelta(seconds=within):
            raise PresentationStale(pause.id, rule="shown_within")


def _rendered(services: Services, digest: str) -> dict[str, Any]:
    return {
        "rendering": services.identity.tag("rendering", digest),
        "digest": Content.of(digest.encode(), TEXT_TYPE),
    }


def _is_repeat(last: Presented, pause: Pause, now: datetime) -> bool:
    recent = now - last.at < timedelta(seconds=REPEAT_SECONDS)
    return recent and last.generation == pause.generation and last.request_digest == pause.paused.request.digest


def _receipt(fact: Fact, digest: str, *, existing: bool) -> Presentation:
    return Presentation(fact.originator_id, fact.pause, fact.at, digest, existing, fact.position)
