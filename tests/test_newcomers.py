"""What newcomers stumbled over: a store that is not the one they meant, and commands that promised what did not happen."""

import asyncio
import dataclasses
import io
import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate
from pauseledger import Actor, InteractionConfigurationError, LedgerError, LedgerSettings, Turn, open_ledger
from pauseledger.infrastructure.anchors import anchor_of
from pauseledger.infrastructure.cli import run
from pauseledger.infrastructure.keys import KeyFile
from pauseledger.infrastructure.stories import ask, asked, axes
from pauseledger.projections.open_pauses import OpenPause

CALLS = [{"id": one, "type": "function", "function": {"name": "ask_user", "arguments": "{}"}} for one in ("c1", "c2")]
CHAT = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": None, "tool_calls": CALLS}]


@pytest.mark.parametrize(
    "url", ["sqlite:ledger.db", "sqlite:/ledger.db", "sqlite://ledger.db", "sqlite:///", "sqlite:"]
)
def test_a_url_with_too_few_slashes_is_no_other_files(pl, tmp_path, url):
    for command in ("migrate", "lag"):
        code, out, said = pl(command, "--store", url)
        assert (code, out) == (2, "")
        assert "with three or four slashes" in said
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_an_empty_text_is_not_the_users_own(pl, tmp_path):
    for command in (("migrate",), ("open", "--all-tenants"), ("restored",)):
        code, out, said = pl(*command, "--store", "")
        assert (code, out) == (2, "")
        assert "as of a variable that is not set" in said
    with pytest.raises(InteractionConfigurationError, match="empty text"):
        open_ledger("")
    assert list(tmp_path.iterdir()) == []


def test_texts_that_are_asked_for_where_no_key_opens_them_are_counted(pl, tmp_path, monkeypatch):
    async def story():
        async with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
            gone = await asked(ledger, idempotency_key="gone")
            await asked(ledger)
            await ledger.operator(Actor("olga")).erase(gone.pause_id, "content", "gdpr-17")

    asyncio.run(story())
    assert pl("seal")[0] == 0
    (tmp_path / "public-key.txt").write_text(pl("keys", "log")[1])
    command = ("export", "--tenant", "acme", "--content", "--no-report", "--public-key", tmp_path / "public-key.txt")
    told = pl(*command, "--out", tmp_path / "with keys")
    assert (told[0], "unread" in told[1]) == (0, False)
    monkeypatch.setenv("PAUSELEDGER_KEYS_DIR", str(tmp_path / "no keys"))
    # Two requests, two turns and a name: without keys nothing tells which of them were erased.
    assert "unread  5 texts are not told: the vault keys are not here" in pl(*command, "--out", tmp_path / "without")[1]


class Order(Aggregate):
    """An aggregate of the host's own."""


def test_an_eventsourcing_application_and_a_ledger_do_not_share_a_sqlite_file(pl, tmp_path):
    path = tmp_path / "ledger.db"
    with Application(env={"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": str(path)}) as orders:
        orders.save(Order())
    before = path.read_bytes()

    async def opened():
        async with open_ledger(f"sqlite:///{path}", LedgerSettings(keys_directory=tmp_path / "keys")) as ledger:
            await asked(ledger)

    with pytest.raises(InteractionConfigurationError, match="holds stored_events.* give the ledger a file of its own"):
        asyncio.run(opened())
    code, _, said = pl("migrate")
    assert (code, f"{path} is another program's" in said) == (2, True)
    assert path.read_bytes() == before


def test_a_ledger_moves_into_a_file_that_holds_other_tables_alone(pl, tmp_path):
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as host:
        host.execute("CREATE TABLE tickets (pause TEXT)")
    assert pl("migrate")[0] == 0
    assert pl("check")[0] == 0


def test_no_anchor_is_promised_a_head_that_nothing_signs(pl, pg_dsn, tmp_path):
    KeyFile(tmp_path / "keys").create()
    url = f"file://{tmp_path / 'head.txt'}"
    settings = LedgerSettings(keys_directory=tmp_path / "keys", anchors=[anchor_of(url)])

    async def followed():
        async with open_ledger(pg_dsn, settings) as ledger:
            await asked(ledger)
            async with ledger.follow():
                pass

    with pytest.raises(InteractionConfigurationError, match="`pauseledger keys log` makes one"):
        asyncio.run(followed())
    code, out, said = pl("seal", "--anchor", url, "--every", "60", "--store", pg_dsn)
    assert (code, out, "there is no log key" in said) == (2, "", True)
    assert pl("keys", "log", "--store", pg_dsn)[0] == 0
    assert pl("seal", "--anchor", url, "--store", pg_dsn)[0] == 0
    assert (tmp_path / "head.txt").exists()


