"""A real PostgreSQL for whoever asks, started once, and a fresh migrated database for each test; and a shell of their own."""

from collections.abc import Iterator

import psycopg
import pytest

pytest.register_assert_rewrite("pauseledger.infrastructure.testing", "pauseledger.infrastructure.testing_kernels")

from pauseledger.infrastructure.cli import run  # noqa: E402 - rewriting comes before the import
from pauseledger.infrastructure.postgres import PostgresRecorder  # noqa: E402 - the same
from pauseledger.infrastructure.testing import TemporaryPostgres  # noqa: E402 - the same


@pytest.fixture(scope="session")
def pg() -> Iterator[TemporaryPostgres]:
    """Start the server."""
    with TemporaryPostgres() as server:
        yield server


@pytest.fixture(scope="session")
def pg_template(pg: TemporaryPostgres) -> str:
    """Migrate once; copies are cheap."""
    name = pg.fresh_database()
    PostgresRecorder(pg.dsn(name)).migrate()
    return name


@pytest.fixture
def pg_dsn(pg: TemporaryPostgres, pg_template: str) -> Iterator[str]:
    """Give the URL of a migrated, empty database, as its owner; the ledger in it is no copy of the template's."""
    name = pg.fresh_database(pg_template)
    with psycopg.connect(pg.dsn(name), autocommit=True) as connection:
        connection.execute(
            "UPDATE pauseledger.ledger"
            " SET ledger_id = gen_random_uuid(), identity_key = sha256(uuid_send(gen_random_uuid()))"
        )
    yield pg.dsn(name)
    pg.drop_database(name)


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path) -> str:
    """Name each store in turn, empty and ready to open."""
    if request.param == "memory":
        return "memory:"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    return request.getfixturevalue("pg_dsn")


@pytest.fixture
def pl(tmp_path, monkeypatch, capsys):
    """Run a command on a store that is not there yet, and give its exit code, output and complaint."""
    for name in ("PAUSELEDGER_KEYS", "PAUSELEDGER_VAULT_KEYS", "PAUSELEDGER_LOG_KEY", "PAUSELEDGER_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PAUSELEDGER_STORE", f"sqlite:///{tmp_path / 'ledger.db'}")
    monkeypatch.setenv("PAUSELEDGER_KEYS_DIR", str(tmp_path / "keys"))
    monkeypatch.chdir(tmp_path)

    def command(*arguments):
        capsys.readouterr()
        code = run([str(one) for one in arguments])
        return code, *capsys.readouterr()

    return command
