"""The PostgreSQL that is measured on, and what it says of its own work: processor time, commits, log, statements."""

import os
import re
import subprocess
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import psycopg
from pauseledger.infrastructure.testing import TemporaryPostgres

HERE = Path(__file__).resolve().parent
#: How many microseconds more a flush takes on the slow disk.
FLUSH_US = 1500
#: Some peers make pools beside those for who works at once.
CONNECTIONS = "700"
#: Nobody works where so many looks, 10 ms apart, find nobody; after so many seconds it is gone on all the same.
LOOKS, PATIENCE = 3, 5
WORKING = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid()"
)
#: A statement in the server's log, behind the name of its database.
SAID = re.compile(r"\S+ LOG:  (?:statement:|execute )")


class Server(TemporaryPostgres):
    """A server as it comes, with commits that wait for the disk; it can tell what it did since it was asked before."""

    def __init__(self, **settings):
        super().__init__(durable=True, max_connections=CONNECTIONS, log_line_prefix="%d ", **settings)

    def fresh(self):
        """Make a database, and give its URL."""
        return self.dsn(self.fresh_database())

    def say(self, statement):
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            return connection.execute(statement).fetchone()

    def version(self):
        return self.say("SHOW server_version")[0]

    def position(self):
        return self.say("SELECT pg_current_wal_insert_lsn()")[0]

    @contextmanager
    def metered(self, done):
        """Add to `done`, for each of its `count` operations: the server's processor time (ms), commits and log (bytes).

        A commit that wrote nothing is none: it waits for no disk. `images` are whole pages, written for each page that
        changes the first time after a checkpoint.
        """
        begun, cpu = self.position(), self.cpu()
        yield
        done["server_cpu"] = (self.cpu() - cpu) / done["count"] * 1000
        done |= {name: figure / done["count"] for name, figure in self.log_between(begun, self.position()).items()}

    def rest(self):
        """Wait until nobody works here: a product may go on after it said that it was done, for `PATIENCE` at most."""
        until, idle = time.monotonic() + PATIENCE, 0
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            while idle < LOOKS and time.monotonic() < until:
                [busy] = connection.execute(WORKING).fetchone()
                idle = 0 if busy else idle + 1
                time.sleep(0.01)

    def cpu(self):
        """Tell the processor seconds of the server and of all it started, gone or there."""
        main = int((self._data / "postmaster.pid").read_text().split()[0])
        ticks = sum(map(int, stat(main)[11:15]))
        for process in Path("/proc").glob("[0-9]*"):
            try:
                found = stat(process.name)
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(found[1]) == main:
                ticks += int(found[11]) + int(found[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def log_between(self, begun, ended):
        """Count commits and bytes of the write-ahead log, by the server's own reader of it."""
        program = self._programs / "pg_waldump"
        command = [program, f"--path={self._data / 'pg_wal'}", f"--start={begun}", f"--end={ended}", "--stats=record"]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        found = {"commits": 0, "records": 0, "images": 0}
        for line in said.splitlines():
            words = line.replace("(", " ").replace(")", " ").split()
            if line.startswith("Transaction/COMMIT"):
                found["commits"] = int(words[1])
            elif line.startswith("Total"):
                # Each figure is followed by its share in brackets: the count, the records' bytes, the images'.
                figures = [int(word) for word in words[1:] if word.isdigit()]
                found["records"], found["images"] = figures[1:3]
        return found

    @contextmanager
    def listened(self):
        """Give a function that counts the statements said since it was asked before, by database.

        They are counted in the server's own log, which takes time: nothing else is measured meanwhile.
        """
        self.set_logging("all")
        with (Path(self.host) / "log").open(errors="replace") as log:
            log.seek(0, os.SEEK_END)
            yield lambda: Counter(line.partition(" ")[0] for line in log if SAID.match(line))
        self.set_logging("none")

    def set_logging(self, which):
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM SET log_statement = '{which}'")
            connection.execute("SELECT pg_reload_conf()")
        # Every backend hears of it before its next statement; none says when.
        time.sleep(0.3)


def stat(process):
    """Read a process's figures, from its state on."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def slow_disk(folder):
    """Compile what makes flushes slower, and give the environment in which they are; None without a compiler."""
    library = Path(folder) / "slow_disk.so"
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, HERE / "slow_disk.c", "-ldl"], check=True)
    except FileNotFoundError:
        return None
    return {"LD_PRELOAD": str(library), "BENCH_FLUSH_US": str(FLUSH_US)}


@contextmanager
def environment(**variables):
    """Set variables for what is started meanwhile."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
