"""Step 4, first: whoever answers is held against the policy the pause was made under, as the ledger has it now."""

from dataclasses import dataclass

from .authority import groups_of, judge_actor, rules_for, sight
from .commands import AnswerCommand
from .facts import ActorRecord
from .pause import Pause
from .presenting import judge_cited
from .services import Services


@dataclass(frozen=True, slots=True)
class Authorising:
    """Judges one answer to one pause that was made under a policy."""

    services: Services
    command: AnswerCommand

    async def judge(self, pause: Pause) -> None:
        """Hold the answer against the policy; raises as the steps it takes do.

        Raises:
            PolicyMismatch, ActorMissing, ActorNotAllowed, AskerMayNotAnswer, PresentationMissing, PresentationStale:
                the first that objects, in this order.
        """
        rules = rules_for(pause, await self.services.policies.read())
        by = self.services.record_of(self.command.answered_by)
        judge_actor(pause.paused, rules, by, groups_of(self.command.answered_by, self.services.identity.tag))
        assert by is not None  # noqa: S101 - judged just now
        within = sight(rules)
        if within is not None:
            await self._judge_seen(pause, by, within.total_seconds())

    async def _judge_seen(self, pause: Pause, by: ActorRecord, within: float) -> None:
        cited = await self.services.pauses.story(list(dict.fromkeys(self.command.cites)))
        judge_cited(pause, by, self.command.cites, cited, now=self.services.pauses.now(), within=within)
