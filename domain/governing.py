"""Governing: a policy is put in force for an interaction, or taken away, and that is a fact."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from .after import After
from .authority import Policy, PolicyChanged, digest_of, newest, people_of, rules_of
from .commands import Actor
from .doubt import Doubt
from .errors import InteractionConfigurationError, StoreUnavailable, VersionConflict
from .facts import Policy as PolicyRecord
from .interactions import require_interaction_name
from .services import RELOADS, Services, record_of


@dataclass(frozen=True, slots=True)
class Governed:
    """What stands on record for an interaction.

    Attributes:
        policy: The policy in force, None where there is none.
        existing: Whether it stood so already; nothing was written then.
        position: Where in the log, or None.
    """

    interaction: str
    policy: PolicyRecord | None
    existing: bool
    position: int | None


@dataclass(frozen=True, slots=True)
class Governing:
    """Puts a policy in force, or takes it away; see `HumanInteractionCapability.govern`."""

    services: Services

    async def govern(self, interaction: str, policy: Policy | None, by: Actor, *, ends_earlier: bool) -> Governed:
        """Write the change down, unless it stands so already."""
        require_interaction_name(interaction)
        if not isinstance(by, Actor):
            raise InteractionConfigurationError("a policy is changed by somebody; pass an Actor")
        if not (policy is None or isinstance(policy, Policy)) or type(ends_earlier) is not bool:
            raise InteractionConfigurationError("pass a Policy, or None for none, and ends_earlier as True or False")
        attempt, doubt, book = self.services.stamp().attempt, Doubt(), self.services.policies
        for _ in range(RELOADS):
            changes = await self._read(doubt)
            standing = newest(changes, interaction)
            if self._same(standing, policy) and not (ends_earlier and self._lives_on(changes, interaction, policy)):
                mine = standing is not None and standing.attempt == attempt
                return _governed(interaction, standing, existing=not mine)
            try:
                [stored] = await self.services.pauses.append(
                    [self._change(changes, interaction, policy, by, attempt, ends_earlier=ends_earlier)]
                )
            except VersionConflict:
                continue
            except StoreUnavailable as gone:
                await doubt.arises(gone)
                continue
            finally:
                book.forget()
            assert isinstance(stored, PolicyChanged)  # noqa: S101 - the one appended
            digest = None if stored.policy is None else stored.policy.digest
            self.services.journal.note(
                "policy_changed", interaction=interaction, revision=stored.revision, digest=digest, by=stored.by.tag
            )
            return _governed(interaction, stored, existing=False)
        raise StoreUnavailable(f"the policies are too busy; {RELOADS} changes lost their race; try again")

    async def _read(self, doubt: Doubt) -> tuple[PolicyChanged, ...]:
        while True:
            try:
                return await self.services.policies.read()
            except StoreUnavailable as gone:
                await doubt.arises(gone)

    def _same(self, standing: PolicyChanged | None, policy: Policy | None) -> bool:
        if standing is None or standing.policy is None:
            return policy is None
        return (
            policy is not None
            and standing.policy.name == policy.name
            and standing.rules == rules_of(policy, self.services.identity.tag)
        )

    def _lives_on(self, changes: Sequence[PolicyChanged], interaction: str, policy: Policy | None) -> bool:
        """Tell whether another policy may still be answered under, because the changes since spared it."""
        for change in reversed(changes):
            if change.interaction == interaction:
                if change.policy is not None and not self._same(change, policy):
                    return True
                if change.ends_earlier:
                    return False
        return False

    def _change(
        self,
        changes: Sequence[PolicyChanged],
        interaction: str,
        policy: Policy | None,
        by: Actor,
        attempt: UUID,
        *,
        ends_earlier: bool,
    ) -> PolicyChanged:
        stream, before = self.services.policies.stream, newest(changes, interaction)
        revision = before.revision + 1 if before else 1
        rules = None if policy is None else rules_of(policy, self.services.identity.tag)
        return After(stream, stream, None, changes[-1] if changes else None).write(
            self.services.stamp(attempt),
            PolicyChanged,
            interaction=interaction,
            revision=revision,
            policy=None
            if policy is None or rules is None
            else PolicyRecord(
                name=policy.name,
                revision=revision,
                digest=digest_of(interaction, policy.name, revision, rules),
                quorum=policy.quorum,
            ),
            rules=rules,
            people=None if policy is None else people_of(policy),
            ends_earlier=ends_earlier,
            by=record_of(self.services.identity, by),
        )


def _governed(interaction: str, change: PolicyChanged | None, *, existing: bool) -> Governed:
    if change is None:
        return Governed(interaction, None, existing, None)
    return Governed(interaction, change.policy, existing, change.position)
