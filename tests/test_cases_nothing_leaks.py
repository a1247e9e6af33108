"""No token, key, request, answer or message text stands in a log line, an error, a repr or a traceback, on any path."""

import json
import logging
import traceback
from contextlib import suppress

import pytest
from pauseledger import (
    ASK_USER,
    STORED,
    Actor,
    AnswerCommand,
    Axes,
    Interaction,
    LapseAnswer,
    LapseCommand,
    LedgerError,
    PauseCommand,
    RecoverCommand,
    ReissueCommand,
    Routing,
    SettleCommand,
    StoreUnavailable,
    Turn,
    WithdrawCommand,
    continuing,
)
from pauseledger.infrastructure.stories import FORMAT, SCOPE, Asked, Stage, approve, asked, axes, turn

QUESTION_TEXT, LABEL, OTHER, SAID, KEY, ATTEMPT, NOTE, PERSON, ARGUMENT = (
    f"zq{n}-hush-{'x' * n}" for n in range(1, 10)
)
REQUEST = {
    "questions": [{"question": QUESTION_TEXT, "options": [{"label": LABEL}, {"label": "n"}], "allow_other": True}]
}
ANSWER = {"answers": [{"question_id": "q1", "selections": [LABEL]}]}
INVALID = {"answers": [{"question_id": "q1", "selections": [OTHER, OTHER]}]}
ANOTHER = {"answers": [{"question_id": "q1", "selections": [], "other": OTHER}]}
HUSH = [QUESTION_TEXT, LABEL, OTHER, SAID, KEY, ATTEMPT, NOTE, ARGUMENT]


@pytest.fixture
def stage(store_url, tmp_path):
    return Stage(store_url, tmp_path / "keys")


def throws(*values):
    raise RuntimeError(f"cannot judge {values}")


def unreachable(*_):
    raise StoreUnavailable("the database went away")


@pytest.fixture
async def ledger(stage):
    interactions = [
        Interaction(name=name, request_schema={}, response_schema={}, as_text=json.dumps, **{rule: throws})
        for name, rule in (("checks", "cross_check"), ("prepares", "prepare_request"), ("decides", "decision"))
    ]
    async with stage.ledger(interactions=interactions) as opened:
        yield opened


class Heard:
    """Everything that was told: what raised, and what was printed."""

    def __init__(self):
        self.told = []
        self.tokens = []
        self.errors = 0

    async def of(self, attempt):
        try:
            done = await attempt
        except Exception as error:
            self.errors += 1
            self.told += [str(error), repr(error), "".join(traceback.format_exception(error)), repr(vars(error))]
            return None
        self.print(done)
        return done

    def print(self, *things):
        for thing in things:
            self.told += [repr(thing), str(thing), f"{thing}"]
            if isinstance(getattr(thing, "token", None), str):
                self.tokens.append(thing.token)


def command(**fields):
    standard = {"interaction": ASK_USER, "request": REQUEST, "turn": turn(said=SAID), "axes": axes()}
    return PauseCommand(**{**standard, **fields})


