"""The command line's first steps and its missteps: no keys, no ledger, the wrong role; nothing is made or written then."""

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

import psycopg
import pytest
import typer
from pauseledger import Actor, LedgerSettings, open_ledger
from pauseledger.domain.errors import InteractionConfigurationError
from pauseledger.infrastructure.cli import app
from pauseledger.infrastructure.keys import KeyFile, KeyRing
from pauseledger.infrastructure.stories import asked

PAUSE = str(UUID(int=7))
WHO = ("--operator", "olga", "--reason", "case-1", "--tenant", "acme")
AXES = ("--tenant", "acme", "--session", "s", "--run", "r", "--call", "c")

ON_A_LEDGER = [
    ("answer", "t", "--response", "answer.json", *AXES),
    ("redeem", "t", "--response", "answer.json", *AXES),
    ("recover", PAUSE, *AXES),
    ("settle", PAUSE, "--fence", "1", "--end", "finished", *AXES),
    ("withdraw", PAUSE, *AXES),
    ("reissue", PAUSE, *AXES),
    ("lapse", PAUSE, *AXES),
    ("show", PAUSE),
    ("present", PAUSE, "--to", "maria", "--rendering", "answer.json", *AXES),
    ("policy", "approval", "--none", "--operator", "olga"),
    ("policies",),
    ("switch", "run", "--on", "--operator", "olga"),
    ("switches",),
    ("hold", "place", *WHO),
    ("hold", "lift", "1", *WHO),
    ("hold", "list", "--tenant", "acme", "--operator", "olga"),
    ("retention", "9", *WHO),
    ("subject", "maria", "--tenant", "acme"),
    ("erase", "--of-person", "maria", "--content", *WHO),
    ("erase", PAUSE, "--content", "--operator", "olga", "--reason", "case-1"),
    ("open", "--all-tenants"),
    ("history", "--all-tenants", "--pause", PAUSE),
    ("refusals", "--all-tenants"),
    ("times", "--all-tenants"),
    ("stranded", "--all-tenants"),
    ("follow",),
    ("rebuild", "all"),
    ("lag",),
    ("events", "--all-tenants"),
    ("seal",),
    ("head",),
    ("prove", PAUSE),
    ("check",),
    ("export", "--all-tenants", "--out", "bundle", "--no-report", "--seal"),
    ("restored",),
    ("keys", "scrub"),
    ("keys", "rewrap"),
    ("keys", "log"),
]
#: What needs no ledger, or makes it.
WITHOUT = {"pause", "migrate", "demo", "keys new", "keys promote", "keys list", "keys retire"}


@pytest.fixture(autouse=True)
def an_answer_is_there(tmp_path):
    (tmp_path / "answer.json").write_text("{}")


def pause_in(url, keys):
    async def story():
        async with open_ledger(url, LedgerSettings(keys_directory=keys)) as ledger:
            return (await asked(ledger, asked_by=Actor("maria"))).pause_id

    return str(asyncio.run(story()))


def commands_of(group, name=""):
    for word, command in getattr(group, "commands", {}).items():
        yield from commands_of(command, f"{name}{word} ")
    if not hasattr(group, "commands"):
        yield name.strip()


def test_every_command_is_tried_here():
    tried = {" ".join(line[: 1 + (line[0] in {"hold", "keys"})]) for line in ON_A_LEDGER}
    assert tried | WITHOUT == set(commands_of(typer.main.get_command(app)))


@pytest.mark.parametrize("arguments", ON_A_LEDGER, ids=" ".join)
def test_a_ledger_that_is_not_there_is_said_to_be_missing_and_not_made(pl, tmp_path, arguments):
    KeyFile(tmp_path / "keys").create()
    code, out, said = pl(*arguments)
    assert (code, out) == (2, "")
    assert (
        said
        == f"there is no ledger at {tmp_path / 'ledger.db'}; name the one you mean by --store or PAUSELEDGER_STORE\n"
    )
    assert not (tmp_path / "ledger.db").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answer.json", "keys"]


def test_somebody_elses_file_becomes_no_ledger(pl, tmp_path):
    (tmp_path / "ledger.db").write_bytes(b"")
    code, out, said = pl("hold", "place", *WHO)
    assert (code, out) == (4, "")
    assert "there is no ledger in" in said
    assert str(tmp_path / "ledger.db") in said
    assert (tmp_path / "ledger.db").stat().st_size == 0


def test_on_postgresql_the_way_to_the_first_keys_is_told_at_every_step(pl, pg_dsn, tmp_path, monkeypatch):
    keys = tmp_path / "the keys"
    monkeypatch.setenv("PAUSELEDGER_KEYS_DIR", str(keys))
    monkeypatch.setenv("PAUSELEDGER_STORE", pg_dsn)
    code, out, _ = pl("migrate")
    made = f"pauseledger keys new --keys-dir {shlex.quote(str(keys))}"
    assert (code, "next    there is no key file" in out, f"`{made}`" in out) == (0, True, True)
    with pytest.raises(InteractionConfigurationError) as told:
        pause_in(pg_dsn, None)
    assert f"`{made}`" in str(told.value)
    assert "PAUSELEDGER_KEYS" in str(told.value)
    assert not keys.exists()
    assert pl(*shlex.split(made)[1:])[0] == 0
    assert json.loads(pl("migrate", "--json")[1]) == {"outcome": "migrated", "store": "postgresql", "done": []}
    pause_in(pg_dsn, None)


