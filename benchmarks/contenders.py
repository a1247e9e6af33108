"""Who takes part: the class that does the job, what it needs installed, and by whom it is measured."""

from dataclasses import dataclass

import machine


@dataclass(frozen=True)
class Contender:
    """One row of the tables.

    Attributes:
        name: What `--only` calls it.
        title: What the tables call it.
        module, kind: Where its class is, and which.
        base: The one whose figures of the same round its own are compared with.
        package: Whose version matters, beside the drivers'; it is left out where that is not installed.
    """

    name: str
    title: str
    module: str
    kind: str
    base: str = "hand_pg"
    package: str = "psycopg"

    @property
    def sqlite(self):
        return self.base == "hand_sqlite"

    @property
    def ours(self):
        return self.name.startswith("pauseledger")

    @property
    def missing(self):
        return machine.installed(self.package) is None


SAVERS = "langgraph-checkpoint-postgres", "langgraph-checkpoint-sqlite"
ALL = (
    Contender("hand_pg", "by hand, PostgreSQL", "peer_hand", "HandPg"),
    Contender("hand_packed_pg", "the same, EXTERNAL and zstd", "peer_hand", "HandPackedPg"),
    Contender("pauseledger_pg", "**pauseledger, PostgreSQL**", "peer_pauseledger", "PauseLedgerPg"),
    Contender(
        "eventsourcing_pg",
        "eventsourcing, PostgreSQL",
        "peer_eventsourcing",
        "EventsourcingPg",
        package="eventsourcing",
    ),
    Contender("dbos_pg", "DBOS, PostgreSQL", "peer_dbos", "DbosPg", package="dbos"),
    Contender("langgraph_pg", "LangGraph, PostgresSaver", "peer_langgraph", "LangGraphPg", package=SAVERS[0]),
    Contender("hand_sqlite", "by hand, SQLite", "peer_hand", "HandSqlite", "hand_sqlite"),
    Contender("pauseledger_sqlite", "**pauseledger, SQLite**", "peer_pauseledger", "PauseLedgerSqlite", "hand_sqlite"),
    Contender(
        "langgraph_sqlite", "LangGraph, SqliteSaver", "peer_langgraph", "LangGraphSqlite", "hand_sqlite", SAVERS[1]
    ),
)
#: Whose versions are told.
PACKAGES = ("psycopg", "eventsourcing", "dbos", "langgraph", *SAVERS)
#: Ours, by the one it is measured by.
PAUSELEDGER = {one.base: one.name for one in ALL if one.ours}
#: Who is in a quick run.
QUICK = [*PAUSELEDGER, *PAUSELEDGER.values()]
