"""The outcome of a redemption, built from the round as its facts leave it, before anything is consumed."""

from dataclasses import dataclass
from typing import Any

from . import strict_json
from .changes import changed
from .commands import Dispatch, Observation, ResumeOutcome, Sibling
from .errors import InteractionConfigurationError, InteractionUnregistered
from .interactions import Interaction, Interactions
from .pause import Pause
from .rehydration import NOT_ANSWERED, NOT_DISPATCHED, rehydrate
from .round import Round, named, stored_answer
from .turn import TURN_BYTES, PausedTurn

#: What was stored was within its limits when it came in; reading it back uses the widest of them.
READ_LIMIT = TURN_BYTES


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Builds outcomes; knows the interactions that put answers into words."""

    interactions: Interactions

    def build(self, round_: Round, pause: Pause, turn: PausedTurn | None) -> ResumeOutcome:
        """Put together what a redemption hands back, and prove that its history can be built.

        Raises:
            InteractionUnregistered: an answered call's interaction is not known here, so its answer has no words.
            InteractionConfigurationError: an interaction's `as_text` failed.
        """
        try:
            return self._build(round_, pause, turn)
        except InteractionUnregistered as missing:
            # Also where it is a sibling's: the attempt is this pause's.
            raise InteractionUnregistered(pause.id, rule=missing.rule) from None

    def _build(self, round_: Round, pause: Pause, turn: PausedTurn | None) -> ResumeOutcome:
        lead = round_.lead
        response = stored_answer(pause)
        resolved_at = pause.answered.at if pause.answered else (pause.lapsed.at if pause.lapsed else pause.at)
        outcome = ResumeOutcome(
            name=pause.paused.interaction.name,
            pause_id=pause.id,
            interrupt_id=pause.paused.call_id,
            tool_call_id=provider_id(pause),
            run_id=pause.paused.run_id,
            session_id=pause.paused.session_id,
            request=_read(pause.paused.request.clear()),
            response=_read(response.clear()) if response else None,
            turn=turn,
            observations=self._observations(round_),
            dispatch=tuple(d for d in map(self._dispatch, round_.pauses) if d is not None),
            siblings=tuple(_sibling(other) for other in round_.pauses if other.id != pause.id),
            answered_by=named(pause.answered.by) if pause.answered else None,
            paused_at=pause.paused.at,
            time_to_resolve_seconds=(resolved_at - pause.paused.at).total_seconds(),
            position=None,
            fence=lead.fence,
            idempotency_key=str(lead.id),
            scope=pause.paused.scope,
        )
        if turn is not None:
            rehydrate(outcome)
        return outcome

    def _observations(self, round_: Round) -> tuple[Observation, ...]:
        by_call = {pause.paused.call_id: pause for pause in round_.pauses}
        return tuple(
            Observation(call.call_id, _id_in_round(index, call.call_id), self._text(by_call.get(call.call_id)))
            for index, call in enumerate(round_.lead.paused.round.calls)
            if not call.done
        )

    def _text(self, pause: Pause | None) -> str | None:
        if pause is None:
            return NOT_DISPATCHED
        response = stored_answer(pause) if pause.has_answer else None
        if response is None:
            return NOT_ANSWERED
        if self.leaves_open(pause):
            return None
        interaction = self._interaction(pause)
        try:
            text = interaction.as_text(_read(response.clear()))
            if isinstance(text, str):
                strict_json.write(text, limit=READ_LIMIT)
                return text
            kind = f"a result of type {type(text).__name__}"
        except Exception as failed:  # noqa: BLE001 - it is the host's function
            kind = type(failed).__name__
        # Raised out here: what the host's function raised may quote the answer.
        raise InteractionConfigurationError(
            f"as_text of interaction {interaction.name!r} failed with {kind}; nothing was consumed"
        )

    def leaves_open(self, pause: Pause) -> bool:
        """Tell whether the pause's answer lets its call run, so that the host has to run it."""
        return pause.has_answer and self._decision(pause) in ("approve", "edit")

    def _decision(self, pause: Pause) -> str:
        if pause.answered:
            return pause.answered.decision
        response = stored_answer(pause)
        return self._interaction(pause).decision(_read(response.clear())) if response else "answer"

    def _dispatch(self, pause: Pause) -> Dispatch | None:
        if not self.leaves_open(pause):
            return None
        arguments = self._effective(pause)
        request = _read(pause.paused.request.clear())
        return Dispatch(
            pause_id=pause.id,
            interrupt_id=pause.paused.call_id,
            tool_call_id=provider_id(pause),
            tool=request["tool"],
            arguments=arguments,
            digest=strict_json.digest(arguments),
            idempotency_key=str(pause.id),
        )

    def _effective(self, pause: Pause) -> Any:
        if pause.answered and pause.answered.effective:
            return _read(pause.answered.effective.clear())
        response = stored_answer(pause)
        assert response is not None  # noqa: S101 - leaves_open asked
        return self._interaction(pause).effective(_read(pause.paused.request.clear()), _read(response.clear()))

    def _interaction(self, pause: Pause) -> Interaction:
        registered = self.interactions.of(pause.paused.interaction.name, pause.paused.interaction.revision)
        if registered is None:
            raise InteractionUnregistered(pause.id, rule="absent")
        return registered.interaction


def placed(outcome: ResumeOutcome, position: int | None) -> ResumeOutcome:
    """Say where in the log the claim stands, once it does."""
    return changed(outcome, {"position": position})


def provider_id(pause: Pause) -> str | None:
    """The provider's id of a pause's call, where it gave one."""
    return pause.paused.call_id if pause.paused.call.origin == "provider" else None


def _id_in_round(index: int, call_id: str) -> str | None:
    return None if call_id == f"@{index}" else call_id


def _sibling(pause: Pause) -> Sibling:
    response = stored_answer(pause) if pause.has_answer else None
    return Sibling(
        pause_id=pause.id,
        interrupt_id=pause.paused.call_id,
        tool_call_id=provider_id(pause),
        name=pause.paused.interaction.name,
        end="withdrawn" if pause.withdrawn else "answered" if pause.answered else "lapsed",
        response=_read(response.clear()) if response else None,
    )


def _read(text: bytes) -> Any:
    return strict_json.reread(text)