def test_the_first_ledger_on_postgresql_is_made_as_its_page_says(pg, tmp_path):
    page = (Path(__file__).parents[1] / "docs" / "postgres.md").read_text("utf-8")
    steps = re.findall(r"```bash\n(.*?)```", page.split("## The first ledger")[1].split("\n## ")[0], re.DOTALL)
    name = pg.fresh_database()
    with psycopg.connect(pg.dsn(name), autocommit=True) as owner:
        for role in ("app", "pauseledger_eraser", "auditor"):
            owner.execute(f"DO $$ BEGIN CREATE ROLE {role} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    bare = {one: said for one, said in os.environ.items() if not one.startswith("PAUSELEDGER_")}
    environment = {**bare, "OWNER": pg.dsn(name), "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    ran = subprocess.run(
        ["bash", "-ec", "".join(steps)], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert "next    there is no key file" in ran.stdout
    assert len(KeyRing.from_environment(ran.stdout.splitlines()[-1])) == 1
    pause_in(pg.dsn(name, "app"), tmp_path / "pauseledger" / "keys")
    pg.drop_database(name)


def test_keys_that_are_gone_are_asked_for_and_not_made_anew(pl, tmp_path, monkeypatch):
    pause = pause_in(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "keys")
    (tmp_path / "keys").rename(tmp_path / "kept")
    for command in (("show", pause), ("keys", "rewrap"), ("redeem", "t", "--response", "answer.json", *AXES)):
        code, _, said = pl(*command)
        assert (code, "put it back" in said, f"{tmp_path / 'keys' / 'keys.json'}" in said) == (2, True, True)
    assert not (tmp_path / "keys").exists()
    monkeypatch.setenv("PAUSELEDGER_KEYS_DIR", str(tmp_path / "kept"))
    assert pl("show", pause)[0] == 0
    monkeypatch.setenv("PAUSELEDGER_KEYS", "abc")
    assert pl("show", pause)[2].startswith("PAUSELEDGER_KEYS must read kid:secret")


def test_a_role_that_may_not_erase_is_told_so_before_anything_is_written(pl, pg, pg_dsn, tmp_path, monkeypatch):
    KeyFile(tmp_path / "keys").create()
    pause = pause_in(pg_dsn, tmp_path / "keys")
    with psycopg.connect(pg_dsn, autocommit=True) as owner:
        owner.execute("DO $$ BEGIN CREATE ROLE app LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    assert pl("migrate", "--store", pg_dsn, "--runtime-role", "app")[0] == 0
    database = psycopg.conninfo.conninfo_to_dict(pg_dsn)["dbname"]
    monkeypatch.setenv("PAUSELEDGER_STORE", pg.dsn(database, "app"))
    told = pl("show", pause, "--json")
    because = ("--content", "--person", "--operator", "olga", "--reason", "gdpr-17")
    for whose in ((pause,), ("--of-person", "maria", "--tenant", "acme")):
        code, out, said = pl("erase", *whose, *because)
        assert (code, out, len(said.splitlines())) == (2, "", 1)
        assert "the database role app may not destroy keys, and nothing was recorded" in said
        assert "--eraser-role" in said
    assert pl("show", pause, "--json") == told


def test_a_ledger_without_rows_is_said_to_have_none_to_sign(pl, tmp_path):
    pl("migrate")
    code, out, _ = pl("seal")
    assert (code, (tmp_path / "keys" / "log-key.json").exists()) == (0, True)
    assert "no head was signed: the ledger has no rows yet" in out


@contextmanager
def not_root():
    """Be somebody whom the rights of files concern."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_file_that_cannot_be_used_is_named_with_what_to_do(pl, monkeypatch):
    with TemporaryDirectory() as named:
        folder, keys = Path(named) / "ledger", Path(named) / "keys"
        folder.mkdir()
        pause = pause_in(f"sqlite:///{folder / 'ledger.db'}", keys)
        monkeypatch.setenv("PAUSELEDGER_STORE", f"sqlite:///{folder / 'ledger.db'}")
        monkeypatch.setenv("PAUSELEDGER_KEYS_DIR", str(keys))
        commands = (("show", pause), ("check",), ("open", "--all-tenants"), ("hold", "place", *WHO))
        # Whoever it is then may not be able to import what these need.
        assert [pl(*command)[0] for command in commands] == [0, 0, 0, 0]
        for path in (Path(named), keys, folder):
            path.chmod(0o555)
        for path in (*keys.iterdir(), *folder.iterdir()):
            path.chmod(0o444)
        with not_root():
            for command in commands:
                code, _, said = pl(*command)
                assert code == 4
                assert f"SQLite cannot use {folder / 'ledger.db'}: " in said
                assert "its disk or folder is read-only" in said
                assert "copy it" in said
        for path in (Path(named), keys, folder):
            path.chmod(0o755)
        (folder / "ledger.db").chmod(0o644)
        (folder / "ledger.db").write_bytes(b"what people wrote, and no database" * 99)
        code, _, said = pl("show", pause)
        assert (code, "it is no SQLite database; name the ledger's own file" in said) == (4, True)
