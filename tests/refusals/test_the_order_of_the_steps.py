"""The first step that objects names the refusal, however many things are wrong."""

from contextlib import AsyncExitStack
from itertools import combinations

import pytest
from pauseledger import (
    Actor,
    ActorNotAllowed,
    AlreadyAnswered,
    CallMismatch,
    Interaction,
    InteractionUnregistered,
    Policy,
    ReissueCommand,
    RequestMismatch,
    ResponseInvalid,
    RunMismatch,
    ScopeMismatch,
    SessionMismatch,
    TokenExpired,
    TokenSuperseded,
    TurnMismatch,
)
from pauseledger.infrastructure.stories import SCOPE, Stage, ask, asked, axes, refusal, turn

AXES = {
    "scope": ("scope", SCOPE.model_copy(update={"tenant_id": "evil"}), ScopeMismatch),
    "session_id": ("session_id", "session-2", SessionMismatch),
    "run_id": ("run_id", "run-2", RunMismatch),
    "call_id": ("call_id", "call_2", CallMismatch),
}
COMBINATIONS = [wrong for size in range(1, 5) for wrong in combinations(AXES, size)]


async def test_of_the_axes_the_first_in_order_names_it(stage, ledger, question):
    for wrong in COMBINATIONS:
        stated = axes(**{field: AXES[field][1] for field in wrong})
        for attempt in (question.redeem(axes=stated), question.answer(axes=stated)):
            await refusal(stage, attempt, AXES[wrong[0]][2])
    assert len(COMBINATIONS) == 15
    assert (await question.redeem()).fence == 1


async def test_axes_of_another_pause_never_reach_it(stage, ledger, question):
    others = []
    for number, wrong in enumerate(COMBINATIONS):
        values = {field: AXES[field][1] for field in wrong}
        stopped = turn("call_1", "call_2", said=f"Another, {number}.")
        others.append(await asked(ledger, ask(turn=stopped, axes=axes(**values))))
        await refusal(stage, question.redeem(axes=others[-1].axes), AXES[wrong[0]][2])
        await refusal(stage, others[-1].redeem(axes=question.axes), AXES[wrong[0]][2])
    for one in (*others, question):
        assert (await one.redeem()).outcome.pause_id == one.pause_id


def pick():
    return Interaction(name="pick", request_schema={}, response_schema={"type": "integer"}, as_text=str)


def garble_request(segments):
    return bytes([segments[0] ^ 1]) + segments[1:]


def garble_turn(segments):
    return segments[:-1] + bytes([segments[-1] ^ 1])


#: What can go wrong at each step, in the order of the steps: step, name, what refuses.
WRONG = [
    (1, "expired", TokenExpired),
    (2, "scope", ScopeMismatch),
    (2, "call", CallMismatch),
    (3, "request", RequestMismatch),
    (4, "actor", ActorNotAllowed),
    (4, "unregistered", InteractionUnregistered),
    (4, "invalid", ResponseInvalid),
    (5, "turn", TurnMismatch),
    (6, "superseded", TokenSuperseded),
    (6, "answered", AlreadyAnswered),
]
PAIRS = list(combinations(WRONG, 2))
#: A window that is over is looked up in the stream before it refuses, and what stands there must not speak first.
LOOKED_UP = [(WRONG[0], *others, WRONG[-1]) for size in (1, 2) for others in combinations(WRONG[1:-1], size)]
ALLOWED = Actor("maria")


@pytest.mark.parametrize(
    "things", [*PAIRS, *LOOKED_UP], ids=lambda things: " before ".join(name for _, name, _ in things)
)
async def test_of_things_wrong_the_earliest_step_names_it(tmp_path, things):
    stage = Stage("memory:", tmp_path / "keys")
    wrong = {name for _, name, _ in things}
    async with AsyncExitStack() as opened:
        ledger = await opened.enter_async_context(stage.ledger(interactions=[pick()]))
        await ledger.capability.govern("pick", Policy(name="maria", actors=["maria"]), by=Actor("carla"))
        question = await asked(ledger, interaction="pick", request={"n": 1}, closes_in=60)
        if "answered" in wrong:
            await question.answer(1, answered_by=ALLOWED)
        if "superseded" in wrong:
            await ledger.capability.reissue(ReissueCommand(question.pause_id, axes=question.axes, ends_earlier=True))
        if "request" in wrong:
            stage.alter(stage.rows(question.pause_id)[0], garble_request)
        if "turn" in wrong:
            stage.alter(stage.rows(question.pause_id)[0], garble_turn)
        known = [] if "unregistered" in wrong else [pick()]
        other = await opened.enter_async_context(stage.ledger(interactions=known))
        if "expired" in wrong:
            other.wait(seconds=61)
        stated = axes(
            "call_2" if "call" in wrong else "call_1", **({"scope": AXES["scope"][1]} if "scope" in wrong else {})
        )
        response = "no number" if "invalid" in wrong else 2
        by = Actor("eve") if "actor" in wrong else ALLOWED
        await refusal(stage, question.at(other).redeem(response, axes=stated, answered_by=by), things[0][2])
