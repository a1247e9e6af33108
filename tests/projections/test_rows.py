"""Where rows are kept: one suite for the three stores, the library's own tracking suite among it."""

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from eventsourcing.persistence import IntegrityError, Tracking
from eventsourcing.tests.persistence import TrackingRecorderTestCase
from pauseledger.domain.axes import Scope
from pauseledger.domain.facts import rfc3339
from pauseledger.infrastructure import views_postgres
from pauseledger.infrastructure.memory import MemoryRecorder
from pauseledger.infrastructure.postgres import PostgresRecorder
from pauseledger.infrastructure.sqlite import SQLiteRecorder
from pauseledger.infrastructure.views import rows_of
from pauseledger.infrastructure.views_memory import MemoryRows
from pauseledger.projections.open_pauses import OpenPauses
from pauseledger.projections.projection import Projection
from pauseledger.projections.refusals import Refusals
from pauseledger.projections.rows import LOG, Change, LostRace, Place, Query, RowsRejected, Table, as_json, spelled

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Thing:
    id: UUID
    part: int
    scope: Scope | None
    text: str | None
    flag: bool
    at: datetime | None
    tags: tuple[str, ...]


THINGS = Table("things", Thing, ("id", "part"), (("scope", "at", "id"),))


# Collected by itself it would be abstract; here it is run by a test of each store.
TrackingRecorderTestCase.__test__ = False


class Things(Projection):
    name = "things"
    facts = frozenset()
    own_tables = (THINGS,)

    def fold(self, fact, page):
        raise NotImplementedError


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def recorder(request, tmp_path):
    if request.param == "memory":
        recorder = MemoryRecorder()
    elif request.param == "sqlite":
        recorder = SQLiteRecorder(tmp_path / "ledger.db")
    else:
        recorder = PostgresRecorder(request.getfixturevalue("pg_dsn"))
        _make_things(recorder)
    yield recorder
    recorder.close()


def _make_things(recorder):
    before = views_postgres.PROJECTIONS
    views_postgres.PROJECTIONS = (Things,)
    try:
        recorder.migrate()
    finally:
        views_postgres.PROJECTIONS = before


@pytest.fixture
def rows(recorder):
    return rows_of(Things(), recorder)


def thing(number, part=0, **fields):
    standard = {
        "id": str(UUID(int=number)),
        "part": part,
        "scope": spelled(Scope(tenant_id="acme")),
        "text": f"text {number}",
        "flag": 0,
        "at": rfc3339(BEGIN + timedelta(seconds=number)),
        "tags": "[]",
    }
    return {**standard, **fields}


def put(rows, *things, gone=()):
    at = rows.place()
    rows.save(at, {THINGS: Change([THINGS.key_of(one) for one in gone], come(*things))}, at.position + 1)


def come(*things):
    return list(map(THINGS.row_of, things))


@pytest.mark.parametrize("name", ["test_insert_tracking", "test_wait"])
def test_the_librarys_own_suite_for_what_tracks_a_position_passes(rows, name):
    class Case(TrackingRecorderTestCase):
        def create_recorder(self):
            return rows

    Case(name).debug()


def test_a_batch_and_its_position_are_written_together_or_not_at_all(rows):
    at = rows.place()
    assert at == Place(1, 0)
    rows.save(at, {THINGS: Change([], come(thing(1), thing(2)))}, 7)
    assert rows.place() == Place(1, 7)
    with pytest.raises(LostRace):
        rows.save(at, {THINGS: Change([("x", 0)], come(thing(3)))}, 9)
    assert rows.place() == Place(1, 7)
    assert rows.select(Query(THINGS, order=("id",))) == [thing(1), thing(2)]


@pytest.mark.parametrize("bad", [{"part": 1 << 80}, {"text": "\ud800"}])
def test_what_a_store_cannot_hold_is_turned_down_with_its_whole_batch(rows, bad):
    put(rows, thing(1))
    with pytest.raises(RowsRejected):
        put(rows, thing(2), thing(3, **bad), gone=[thing(1)])
    assert rows.place() == Place(1, 1)
    assert rows.select(Query(THINGS)) == [thing(1)]


def test_rows_come_back_as_they_were_whatever_people_called_things(rows):
    things = [
        thing(1, text="nul \0 and \\ and \\0 and \\\\0"),
        thing(2, text=None, at=None, tags=as_json(["0123456789abcdef", "\0\\"]), flag=1),
        thing(3, scope="", text="\u202e\U0001f600 '\"%s{x}?"),
        thing(4, text="None"),
        thing(5, text="tab \t, \r\n and \\N and \\t"),
    ]
    put(rows, *things)
    assert sorted(rows.select(Query(THINGS)), key=lambda row: row["id"]) == things
    for one in (things[0], *things[2:]):
        assert rows.select(Query(THINGS, (("text", "=", one["text"]),))) == [one]
    assert rows.find(1, THINGS, [THINGS.key_of(one) for one in things] + [("0" * 8 + str(UUID(int=9))[8:], 0)]) == {
        THINGS.key_of(one): one for one in things
    }


def test_rows_change_and_go(rows):
    put(rows, thing(1), thing(1, part=1), thing(2))
    put(rows, thing(1, text="changed"), gone=[thing(1), thing(2)])
    assert rows.select(Query(THINGS, order=("id", "part"))) == [thing(1, text="changed"), thing(1, part=1)]


