"""TLS that proves the server's name, and a pooler that hands each statement to another session."""

import asyncio
import contextlib
import os
import pwd
import shutil
import ssl
import subprocess
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pauseledger import StoreUnavailable
from pauseledger.infrastructure import raw_check
from pauseledger.infrastructure.stories import Stage, asked, axes

# TLS


class Authority:
    """Makes certificates."""

    def __init__(self, name="trusted"):
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self.sign(self.name, self.key, x509.BasicConstraints(ca=True, path_length=None))

    def sign(self, name, key, extension):
        now = datetime.now(UTC)
        made = x509.CertificateBuilder().subject_name(name).issuer_name(self.name).public_key(key.public_key())
        made = made.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(hours=1))
        made = made.not_valid_after(now + timedelta(hours=1)).add_extension(extension, critical=True)
        return made.sign(self.key, hashes.SHA256())

    def write(self, path):
        path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        return path

    def context(self, host, folder):
        """Make what a server of that name shows."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        certificate = self.sign(subject, key, x509.SubjectAlternativeName([x509.DNSName(host)]))
        kind = serialization.PrivateFormat.PKCS8
        pem = certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
            serialization.Encoding.PEM, kind, serialization.NoEncryption()
        )
        (folder / "server.pem").write_bytes(pem)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem")
        return context


@contextlib.asynccontextmanager
async def tls(server, context):
    """Speak TLS before a server that does not, as PostgreSQL does where it was built with it; give the port."""
    tasks = set()

    async def serve(reader, writer):
        tasks.add(asyncio.current_task())
        with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
            # An SSLRequest, https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-SSL
            assert (await reader.readexactly(8))[4:] == (80877103).to_bytes(4, "big")
            writer.write(b"S")
            await writer.start_tls(context)
            behind, ahead = await asyncio.open_unix_connection(server)
            await asyncio.gather(carry(reader, ahead), carry(behind, writer))
        writer.close()

    async def carry(source, target):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
        target.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for task in tasks:
            task.cancel()


def through(dsn, port, ca):
    base = dsn.partition("?")[0].replace("@/", f"@localhost:{port}/")
    return f"{base}?hostaddr=127.0.0.1&gssencmode=disable&sslmode=verify-full&sslrootcert={ca}"


async def test_a_server_that_proves_its_name_is_spoken_to(pg, pg_dsn, tmp_path):
    authority = Authority()
    async with tls(f"{pg.host}/.s.PGSQL.5432", authority.context("localhost", tmp_path)) as port:
        url = through(pg_dsn, port, authority.write(tmp_path / "ca.pem"))
        async with Stage(url, tmp_path / "keys").ledger() as ledger:
            assert (await (await asked(ledger)).redeem()).fence == 1
    assert len(raw_check.read(pg_dsn).of("pause.consumed")) == 1


@pytest.mark.parametrize(
    ("signs", "host", "says"),
    [("another", "localhost", "certificate verify failed"), ("trusted", "elsewhere", "does not match host name")],
)
async def test_one_that_does_not_is_refused_and_the_error_says_so(pg, pg_dsn, tmp_path, signs, host, says):
    authorities = {name: Authority(name) for name in ("trusted", "another")}
    async with tls(f"{pg.host}/.s.PGSQL.5432", authorities[signs].context(host, tmp_path)) as port:
        url = through(pg_dsn, port, authorities["trusted"].write(tmp_path / "ca.pem"))
        with pytest.raises(StoreUnavailable, match=says) as refused:
            async with Stage(url, tmp_path / "keys").ledger(pool_timeout=2):
                pass
        assert refused.value.outcome == "not_started"


# Poolers


async def prepared(ledger):
    """Count the statements prepared in the sessions of a ledger's own connections."""
    async with ledger.pauses._streams._streams._pool.connection() as connection:
        [(count,)] = await (
            await connection.execute("SELECT count(*) FROM pg_prepared_statements", prepare=False)
        ).fetchall()
        return count


@pytest.mark.parametrize("pooled", [True, False])
async def test_nothing_is_prepared_in_the_server_where_a_pooler_stands_between(pg_dsn, tmp_path, pooled):
    async with Stage(pg_dsn, tmp_path / "keys").ledger(pooled=pooled, threads=1) as ledger:
        for number in range(8):
            question = await asked(ledger, idempotency_key=f"{number}")
            assert (await question.redeem()).fence == 1
        await (await asked(ledger)).answer()
        assert len([one async for one in ledger.owed(axes().scope)]) == 1
        assert (await prepared(ledger) == 0) is pooled


@contextlib.contextmanager
def pgbouncer(server):
    """Run PgBouncer in transaction mode, two server connections for all; give the folder of its socket."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("PgBouncer is not installed: `apt-get install pgbouncer`")
    folder = Path(tempfile.mkdtemp(prefix="pauseledger-pgbouncer-"))
    (folder / "users").write_text('"pauseledger" ""\n')
    (folder / "ini").write_text(
        f"[databases]\n* = host={server.host}\n[pgbouncer]\nlisten_port = 6432\nunix_socket_dir = {folder}\n"
        f"auth_type = trust\nauth_file = {folder / 'users'}\npool_mode = transaction\ndefault_pool_size = 2\n"
    )
    user = None
    if os.geteuid() == 0:
        # It refuses to run as root.
        user = next(name for name in ("postgres", "nobody") if name in {one.pw_name for one in pwd.getpwall()})
        shutil.chown(folder, user)
    running = subprocess.Popen([program, str(folder / "ini")], user=user, stderr=subprocess.DEVNULL, cwd="/")
    try:
        deadline = time.monotonic() + 20
        while not (folder / ".s.PGSQL.6432").exists():
            assert running.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield folder
    finally:
        running.terminate()
        running.wait()
        shutil.rmtree(folder)


async def test_pgbouncer_in_transaction_mode_serves_a_ledger_that_is_told_of_it(pg, pg_dsn, tmp_path):
    with pgbouncer(pg) as folder:
        url = f"{pg_dsn.partition('?')[0]}?host={folder}&port=6432"
        async with Stage(url, tmp_path / "keys").ledger(pooled=True) as ledger:
            questions = [await asked(ledger, idempotency_key=f"{number}") for number in range(12)]
            turns = await asyncio.gather(*(one.redeem() for one in questions for _ in range(3)), return_exceptions=True)
            assert sum(getattr(turn, "fence", None) == 1 for turn in turns) == 12
            await (await asked(ledger)).answer()
            assert len([one async for one in ledger.owed(axes().scope)]) == 1
        with pytest.raises(StoreUnavailable, match="startup parameter"):
            async with Stage(url, tmp_path / "keys").ledger(pool_timeout=2):
                pass
    raw = raw_check.read(pg_dsn)
    assert raw_check.faults(raw) == []
    assert (len(raw.of("pause.consumed")), raw_check.refusals(raw)) == (12, {"already_consumed": 24})
    with psycopg.connect(pg_dsn) as direct:
        assert direct.execute("SELECT count(*) FROM pauseledger.stored_events").fetchone() == (len(raw.rows),)
