"""An unmodified eventsourcing reader follows our log, on every store."""

import threading

import pytest
from eventsourcing.application import LocalNotificationLog
from eventsourcing.persistence import Tracking, TrackingRecorder
from eventsourcing.popo import POPOTrackingRecorder
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore
from eventsourcing.projection import ApplicationSubscription, Projection
from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore
from eventsourcing.system import NotificationLogReader
from pauseledger import RecoverCommand, ScopeMismatch, continuing
from pauseledger.domain.facts import FACTS, Consumed, Paused
from pauseledger.infrastructure.stories import SCOPE, Stage, asked, asked_round, axes, refusal, round_of
from psycopg.conninfo import conninfo_to_dict


@pytest.fixture
def stage(store_url, tmp_path):
    return Stage(store_url, tmp_path / "keys")


@pytest.fixture
async def ledger(stage):
    async with stage.ledger() as opened:
        yield opened


@pytest.fixture
def stock(stage):
    """Give the library's own recorder on our store, which it did not make; none of our code is in it."""
    if stage.memory is not None:
        yield stage.memory
        return
    if stage.url.startswith("sqlite"):
        yield SQLiteApplicationRecorder(SQLiteDatastore(stage.url.removeprefix("sqlite:///")))
        return
    where = conninfo_to_dict(stage.url)
    with PostgresDatastore(
        where["dbname"], where["host"], "5432", where["user"], "", schema="pauseledger", originator_id_type="uuid"
    ) as datastore:
        yield PostgresApplicationRecorder(datastore)


async def lives(stage, ledger):
    """Let two rounds live, with a refusal, a stall and a recovery."""
    question = await asked(ledger)
    evil = axes(scope=SCOPE.model_copy(update={"tenant_id": "evil"}))
    await refusal(stage, question.redeem(axes=evil), ScopeMismatch)
    with pytest.raises(ZeroDivisionError):
        async with continuing(await question.redeem()):
            raise ZeroDivisionError
    async with continuing(await ledger.capability.recover(RecoverCommand(question.pause_id, axes=question.axes))):
        pass
    first, second = await asked_round(ledger, *round_of("call_1", "call_2"))
    await first.answer()
    await second.redeem()
    return question


async def test_the_librarys_recorder_reads_the_whole_log_in_order(stage, ledger, stock):
    question = await lives(stage, ledger)
    rows = stage.rows()
    assert stock.max_notification_id() == rows[-1].position
    notifications = stock.select_notifications(1, 1000)
    assert [(n.id, n.originator_id, n.originator_version, n.topic, bytes(n.state)) for n in notifications] == list(rows)
    middle = stock.select_notifications(rows[3].position, 4, stop=rows[9].position, inclusive_of_start=False)
    assert [n.id for n in middle] == [row.position for row in rows[4:8]]
    chosen = stock.select_notifications(1, 100, topics=["pause.paused@1"])
    assert [n.topic for n in chosen] == ["pause.paused@1"] * 3
    events = stock.select_events(question.pause_id)
    assert [event.originator_version for event in events] == list(range(1, 8))


async def test_the_librarys_notification_log_is_read_in_sections(stage, ledger, stock):
    await lives(stage, ledger)
    for log in (LocalNotificationLog(stock, section_size=5), ledger.pauses.log.notification_log):
        reader = NotificationLogReader(log, section_size=5)
        assert [n.id for n in reader.read(start=1)] == [row.position for row in stage.rows()]
        chosen = [n.topic for section in reader.select(start=1, topics=["pause.stalled@1"]) for n in section]
        assert chosen == ["pause.stalled@1"]


class Counts(POPOTrackingRecorder):
    """A view of our own, kept by the library's tracking."""

    def __init__(self):
        super().__init__()
        self.by_kind = {}

    def count(self, kind, tracking):
        self.insert_tracking(tracking)
        self.by_kind[kind] = self.by_kind.get(kind, 0) + 1


class Counting(Projection[TrackingRecorder]):
    """One of the library's projections over our facts."""

    name = "counting"
    topics = ()

    def process_event(self, domain_event, tracking):
        self.view.count(type(domain_event), tracking)


async def test_a_projection_folds_the_facts_and_keeps_its_place(stage, ledger, stock):
    await lives(stage, ledger)
    view = Counts()
    projection = Counting(view)
    reader = NotificationLogReader(LocalNotificationLog(stock), section_size=5)

    def follow():
        last = view.max_tracking_id("pauseledger")
        for notification in reader.read(start=(last or 0) + 1):
            fact = ledger.pauses.mapper.to_domain_event(notification)
            projection.process_event(fact, Tracking("pauseledger", notification.id))

    follow()
    assert view.by_kind[Paused] == 3
    assert view.by_kind[Consumed] == 3
    assert sum(view.by_kind.values()) == len(stage.rows())
    await asked(ledger, axes=axes(run_id="run-9"))
    follow()
    follow()
    assert view.by_kind[Paused] == 4
    assert view.max_tracking_id("pauseledger") == stage.rows()[-1].position


async def test_facts_satisfy_the_librarys_protocol_of_domain_events(stage, ledger):
    question = await lives(stage, ledger)
    log = ledger.pauses.log
    told = [log.mapper.to_domain_event(event) for event in log.recorder.select_events(question.pause_id)]
    assert [fact.originator_version for fact in told] == list(range(1, 8))
    assert {fact.originator_id for fact in told} == {question.pause_id}
    assert {type(fact) for fact in told} <= set(FACTS)
    again = [log.mapper.to_stored_event(fact) for fact in told[:1]]
    assert again[0].topic == "pause.paused@1"


async def test_a_subscription_of_the_librarys_is_told_of_new_facts_in_memory(tmp_path):
    stage = Stage("memory:", tmp_path / "keys")
    async with stage.ledger() as ledger:
        await asked(ledger)
        seen = []

        def follow():
            with ApplicationSubscription(ledger.pauses.log, gt=0) as subscription:
                for fact, tracking in subscription:
                    seen.append((type(fact), tracking.notification_id))
                    if len(seen) == 3:
                        return

        following = threading.Thread(target=follow)
        following.start()
        await (await asked(ledger)).redeem()
        following.join(10)
        assert [kind.__name__ for kind, _ in seen] == ["Paused", "Answered", "Consumed"]
        assert [position for _, position in seen] == [1, 2, 3]


async def test_a_database_that_cannot_call_anybody_says_so(stage, ledger):
    if stage.memory is not None:
        return
    with pytest.raises(NotImplementedError, match="poll"):
        ledger.recorder.subscribe()