def test_every_store_answers_as_memory_does(rows):
    chance = random.Random(4)
    tags = [f"{number:016x}" for number in range(4)]
    scopes = [spelled(Scope(tenant_id=name, sub_tenant_id=sub)) for name in "ab" for sub in (None, "")]
    things = [
        thing(
            number,
            part=chance.randrange(3),
            scope=chance.choice([*scopes, ""]),
            text=chance.choice(["x", "y", None]),
            flag=chance.randrange(2),
            at=rfc3339(BEGIN + timedelta(microseconds=chance.randrange(9) * 100_000)),
            tags=as_json(chance.sample(tags, chance.randrange(3))),
        )
        for number in range(60)
    ]
    put(rows, *things)
    memory = MemoryRows(Things())
    put(memory, *things)
    conditions = [
        ("scope", "=", Scope(tenant_id="a")), ("scope", "=", Scope(tenant_id="a", sub_tenant_id="")), ("text", "=", "x"),
        ("flag", "=", True), ("+flag", "=", 0), ("+text", "=", "y"), ("part", "in", [0, 2]), ("id", "in", [UUID(int=n) for n in range(0, 60, 2)]),
        ("at", ">", BEGIN + timedelta(milliseconds=300)), ("at", "<=", BEGIN + timedelta(milliseconds=500)),
        ("tags", "has", tags[1]), ("text", "in", ["x", "z"]),
    ]  # fmt: skip
    for _ in range(60):
        where = chance.sample(conditions, chance.randrange(3))
        order, descending = chance.choice([("id",), ("at", "id"), ("part", "at", "id")]), chance.random() < 0.5
        whole = memory.select(Query(THINGS, where, order, descending))
        assert rows.select(Query(THINGS, where, order, descending)) == whole
        if whole:
            cut = chance.randrange(len(whole))
            after = tuple(whole[cut][name] for name in order)
            page = Query(THINGS, where, order, descending, after, limit=5)
            assert rows.select(page) == memory.select(page) == whole[cut + 1 :][:5]
            assert rows.select(Query(THINGS, where, order, descending, limit=1, offset=cut)) == [whole[cut]]
        by = chance.choice([("scope",), ("text", "flag")])
        assert rows.tally(THINGS, by, where) == memory.tally(THINGS, by, where)


def test_two_views_in_one_place_keep_their_own_positions(recorder):
    one, other = rows_of(OpenPauses(), recorder), rows_of(Refusals(), recorder)
    one.insert_tracking(Tracking(LOG, 5))
    assert (one.max_tracking_id(LOG), other.max_tracking_id(LOG)) == (5, None)
    other.insert_tracking(Tracking(LOG, 3))
    assert (one.place().position, other.place().position) == (5, 3)
    with pytest.raises(IntegrityError):
        one.insert_tracking(Tracking(LOG, 4))


def test_a_build_grows_beside_the_live_one_and_takes_its_place_once_it_is_as_far(rows):
    put(rows, thing(1))
    new = rows.begin_build()
    assert new == Place(2, 0)
    assert not rows.swap(2)
    put(rows, thing(2))
    rows.save(new, {THINGS: Change([], come(thing(3)))}, 1)
    assert not rows.swap(2)
    assert {row["id"] for row in rows.select(Query(THINGS))} == {thing(1)["id"], thing(2)["id"]}
    rows.save(Place(2, 1), {}, 2)
    rows.index_build(2)
    assert rows.swap(2)
    assert not rows.swap(2)
    assert rows.place() == Place(2, 2)
    assert rows.select(Query(THINGS)) == [thing(3)]
    # Whoever folded into the old build hears of it by losing.
    with pytest.raises(LostRace):
        rows.save(Place(1, 2), {THINGS: Change([], come(thing(4)))}, 3)
    assert rows.place_of(1) is None


def test_a_build_that_was_left_is_begun_anew_and_whoever_works_on_it_still_never_meets_the_new_one(rows):
    left = rows.begin_build()
    rows.save(left, {THINGS: Change([], come(thing(1), thing(2)))}, 5)
    again = rows.begin_build()
    assert (again.position, again.build > left.build) == (0, True)
    assert (rows.place_of(left.build), rows.under_way()) == (None, again)
    # The new one is where the old one was when somebody looked; what was folded then is not of it.
    rows.save(again, {THINGS: Change([], come(thing(1)))}, 5)
    with pytest.raises(LostRace):
        rows.save(Place(left.build, 5), {THINGS: Change([], come(thing(3)))}, 6)
    assert not rows.swap(left.build)
    rows.index_build(again.build)
    assert rows.swap(again.build)
    assert rows.under_way() is None
    assert rows.select(Query(THINGS)) == [thing(1)]
    assert rows.begin_build().build > again.build


def test_a_third_build_starts_empty_where_the_first_one_was(rows):
    put(rows, thing(1))
    for build in (2, 3):
        assert rows.begin_build() == Place(build, 0)
        rows.save(Place(build, 0), {THINGS: Change([], come(thing(build)))}, 1)
        rows.index_build(build)
        assert rows.swap(build)
    assert rows.select(Query(THINGS)) == [thing(3)]


def test_many_rows_are_written_as_few_are_whatever_one_among_them_is(rows):
    many = [thing(number, text="plain" if number % 7 else None) for number in range(2500)]
    many[1700] = thing(1700, text="None")
    many[2400] = thing(2400, text="\\\t")
    put(rows, *many)
    assert rows.select(Query(THINGS, order=("id",))) == many


@pytest.mark.parametrize("odd", [{"a": 1}, ["x"]])
def test_what_is_of_no_columns_kind_is_turned_down(rows, odd):
    with pytest.raises(RowsRejected):
        put(rows, thing(1), thing(2, text=odd))
    assert rows.place() == Place(1, 0)
