"""Two versions on one store: old revisions are upcast and redeemed; what is newer is told by name and nothing decided."""

import pytest
from eventsourcing.persistence import StoredEvent
from pauseledger import LapseCommand, LedgerTooNew, RecoverCommand, ReissueCommand, ScopeMismatch, WithdrawCommand
from pauseledger.domain.facts import Answered, Paused
from pauseledger.infrastructure.mapper import STORED, Registry
from pauseledger.infrastructure.stories import (
    ANSWER_TEXT,
    SCOPE,
    Stage,
    ask,
    asked,
    asked_round,
    axes,
    contents,
    refusal,
    round_of,
)


@pytest.fixture
def stage(store_url, tmp_path):
    return Stage(store_url, tmp_path / "keys")


class PausedLater(Paused):
    """`Paused` as a later version writes it: another field, and one renamed since."""

    REVISION = 3
    urgency: str


class AnsweredLater(Answered):
    REVISION = 2
    channel: str


UPCASTERS = {
    ("pause.paused", 1): lambda header: {**header, "haste": "normal"},
    ("pause.paused", 2): lambda header: {**header, "urgency": header["haste"]},
    ("pause.answered", 1): lambda header: {**header, "channel": "unknown"},
}


def later(upcasters=UPCASTERS):
    newer = {Paused.NAME: PausedLater, Answered.NAME: AnsweredLater}
    return Registry([newer.get(kind.NAME, kind) for kind in STORED], upcasters)


async def test_an_open_pause_of_an_earlier_revision_is_upcast_and_redeemed(stage):
    async with stage.ledger() as ledger:
        question = await asked(ledger)
        written = stage.rows()[0]
    async with stage.ledger(registry=later()) as newer:
        [paused] = await newer.story(question.pause_id)
        assert (type(paused), paused.urgency) == (PausedLater, "normal")
        assert contents(await question.at(newer).redeem()) == {"call_1": ANSWER_TEXT}
    assert stage.rows()[0] == written
    assert stage.rows()[0].topic == "pause.paused@1"


async def test_a_round_half_answered_by_an_earlier_version_goes_on(stage):
    async with stage.ledger() as ledger:
        first, second = await asked_round(ledger, *round_of("call_1", "call_2"))
        await first.answer()
    async with stage.ledger(registry=later()) as newer:
        turned = await second.at(newer).redeem()
        assert contents(turned) == {"call_1": ANSWER_TEXT, "call_2": ANSWER_TEXT}
        assert (await asked(newer, ask(turn=ask().turn, axes=axes(run_id="run-2")))).receipt.position
    assert stage.rows(first.pause_id)[1].topic == "pause.answered@1"


async def test_a_missing_step_of_upcasting_decides_nothing(stage):
    async with stage.ledger() as ledger:
        question = await asked(ledger)
    before = stage.rows()
    gap = {step: upcast for step, upcast in UPCASTERS.items() if step != ("pause.paused", 2)}
    async with stage.ledger(registry=later(gap)) as newer:
        with pytest.raises(LedgerTooNew) as caught:
            await question.at(newer).redeem()
        assert (caught.value.topic, caught.value.stream) == ("pause.paused@1", question.pause_id)
    assert stage.rows() == before


TOPICS = ["pause.sealed@1", "pause.answered@2", "pause.answered@01x", "os.system@1", "pause.answered"]


def append_unknown(stage, ledger, question, topic):
    """Append a row as a newer version would."""
    row = stage.rows(question.pause_id)[-1]
    ledger.recorder.insert_events([StoredEvent(row.stream, row.version + 1, topic, row.state)])


@pytest.mark.parametrize("topic", TOPICS)
async def test_on_what_it_does_not_know_a_worker_decides_nothing(stage, topic):
    async with stage.ledger() as ledger:
        question = await asked(ledger)
        append_unknown(stage, ledger, question, topic)
        before = stage.rows()
        named = {"pause_id": question.pause_id, "axes": question.axes}
        ledger.wait(seconds=1)
        for attempt in (
            question.redeem(),
            question.answer(),
            ledger.capability.recover(RecoverCommand(**named)),
            ledger.capability.withdraw(WithdrawCommand(**named)),
            ledger.capability.lapse(LapseCommand(**named)),
            ledger.capability.reissue(ReissueCommand(**named)),
            asked(ledger),
        ):
            with pytest.raises(LedgerTooNew) as caught:
                await attempt
            assert caught.value.topic == topic
        assert stage.rows() == before
        evil = axes(scope=SCOPE.model_copy(update={"tenant_id": "evil"}))
        await refusal(stage, question.redeem(axes=evil), ScopeMismatch, writes=0)


async def test_of_a_round_one_unknown_row_stops_every_decision(stage):
    async with stage.ledger() as ledger:
        first, second = await asked_round(ledger, *round_of("call_1", "call_2"))
        append_unknown(stage, ledger, second, "pause.sealed@1")
        with pytest.raises(LedgerTooNew):
            await first.redeem()
        assert stage.count() == 3


async def test_whoever_follows_the_log_sets_it_aside_and_goes_on(stage):
    async with stage.ledger() as ledger:
        question = await asked(ledger)
        append_unknown(stage, ledger, question, "pause.sealed@1")
        await asked(ledger, axes=axes(run_id="run-2"))
        told = list(ledger.pauses.facts())
    assert [type(one) for one in told] == [Paused, LedgerTooNew, Paused]


async def test_a_field_this_version_does_not_know_is_let_pass(stage):
    async with stage.ledger() as ledger:
        question = await asked(ledger)

    class Roomier(Paused):
        added_later: dict[str, int] = {"n": 1}

    stage.forge(stage.rows()[0], lambda fact: Roomier(**dict(fact)))
    assert stage.rows()[0].header["added_later"] == {"n": 1}
    async with stage.ledger() as ledger:
        [paused] = await ledger.story(question.pause_id)
        assert type(paused) is Paused


async def test_one_bad_record_among_a_hundred_is_shown_and_the_others_go_on(stage):
    async with stage.ledger() as ledger:
        for number in range(30):
            await asked(ledger, axes=axes(run_id=f"run-{number}"))
        bad = stage.rows()[15]
        stage.overwrite(bad, b"PLF1" + b"\xff" * 50)
        told = list(ledger.pauses.facts())
        assert [type(one).__name__ for one in told] == ["Paused"] * 15 + ["LedgerCorrupt"] + ["Paused"] * 14
        assert (told[15].stream, told[15].position) == (bad.stream, bad.position)
        assert (await asked(ledger, axes=axes(run_id="run-3"))).receipt.existing
