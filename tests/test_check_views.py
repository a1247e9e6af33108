"""Check holds every row of every view against the log, whichever way it is compared, on both databases."""

import asyncio
import sqlite3
from contextlib import closing, contextmanager
from itertools import zip_longest

import psycopg
import pytest
from pauseledger import Actor, LedgerSettings, Refusal, open_ledger
from pauseledger.infrastructure.check_views import views_faults
from pauseledger.infrastructure.headers import Log
from pauseledger.infrastructure.keys import KeyFile
from pauseledger.infrastructure.mapper import FactMapper
from pauseledger.infrastructure.sqlite import SQLiteRecorder
from pauseledger.infrastructure.stories import ANSWER, asked, axes
from pauseledger.infrastructure.views import rows_of
from pauseledger.infrastructure.wiring import open_recorder
from pauseledger.projections import PROJECTIONS
from pauseledger.projections.refusals import Refusals


async def lead(url, keys):
    """Leave pauses that are open, answered and refused, with texts that one of the stores has to spell apart."""
    KeyFile(keys).create()
    async with open_ledger(url, LedgerSettings(keys_directory=keys)) as ledger:
        for turn in range(4):
            told = {"axes": axes(session_id=r"s\0"), "asked_by": Actor("planner")}
            one = await asked(ledger, idempotency_key=str(turn), **told)
            with pytest.raises(Refusal):
                await ledger.redeem(one.token, ANSWER, axes=axes(session_id="another"))
            if turn % 2:
                await one.redeem(ANSWER)
        await ledger.views.catch_up()


class Owner:
    """Whoever owns the database that the views are in."""

    def __init__(self, url):
        self.postgres = url.startswith("postgres")
        self.at = psycopg.connect(url, autocommit=True) if self.postgres else sqlite3.connect(url[10:])

    def close(self):
        self.at.close()

    def do(self, statement, *values):
        if self.postgres:
            statement = statement.replace("?", "%s").replace("view_", "pauseledger_views.")
        done = self.at.execute(statement, values)
        found = done.fetchall() if done.description else []
        self.at.commit()
        return found


@contextmanager
def opened(url):
    """The log of a ledger, its views, and a way to change their rows behind everybody's back."""
    with closing(open_recorder(url, LedgerSettings())) as recorder, closing(Owner(url)) as owner:
        ledger_id = recorder.identity().ledger_id
        views = [(one, rows_of(one, recorder)) for one in (projection() for projection in PROJECTIONS)]
        yield Log(recorder, FactMapper(ledger_id), ledger_id), views, owner


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_every_column_of_every_row_of_every_view_is_held_against_the_log(store, request, tmp_path, monkeypatch):
    monkeypatch.setattr("pauseledger.infrastructure.check_views._PAGE", 3)
    monkeypatch.setattr("pauseledger.infrastructure.check_views._BATCH", 5)
    url = f"sqlite:///{tmp_path / 'l.db'}" if store == "sqlite" else request.getfixturevalue("pg_dsn")
    asyncio.run(lead(url, tmp_path / "keys"))
    with opened(url) as (log, views, owner):
        assert list(views_faults(log, views)) == []
        # A change of each view at once: each has to be found by itself.
        for turn in zip_longest(*(every_change(owner, projection) for projection, _ in views)):
            there = [one for one in turn if one is not None]
            kept = {name: owner.do(f"SELECT * FROM {name}") for _, name, _ in there}
            for _, _, statement in there:
                owner.do(*statement)
            found = list(views_faults(log, views))
            assert {fault.view for fault in found} == {view for view, _, _ in there}, there
            for name, rows in kept.items():
                owner.do(f"DELETE FROM {name}")
                for row in rows:
                    owner.do(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", *row)
        assert list(views_faults(log, views)) == []
        if store == "sqlite":
            owner.do("UPDATE view_history_pauses_4b SET session_id = CAST(x'ff' AS TEXT)")
            assert [fault.view for fault in views_faults(log, views)] == ["history"]
        owner.do("DELETE FROM view_tracking WHERE view = ?", Refusals().id)
        assert "refusals" in [fault.view for fault in views_faults(log, views)]
        if store == "postgresql":
            owner.do("DROP TABLE view_stranded_rounds_2b, view_history_facts_4b")
            assert {"refusals", "stranded", "history"} == {fault.view for fault in views_faults(log, views)}


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_a_row_that_no_fact_made_is_found_wherever_it_stands(store, request, tmp_path):
    url = f"sqlite:///{tmp_path / 'l.db'}" if store == "sqlite" else request.getfixturevalue("pg_dsn")
    asyncio.run(lead(url, tmp_path / "keys"))
    with opened(url) as (log, views, owner):
        # Tables that are compared right away, from the position on at which the batch before ended.
        kept = {
            f"view_{table.name}_{one.revision}b": list(table.columns).index("position")
            for one, _ in views
            for table in one.tables
            if table.key == ("position",)
        }
        rows = {name: row for name in kept for row in owner.do(f"SELECT * FROM {name} LIMIT 1")}
        assert len(rows) > 1
        for at in (-(2**40), -7, 0, 2**40):
            for name, row in rows.items():
                invented = (*row[: kept[name]], at, *row[kept[name] + 1 :])
                owner.do(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", *invented)
            found = {(fault.says.split()[3], fault.position) for fault in views_faults(log, views)}
            assert found == {(name[len("view_") :].rpartition("_")[0], at) for name in rows}
            for name in rows:
                owner.do(f"DELETE FROM {name} WHERE position = ?", at)
        assert list(views_faults(log, views)) == []


@pytest.mark.parametrize("at", [-7, 0, 7])
def test_a_row_in_a_view_that_has_folded_nothing_is_found(at, tmp_path):
    url = f"sqlite:///{tmp_path / 'l.db'}"
    with closing(SQLiteRecorder(tmp_path / "l.db")) as recorder, closing(Owner(url)) as owner:
        ledger_id = recorder.identity().ledger_id
        log, views = Log(recorder, FactMapper(ledger_id), ledger_id), [(Refusals(), rows_of(Refusals(), recorder))]
        assert list(views_faults(log, views)) == []
        ((name,),) = owner.do("SELECT name FROM sqlite_master WHERE name LIKE 'view_refusal_attempts__b'")
        owner.do(f"INSERT INTO {name} (position) VALUES (?)", at)
        assert [fault.position for fault in views_faults(log, views)] == [at]


def every_change(owner, projection):
    """List the changes of a row of each table: which view, which table, and the statement."""
    for table in projection.tables:
        name = f"view_{table.name}_{projection.revision}b"
        rows = owner.do(f"SELECT * FROM {name}")
        for was in rows[len(rows) // 2 :][:1]:
            yield from ((projection.name, name, statement) for statement in changes(table, name, was))


def changes(table, name, was):
    """List what may become of a row: gone, there twice, or with another value in one of its columns."""
    columns = list(table.columns)
    key = " AND ".join(f'"{column}" = ?' for column in table.key)
    keys = [was[columns.index(column)] for column in table.key]
    yield f"DELETE FROM {name} WHERE {key}", *keys
    other = [another(table.columns[column], value) for column, value in zip(columns, was, strict=True)]
    yield f"INSERT INTO {name} VALUES ({', '.join('?' * len(other))})", *other
    for column, value in zip(columns, other, strict=True):
        yield f'UPDATE {name} SET "{column}" = ? WHERE {key}', value, *keys


def another(kind, value):
    match kind:
        case "uuid":
            return "ffffffff-ffff-8fff-bfff-ffffffffffff"
        case "int" | "flag":
            return (value or 0) + 1000
        case _:
            return f"{value}x"
