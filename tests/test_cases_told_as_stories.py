"""Pure decisions, told as given, when and then: no store, no clock, no loop."""

from datetime import timedelta

import pytest
from pauseledger import PauseClosed, WindowOpen
from pauseledger.domain.closing import lapse, reissue, withdraw
from pauseledger.domain.facts import Lapsed, OnLapse, Reissued, Withdrawn
from pauseledger.domain.round import Round
from pauseledger.infrastructure.stories import a_paused, given


def taking_back(pause, stamp):
    return withdraw(pause, stamp, reason="host")


def lapsing(pause, stamp):
    return lapse(Round((pause,)), pause.id, stamp)


def minting(pause, stamp):
    return reissue(pause, stamp, kid="0" * 8, ends_earlier=True, closes_at=None, reason="lost", by=None)


def test_a_question_is_taken_back_once():
    taken = given(a_paused()).when(taking_back).then(Withdrawn)
    assert taken.pause.state == "withdrawn"
    taken.when(taking_back).then()
    taken.after(hours=2).when(lapsing).objected(PauseClosed)
    taken.when(minting).objected(PauseClosed)


def test_a_window_lapses_after_its_end_alone():
    open_ = given(a_paused())
    assert open_.when(lapsing).objected(WindowOpen).closes_at == open_.pause.paused.closes_at
    lapsed = open_.after(hours=1).when(lapsing).then(Lapsed)
    assert (lapsed.pause.state, lapsed.pause.has_answer) == ("lapsed", False)
    lapsed.when(taking_back).objected(PauseClosed)


def test_a_lapse_answer_keeps_it_standing():
    asked = a_paused()
    answering = asked.model_copy(update={"on_lapse": OnLapse(action="answer", response=asked.request)})
    lapsed = given(answering).after(hours=1).when(lapsing).then(Lapsed)
    assert lapsed.pause.has_answer
    lapsed.when(taking_back).then(Withdrawn)


def test_generations_count_up_and_end_those_before():
    minted = given(a_paused()).when(minting).then(Reissued).when(minting).then(Reissued)
    assert (minted.pause.generation, minted.pause.ends_below) == (2, 2)
    assert minted.pause.token_closes_at == minted.pause.paused.closes_at


def test_time_never_goes_back_within_a_stream():
    taken = given(a_paused()).after(hours=-1).when(taking_back).then(Withdrawn)
    assert taken.pause.at - taken.pause.paused.at == timedelta(0)


def test_a_story_fails_where_it_should():
    with pytest.raises(AssertionError):
        given(a_paused()).when(taking_back).then(Lapsed)
    with pytest.raises(WindowOpen):
        given(a_paused()).when(lapsing).then(Lapsed)
    with pytest.raises(AssertionError):
        given(a_paused()).when(taking_back).objected(PauseClosed)