def test_a_kept_head_that_is_none_is_named(pl, tmp_path):
    async def story():
        async with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
            await asked(ledger)

    asyncio.run(story())
    assert pl("seal")[0] == 0
    (tmp_path / "kept").write_text("no head")
    code, _, said = pl("head", "--since", "kept")
    assert (code, "(kept in kept)" in said) == (5, True)


def test_a_policy_for_an_interaction_that_nobody_knows_is_put_in_force_with_a_note(pl, tmp_path):
    (tmp_path / "rules.json").write_text('{"name": "two", "quorum": 2}')
    assert pl("migrate")[0] == 0
    told = {one: pl("policy", one, "--rules", "rules.json", "--operator", "o")[1] for one in ("aproval", "approval")}
    assert "no interaction aproval is known here (approval, ask_user)" in told["aproval"]
    assert "note" not in told["approval"]


def test_what_is_missing_of_a_command_is_told_without_a_stop_in_mid_sentence(pl):
    assert pl("switch", "run", "--operator", "o")[2] == "Missing option '--on'; see --help\n"


def test_a_window_that_is_no_number_is_told_its_unit(pl, tmp_path):
    async def story():
        async with open_ledger("memory:") as ledger:
            await asked(ledger, closes_in=1.5, idempotency_key=str(uuid4()))

    with pytest.raises(Exception, match="closes_in must be a whole number of seconds"):
        asyncio.run(story())


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"turn": Turn("anthropic", CHAT)}, "read as anthropic: the content of the last assistant message has to be"),
        ({"axes": axes(call_id="toolu_1")}, "does not reserve the call stated, but 'c1', 'c2'"),
        (
            {"interaction": "ask_usr"},
            "no interaction named 'ask_usr' is registered, but approval, ask_user; .*--interactions",
        ),
    ],
)
async def test_what_cannot_be_paused_tells_what_is_there_instead(changed, says):
    async with open_ledger("memory:") as ledger:
        given = {"turn": Turn("openai-chat", CHAT), "axes": axes(call_id="c1"), **changed}
        with pytest.raises(LedgerError, match=says):
            await asked(ledger, ask(**given))


async def test_an_object_of_a_clients_is_told_how_to_become_json():
    broken = [*CHAT[:1], {"role": "assistant", "content": None, "tool_calls": [Order()]}]
    async with open_ledger("memory:") as ledger:
        with pytest.raises(LedgerError, match=r"^not_json: in the turn: pass JSON .*`model_dump\(\)`$"):
            await asked(ledger, ask(turn=Turn("openai-chat", broken)))


def test_the_page_lists_every_field_of_an_inbox_row():
    page = (Path(__file__).parents[1] / "docs" / "projections.md").read_text("utf-8")
    told = page.partition("A row of the inbox has")[2].partition("The question itself")[0]
    assert sorted(re.findall(r"`(\w+)`", told)) == sorted(field.name for field in dataclasses.fields(OpenPause))


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp1252"])
def test_a_head_that_is_piped_under_an_older_locale_is_still_one(pl, tmp_path, monkeypatch, encoding):
    async def story():
        async with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
            await asked(ledger)

    asyncio.run(story())
    assert pl("seal")[0] == 0
    kept = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(kept, encoding=encoding))
    assert run(["head"]) == 0
    (tmp_path / "head.txt").write_bytes(kept.getvalue())
    assert run(["check", "--no-views", "--head", "head.txt"]) == 0


def test_help_is_given_to_who_asks_in_short(pl):
    for command in (("-h",), ("show", "-h"), ("keys", "new", "-h")):
        code, out, said = pl(*command)
        assert (code, out.startswith("Usage: pauseledger"), said) == (0, True, "")


def test_until_when_a_former_key_may_mint_is_no_past(pl, tmp_path):
    assert pl("keys", "new")[0] == 0
    [kid] = [line.split()[0] for line in pl("keys", "list")[1].splitlines() if "vault" not in line]
    new = pl("keys", "new")[1].split()[0]
    assert pl("keys", "promote", new)[0] == 0
    [former] = [line for line in pl("keys", "list")[1].splitlines() if line.startswith(kid)]
    until = datetime.fromisoformat(former.rpartition(", mints no more from ")[2])
    assert until > datetime.now(UTC)
