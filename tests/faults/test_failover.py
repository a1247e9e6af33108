"""A primary dies and its standby takes over: what may be open again, what closes it, and how it never happens."""

import time

import psycopg
import pytest
from pauseledger import Actor, AlreadyConsumed, ReissueCommand, StoreUnavailable, TokenSuperseded
from pauseledger.infrastructure import raw_check
from pauseledger.infrastructure.cli import app
from pauseledger.infrastructure.postgres import PostgresRecorder
from pauseledger.infrastructure.stories import Stage, asked
from pauseledger.infrastructure.testing import TemporaryPostgres
from typer.testing import CliRunner


class Pair:
    """A primary, and a standby that follows it."""

    def __init__(self, folder):
        self.primary, self.standby = TemporaryPostgres(), TemporaryPostgres()
        self.keys = folder / "keys"

    def __enter__(self):
        self.primary.start()
        PostgresRecorder(self.primary.dsn()).migrate()
        self.standby.follow(self.primary)
        return self

    def __exit__(self, *_):
        self.primary.remove()
        self.standby.remove()

    def before(self, **settings):
        """Open the ledger on the primary."""
        return Stage(self.primary.dsn(), self.keys).ledger(pool_timeout=5, **settings)

    def after(self):
        """Open it on what was the standby."""
        return Stage(self.standby.dsn(), self.keys).ledger(pool_timeout=5)

    def be_synchronous(self):
        """Have every commit wait for the standby."""
        with psycopg.connect(self.primary.dsn(), autocommit=True) as admin:
            admin.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            admin.execute("SELECT pg_reload_conf()")
        self.wait("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'", 1)

    def catch_up(self):
        """Wait until the standby has all of it."""
        self.wait("SELECT count(*) FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()", 1)

    def part(self):
        """Cut the line between the two."""
        with psycopg.connect(self.standby.dsn(), autocommit=True) as admin:
            admin.execute("ALTER SYSTEM SET primary_conninfo = ''")
            admin.execute("SELECT pg_reload_conf()")
        self.wait("SELECT count(*) FROM pg_stat_replication", 0)

    def wait(self, question, answer):
        deadline = time.monotonic() + 60
        with psycopg.connect(self.primary.dsn(), autocommit=True) as admin:
            while admin.execute(question).fetchone() != (answer,):
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def fail_over(self):
        """Let the primary die, and the standby take its place."""
        self.primary.stop("immediate")
        self.standby.promote()


@pytest.fixture
def pair(tmp_path):
    with Pair(tmp_path) as pair:
        yield pair


async def test_a_standby_that_lagged_opens_again_what_was_consumed_until_the_ledger_is_told(pair):
    async with pair.before() as ledger:
        twice, ended = [await asked(ledger, idempotency_key=name) for name in ("twice", "ended")]
        pair.catch_up()
        pair.part()
        assert [(await one.redeem()).fence for one in (twice, ended)] == [1, 1]
    pair.fail_over()
    async with pair.after() as ledger:
        # The loss: the same token, acknowledged as consumed before, wins again.
        assert (await twice.at(ledger).redeem()).fence == 1
        ran = CliRunner().invoke(app, ["restored", "--store", pair.standby.dsn(), "--keys-dir", str(pair.keys)])
        assert ran.exit_code == 0, ran.output
        # Said, it is closed: no token of before redeems, in processes that were open already as well.
        with pytest.raises(TokenSuperseded):
            await ended.at(ledger).redeem()
        by = ledger.operator(Actor("olga"))
        anew = await by.reissue(ReissueCommand(ended.pause_id, reason="restored"))
        assert (await ended.at(ledger).redeem(token=anew.token)).fence == 1
    assert raw_check.faults(raw_check.read(pair.standby.dsn())) == []


async def test_with_synchronous_replication_nothing_that_was_acknowledged_is_open_again(pair, monkeypatch):
    monkeypatch.setattr("pauseledger.infrastructure.postgres_async.SILENCE", 0.3)
    monkeypatch.setattr("pauseledger.domain.doubt.LONGEST", 2.0)
    pair.be_synchronous()
    async with pair.before(statement_timeout=1) as ledger:
        done, doubtful = [await asked(ledger, idempotency_key=name) for name in ("done", "doubtful")]
        assert (await done.redeem()).fence == 1
        pair.part()
        # The primary has committed it, and waits for a standby that is away. Nobody is told that it won.
        with pytest.raises(StoreUnavailable) as gone:
            await doubtful.redeem()
        assert gone.value.outcome == "unknown"
        pair.fail_over()
    async with pair.after() as ledger:
        with pytest.raises(AlreadyConsumed):
            await done.at(ledger).redeem()
        assert (await doubtful.at(ledger).redeem()).fence == 1
    raw = raw_check.read(pair.standby.dsn())
    assert raw_check.faults(raw) == []
    assert len(raw.of("pause.consumed")) == 2
