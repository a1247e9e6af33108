"""The command line's `keys`: the life of the keys that seal tokens."""

import asyncio
import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import typer

from ..domain.errors import InteractionConfigurationError, StoreUnavailable
from .cli_inputs import Where, grouped
from .cli_shapes import Outcome, moment
from .keys import KeyFile, KeyLife, KeyRing
from .log_key import log_signer, no_other_key
from .settings import KEYS_VARIABLE, keys_directory, store_url
from .standing import standing
from .store import wrapper_of
from .vault import Vault, vault_rows
from .wiring import vault_ring

keys = typer.Typer(
    help="The keys that seal tokens: make one, let every host read it, promote it, and retire the former when no pause "
    "needs it any more.",
    rich_markup_mode=None,
)

Kid = Annotated[str, typer.Argument(metavar="KID", help="The key's id, 8 hex digits.")]


@keys.command()
@grouped
def new(
    where: Where,
    *,
    vault: Annotated[
        bool, typer.Option("--vault", help="A key that wraps the vault's data keys, in place of one for tokens.")
    ] = False,
) -> Outcome:
    """Add a key that only opens. The very first key of its use mints (or wraps) at once."""
    file = _file(where)
    there = (keys_directory(where.keys_dir) / "keys.json").exists()
    if not there:
        file.create()
        return _told("key_made", next(life for life in file.list() if (life.use == "vault") == vault))
    return _told("key_made", file.new("vault" if vault else "tokens"))


@keys.command()
@grouped
def promote(where: Where, kid: Kid) -> Outcome:
    """Let a key mint. The one that minted goes on opening."""
    return _told("key_promoted", _file(where).promote(kid))


@keys.command()
@grouped
def retire(where: Where, kid: Kid) -> Outcome:
    """End a key: its tokens open no more. Refused while a pause made before it stopped minting is open or ready.

    A vault key leaves the file for good; refused while it wraps a data key of this ledger. Rewrap every other ledger
    that uses the same keys first.
    """
    file = _file(where)
    if any(life.kid == kid and life.use == "vault" for life in file.list()):
        return _told("key_retired", _retired_from_vault(where, file, kid))

    async def inside() -> KeyLife:
        async with where.ledger() as ledger:
            leeway = timedelta(seconds=where.leeway)

            def blocked_by(stopped: datetime) -> Sequence[UUID]:
                return standing(ledger.pauses.facts(), made_before=stopped, now=ledger.pauses.now(), leeway=leeway)

            return await asyncio.to_thread(partial(file.retire, kid, blocked_by))

    return _told("key_retired", asyncio.run(inside()))


def _retired_from_vault(where: Where, file: KeyFile, kid: str) -> KeyLife:
    recorder = where.recorder()

    def require_unused() -> None:
        if any(kid in (wrapper_of(row.content), wrapper_of(row.person)) for row in vault_rows(recorder)):
            raise InteractionConfigurationError(f"vault key {kid} still wraps data keys; run `pauseledger keys rewrap`")

    def needed(_: datetime) -> Sequence[UUID]:
        # It wraps nothing new by now, but what it wrapped may wait for its commit, and no reader sees that.
        recorder.writers_ended()
        require_unused()
        return ()

    try:
        require_unused()
        return file.retire(kid, needed)
    finally:
        recorder.close()


@keys.command()
@grouped
def rewrap(where: Where) -> Outcome:
    """Wrap every data key of the vault by the key that wraps now; on PostgreSQL as the tables' owner. Safe to repeat.

    With `retire` after it, what stands in older backups of the vault opens nowhere any more.
    """
    recorder = where.recorder()
    try:
        held = recorder.identity()
        ring = vault_ring(store_url(where.store), where.settings(), written=held.vault_kid is not None)
        if ring is None:
            raise InteractionConfigurationError("there is no vault key; make one by `pauseledger keys new --vault`")
        vault = Vault(held.ledger_id, ring)
        again = [(row, vault.rewrapped(row)) for row in vault_rows(recorder)]
        done = sum(recorder.rewrap(row, new) for row, new in again if new is not None)
    finally:
        recorder.close()
    return Outcome({"outcome": "rewrapped", "pauses": done}, [f"rewrapped the data keys of {done} pauses"])


@keys.command()
@grouped
def scrub(where: Where) -> Outcome:
    """Overwrite what destroyed keys left in the store's own files; on PostgreSQL a VACUUM, as the tables' owner."""
    recorder = where.recorder()
    try:
        done = recorder.scrub()
    finally:
        recorder.close()
    if not done:
        raise StoreUnavailable(
            "readers held the log of the file, and nothing was scrubbed; run it again once they ended"
        )
    return Outcome({"outcome": "scrubbed", "done": done}, ["scrubbed the vault"])


@keys.command(name="list")
@grouped
def list_keys(where: Where) -> Outcome:
    """Tell each key's id and life. No secret is shown."""
    named = os.environ.get(KEYS_VARIABLE)
    lives = tuple(KeyRing.from_environment(named)) if named else _file(where).list()
    return Outcome({"outcome": "keys", "keys": [_shape(life) for life in lives]}, [_line(life) for life in lives])


@keys.command()
@grouped
def log(
    where: Where,
    *,
    another: Annotated[
        bool, typer.Option("--another", help="Make a key though heads were signed by one that is not here any more.")
    ] = False,
) -> Outcome:
    """Tell the public key that this ledger's tree heads are signed with; the key is made where there is none."""
    directory = keys_directory(where.keys_dir)
    recorder = where.recorder()
    try:
        ledger_id = recorder.identity().ledger_id
        if not another:
            no_other_key(recorder, ledger_id, directory)
    finally:
        recorder.close()
    signer = log_signer(ledger_id, directory, make=True)
    assert signer is not None  # noqa: S101 - made
    public = str(signer.verifier)
    return Outcome({"outcome": "log_key", "origin": signer.name, "public_key": public}, [public])


def _file(where: Where) -> KeyFile:
    if os.environ.get(KEYS_VARIABLE):
        raise InteractionConfigurationError(f"the keys come from {KEYS_VARIABLE}; change them where it is set")
    return KeyFile(keys_directory(where.keys_dir))


def _told(word: str, life: KeyLife) -> Outcome:
    return Outcome({"outcome": word, **_shape(life)}, [_line(life)])


def _shape(life: KeyLife) -> dict[str, Any]:
    return {
        "kid": life.kid,
        "state": life.state,
        "made_at": moment(life.made_at),
        "stopped_minting_at": moment(life.stopped_minting_at),
        "use": life.use,
    }


def _line(life: KeyLife) -> str:
    made = f", made {moment(life.made_at)}" if life.made_at else ""
    stopped = f", mints no more from {moment(life.stopped_minting_at)}" if life.stopped_minting_at else ""
    return f"{life.kid}  {life.state}{' (vault)' if life.use == 'vault' else ''}{made}{stopped}"