async def everything(stage, ledger, heard, monkeypatch):
    """Take every path there is: success, each refusal, each error."""
    capability, by = ledger.capability, Actor(PERSON, method="oidc")

    async def ask(**fields):
        given = command(**fields)
        heard.print(given)
        receipt = await heard.of(capability.pause(given))
        return None if receipt is None else Asked(ledger, receipt, given.axes)

    question = await ask(idempotency_key=KEY, asked_by=by, routing=Routing(assignees=[PERSON]), labels={"a": "b"})
    named = {"pause_id": question.pause_id, "axes": question.axes}
    await ask(idempotency_key=KEY, request={"questions": []})
    await ask(idempotency_key=KEY, closes_in=60)
    evil = SCOPE.model_copy(update={"tenant_id": "evil"})
    for stated in ({"scope": evil}, {"session_id": "s"}, {"run_id": "r"}, {"call_id": "c"}, {"run_id": None}):
        await heard.of(question.redeem(ANSWER, axes=question.axes.model_copy(update=stated)))
    for response in (INVALID, ANOTHER | {"more": OTHER}, {OTHER: float("nan")}, OTHER, {1: OTHER, "1": LABEL}, STORED):
        await heard.of(question.redeem(response))
    for mangled in (question.token[:-1], question.token[:-1] + "!", question.token.lower(), question.token[4:], ""):
        await heard.of(ledger.redeem(mangled, ANSWER, axes=question.axes))
    heard.print(question.envelope(), question.command(ANSWER, attempt_key=ATTEMPT, answered_by=by), by)
    await heard.of(capability.answer(AnswerCommand(question.token, ANSWER, SCOPE, "s", "r", "c")))
    await heard.of(question.answer(ANSWER, answered_by=by, attempt_key=ATTEMPT))
    await heard.of(question.answer(ANOTHER))
    turned = await heard.of(question.redeem(STORED, attempt_key=ATTEMPT, answered_by=by))
    heard.print(turned.outcome, turned.outcome.turn, turned.outcome.observations, turned.dispatch)
    await heard.of(question.redeem(STORED, attempt_key=ATTEMPT))
    await heard.of(question.redeem(ANOTHER))
    await heard.of(capability.recover(RecoverCommand(**named)))
    with suppress(LedgerError):
        async with continuing(turned) as going:
            heard.print(going, going.turn)
            raise StoreUnavailable("the model's own store")
    again = await heard.of(capability.recover(RecoverCommand(**named)))
    await heard.of(capability.settle(SettleCommand(**named, fence=again.fence, end="finished")))
    await heard.of(capability.recover(RecoverCommand(**named)))
    await ask(idempotency_key=KEY)

    gone = await ask(occurrence=1, opens_in=0, closes_in=60, on_lapse=LapseAnswer(ANSWER))
    await heard.of(capability.reissue(ReissueCommand(gone.pause_id, axes=gone.axes, ends_earlier=True)))
    await heard.of(gone.redeem(ANSWER))
    withdrawal = WithdrawCommand(gone.pause_id, axes=gone.axes, note=NOTE)
    heard.print(withdrawal)
    await heard.of(capability.withdraw(withdrawal))
    await heard.of(gone.redeem(ANSWER))
    await heard.of(capability.lapse(LapseCommand(gone.pause_id, axes=gone.axes)))

    approval = approve(occurrence=2, arguments={"to": ARGUMENT}, turn=turn(said=SAID))
    allowed = Asked(ledger, await heard.of(capability.pause(approval)), approval.axes)
    heard.print(approval)
    await heard.of(allowed.redeem({"decision": "edit", "arguments": ARGUMENT}))
    heard.print(*(await heard.of(allowed.redeem({"decision": "approve"}))).dispatch)

    for number, name in enumerate(("checks", "prepares", "decides"), 3):
        host = await ask(interaction=name, request={"a": ARGUMENT}, occurrence=number)
        if host is not None:
            await heard.of(host.redeem({"b": OTHER}))
    for bad in (Turn(FORMAT, [{"role": SAID}]), Turn(FORMAT, f'["{SAID}"'.encode()), Turn(SAID[:3], [{"x": SAID}])):
        heard.print(bad)
        await ask(turn=bad, occurrence=9)
    await ask(request={"questions": [{"question": QUESTION_TEXT, "options": [LABEL]}]}, occurrence=9)
    await ask(labels={"note": "free text is no label"}, occurrence=9)

    tampered = await ask(occurrence=10)
    row = stage.rows(tampered.pause_id)[0]
    stage.alter(row, lambda segments: bytes([segments[0] ^ 1]) + segments[1:])
    await heard.of(tampered.redeem(ANSWER))
    stage.overwrite(row, row.state[:60])
    await heard.of(tampered.redeem(ANSWER))
    await heard.of(ledger.story(tampered.pause_id))
    with monkeypatch.context() as patch:
        patch.setattr(ledger.pauses._streams, "append", unreachable)
        await ask(occurrence=11)
        patch.setattr(ledger.pauses._streams, "load", unreachable)
        await heard.of(allowed.redeem(ANSWER))
    heard.print(ledger, capability, capability._services, ledger.pauses, ledger.recorder, ledger.recorder.identity())
    heard.print(*await ledger.story(question.pause_id), *await ledger.story(gone.pause_id))


async def test_whatever_happens_nothing_of_it_is_told(stage, ledger, caplog, monkeypatch, capfd):
    heard = Heard()
    with caplog.at_level(logging.DEBUG):
        await everything(stage, ledger, heard, monkeypatch)
    printed = capfd.readouterr()
    told = "\n".join([*heard.told, caplog.text, printed.out, printed.err])
    assert heard.errors > 30
    assert len(set(heard.tokens)) >= 7
    assert caplog.text.count("decision") > 30
    keys = [key["secret"] for key in json.loads((stage.keys / "keys.json").read_text())["keys"]]
    identity = ledger.recorder.identity().identity_key
    for name, secret in {
        **{f"secret {number}": secret for number, secret in enumerate(HUSH)},
        **{f"token {number}": token[8:60] for number, token in enumerate(heard.tokens)},
        **{f"key {number}": key for number, key in enumerate(keys)},
        "identity key": identity.hex(),
        "identity key as bytes": repr(identity)[2:-1],
    }.items():
        at = told.find(secret)
        assert at < 0, f"{name} is told: {told[max(0, at - 300) : at + 60]}"


async def test_nothing_of_it_stands_in_a_header_and_no_token_in_any_row(stage, ledger, monkeypatch):
    heard = Heard()
    await everything(stage, ledger, heard, monkeypatch)
    headers = "".join(json.dumps(row.header) for row in stage.rows() if len(row.state) > 60)
    for secret in [*HUSH, PERSON]:
        assert secret not in headers
    rows = b"".join(row.state for row in stage.rows())
    for token in heard.tokens:
        assert token.encode() not in rows
        assert token[8:60].encode() not in rows


async def test_a_log_line_is_json_with_ids_words_and_tags(ledger, caplog):
    with caplog.at_level(logging.INFO, "pauseledger"):
        question = await asked(ledger)
        with suppress(LedgerError):
            await question.redeem({"answers": []}, axes=Axes(**dict(question.axes)))
        await question.redeem()
    lines = [json.loads(record.message) for record in caplog.records if record.name == "pauseledger"]
    assert [line["decision"] for line in lines] == ["paused", "refused", "consumed"]
    assert {line["pause"] for line in lines} == {str(question.pause_id)}
    assert lines[1]["reason"] == "response_invalid"
    assert not any(value in caplog.text for value in ("acme", "session-1", "run-1", "call_1"))
