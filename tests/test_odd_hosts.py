"""Hosts that do what no host should: nothing is poisoned, lost, hung or told by a nameless error."""

import asyncio
import threading

import pytest
from pauseledger import (
    STORED,
    Actor,
    Axes,
    Interaction,
    InteractionConfigurationError,
    LedgerSettings,
    PauseCommand,
    PauseRejected,
    ResponseInvalid,
    Routing,
    Scope,
    SettleCommand,
    Turn,
    continuing,
    open_ledger,
)
from pauseledger.domain.commands import AnswerCommand
from pauseledger.infrastructure.settings import store_url
from pauseledger.infrastructure.stories import ask, asked, axes, turn
from pauseledger.infrastructure.wiring import sqlite_path

CLOSED = {"type": "object", "properties": {"x": {"type": "string"}}, "additionalProperties": False}


def odd(**functions):
    given = {"as_text": lambda response: response["x"], **functions}
    return Interaction(name="odd", request_schema={}, response_schema=CLOSED, **given)


def odd_pause():
    return PauseCommand("odd", {"n": 1}, turn(), axes())


@pytest.mark.parametrize(
    "functions",
    [
        {"as_text": lambda response: response.pop("x")},
        {"cross_check": lambda request, response: response.update(y=1)},
        {"cross_check": lambda request, response: request.clear()},
        {"decision": lambda response: response.clear() or "answer"},
    ],
)
async def test_what_a_hosts_function_changes_changes_nothing(functions):
    async with open_ledger("memory:", LedgerSettings(interactions=[odd(**functions)])) as ledger:
        question = await asked(ledger, odd_pause())
        await question.answer({"x": "yes"})
        assert (await question.answer({"x": "yes"})).state == "answered"
        turned = await question.redeem(STORED)
        assert turned.outcome.response == {"x": "yes"}
        assert turned.outcome.request == {"n": 1}
        assert turned.history[-1]["content"] == "yes"


async def test_words_that_fail_later_consume_nothing():
    said = ["yes", None]
    broken = odd(as_text=lambda response: said.pop(0) if said else "yes")
    async with open_ledger("memory:", LedgerSettings(interactions=[broken])) as ledger:
        question = await asked(ledger, odd_pause())
        with pytest.raises(InteractionConfigurationError, match="nothing was consumed"):
            await question.redeem({"x": "yes"})
        assert (await question.redeem({"x": "yes"})).history[-1]["content"] == "yes"


async def test_a_rule_that_blocks_stops_no_other_pause():
    release = threading.Event()
    blocks = odd(cross_check=lambda request, response: None if release.wait(30) else "late")
    async with open_ledger("memory:", LedgerSettings(interactions=[blocks], threads=2)) as ledger:
        question = await asked(ledger, odd_pause())
        waiting = [asyncio.create_task(question.redeem({"x": "yes"})) for _ in range(2)]
        await asyncio.sleep(0.1)
        found = await asyncio.wait_for(ledger.story(question.pause_id), 20)
        assert len(found) == 1
        release.set()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert sum(not isinstance(one, Exception) for one in ended) == 1


async def test_a_renewal_that_swallows_its_cancellation_hangs_nobody():
    async with open_ledger("memory:", LedgerSettings(lease=1)) as ledger:
        turned = await (await asked(ledger)).redeem()
        renewing = asyncio.Event()

        async def stubborn(lead, fence, seconds):
            renewing.set()
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                return True

        ledger.pauses.renew = stubborn

        async def go_on():
            async with continuing(turned):
                await renewing.wait()

        await asyncio.wait_for(go_on(), 20)
        assert turned.settled


async def test_a_ledger_belongs_to_one_event_loop(tmp_path):
    settings = LedgerSettings(keys_directory=tmp_path / "keys")
    async with open_ledger(f"sqlite:///{tmp_path / 'l.db'}", settings) as ledger:
        with pytest.raises(InteractionConfigurationError, match="event loop"):
            await asyncio.to_thread(asyncio.run, ledger.capability.pause(ask()))
        await asked(ledger)


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%41", "with space", "ünï"])
def test_a_users_directory_names_its_own_file(name, monkeypatch, tmp_path):
    monkeypatch.delenv("PAUSELEDGER_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / name))
    assert sqlite_path(store_url(None)) == tmp_path / name / "pauseledger" / "ledger.db"


@pytest.mark.parametrize("url", ["sqlite:///l.db?mode=ro", "sqlite:///a#b.db", "sqlite:///", "sqlite:///a%00b"])
def test_a_url_that_would_name_another_file_is_turned_down(url):
    with pytest.raises(InteractionConfigurationError):
        sqlite_path(url)


@pytest.mark.parametrize(
    "fields",
    [
        {"turn": None}, {"turn": "text"}, {"axes": None}, {"axes": "axes"}, {"on_lapse": {}}, {"routing": None},
        {"routing": {}}, {"asked_by": "maria"}, {"agent": "agent"}, {"labels": 5}, {"supersedes": "x"},
        {"idempotency_key": 5}, {"run_started": "today"}, {"interaction": None},
    ],
)  # fmt: skip
def test_a_command_takes_nothing_for_what_it_is_not(fields):
    with pytest.raises(InteractionConfigurationError, match=next(iter(fields))):
        ask(**fields)


async def test_a_round_is_made_of_commands_and_a_turn_of_entries():
    async with open_ledger("memory:") as ledger:
        for given in ([None], "abc", [5]):
            with pytest.raises(InteractionConfigurationError, match="PauseCommand"):
                await ledger.capability.pause_round(given)
        for messages in (None, 5, {}):
            with pytest.raises(PauseRejected, match="turn_broken"):
                await ledger.capability.pause(ask(turn=Turn("openai-chat", messages)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Actor("x" * 256),
        lambda: Actor(" "),
        lambda: Actor("a", kind="robot"),
        lambda: Actor("a", method="free text"),
        lambda: Actor("a", authenticated_at="now"),
        lambda: Routing(groups="ops"),
        lambda: Routing(priority="high"),
        lambda: SettleCommand(None, None, 1, "finished", next=["x"]),
        lambda: SettleCommand(None, None, 1, "stalled", error_type="free text"),
        lambda: LedgerSettings(leeway=10**20),
    ],
)
def test_values_that_could_not_be_kept_are_named(make):
    with pytest.raises(InteractionConfigurationError):
        make()


def test_no_error_quotes_what_it_was_given():
    for make in (
        lambda: Scope(tenant_id=["secret"]),
        lambda: Axes(scope="secret", session_id="", run_id="", call_id=""),
    ):
        with pytest.raises(ValueError) as caught:
            make()
        assert "secret" not in str(caught.value)


async def test_the_largest_texts_that_are_taken_are_read_again():
    async with open_ledger("memory:") as ledger:
        who = Actor("x" * 255, on_behalf_of="y" * 255)
        question = await asked(ledger, asked_by=who, routing=Routing(assignees=["z" * 255] * 256))
        with pytest.raises(ResponseInvalid):
            await ledger.capability.answer(
                AnswerCommand(question.envelope(), {"answers": []}, *axes_of(question), answered_by=who)
            )
        assert (await question.redeem(answered_by=who)).fence == 1


def axes_of(question):
    stated = axes()
    return stated.scope, stated.session_id, stated.run_id, stated.call_id
