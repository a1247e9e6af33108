"""A history tells each header whole, though its rows keep once what stands in other columns too."""

import json

import pytest
from pauseledger import Actor, Refusal, Scope
from pauseledger.infrastructure.check_views import views_faults
from pauseledger.infrastructure.mapper import FRONT, LENGTH_BYTES
from pauseledger.infrastructure.stories import Stage, ask, asked, axes, turn
from pauseledger.projections.history import STORED
from pauseledger.projections.rows import Query

SCOPES = [
    Scope(tenant_id='","attempt":{"\\', sub_tenant_id="", namespace="é\u2028\U0001f600"),
    Scope(tenant_id="acme", sub_tenant_id='a\n"b"'),
]


@pytest.fixture
def stage(store_url, tmp_path):
    return Stage(store_url, tmp_path / "keys")


def header(row):
    return row.state[FRONT : FRONT + int.from_bytes(row.state[FRONT - LENGTH_BYTES : FRONT], "big")]


def with_header(row, fields):
    raw = json.dumps(fields, separators=(",", ":")).encode()
    end = FRONT + len(header(row))
    return row.state[: FRONT - LENGTH_BYTES] + len(raw).to_bytes(LENGTH_BYTES, "big") + raw + row.state[end:]


async def told(ledger):
    """Everything that is told, by position, and what the view has stored of it."""
    await ledger.views.rebuild("history")
    pauses = {row["pause"] for row in stored(ledger)}
    found = [one for pause in pauses for one in await ledger.views.history.of_pause_of_all_tenants(pause)]
    return {one.position: one for one in found}


def stored(ledger):
    return ledger.views.runner._followers["history"].rows.select(Query(STORED))


async def test_every_field_is_told_as_it_was_written(stage):
    async with stage.ledger() as ledger:
        for number, scope in enumerate(SCOPES):
            where = axes(f"c{number}", scope=scope)
            pause = await asked(ledger, ask(f"c{number}", turn=turn(f"c{number}"), axes=where, asked_by=Actor("bot")))
            with pytest.raises(Refusal):
                await pause.redeem(axes=axes(f"c{number}", scope=scope, run_id="else"))
            await pause.redeem(answered_by=Actor("ann"))
        found = await told(ledger)
        assert len(found) == len(stage.rows()) >= 8
        for row in stage.rows():
            assert list(found[row.position].fields.items()) == list(json.loads(header(row)).items())
        assert {one.scope for one in found.values()} == set(SCOPES)
        # What is kept is JSON by itself, and says nothing twice.
        kept = [json.loads(row["header"]).keys() for row in stored(ledger)]
        assert all(names.isdisjoint(("ledger", "pause", "scope", "at")) for names in kept)


@pytest.mark.parametrize(
    ("change", "unreadable"),
    [
        (lambda fields: {"attempt": fields.pop("attempt"), **fields}, False),
        (lambda fields: {"attempt": fields["attempt"], "at": fields["at"]}, True),
        (lambda fields: dict(reversed(fields.items())), False),
        (lambda fields: {**fields, "ledger": "another"}, True),
    ],
)
async def test_a_header_that_begins_otherwise_is_kept_whole(stage, change, unreadable):
    async with stage.ledger() as ledger:
        pause = await asked(ledger)
        [row] = stage.rows(pause.pause_id)
        changed = change(json.loads(header(row)))
        stage.overwrite(row, with_header(row, changed))
        one = (await told(ledger))[row.position]
        assert (one.fields, one.unreadable) == (changed, unreadable)
        followers = ledger.views.runner._followers.values()
        await ledger.views.rebuild()
        assert list(views_faults(ledger.views._log, [(each.projection, each.rows) for each in followers])) == []
