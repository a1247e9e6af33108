"""The key rings: which key mints, which keys open, and where they are kept.

Keys come from the environment (`KeyRing.from_environment`) or from a file of their own (`KeyFile`). A key that was
just made only opens; promoting lets it mint and leaves the former one opening; retiring ends that, once no pause
needs it. A vault key does the same for the data keys of the vault (vault.py): one wraps, all unwrap, and a retired one
leaves the file altogether, so that what it wrapped opens nowhere any more. Key ids are looked up in a dictionary and
nowhere else: no id ever becomes a path, a query or a name.

A running process reads a key file again at most every `REREAD_SECONDS`, and at most every `MISS_SECONDS` when it
meets a key id it does not know. So a rotation from the command line needs no restart: make a key, let a second
pass, promote it. Processes that already ran go on minting under the former key for up to `REREAD_SECONDS`, which
is why its `stopped_minting_at` lies `SETTLES` after the promotion.
"""

import base64
import binascii
import fcntl
import json
import logging
import os
import re
import secrets
import shlex
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Literal
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from ..domain.errors import InteractionConfigurationError

#: Where `from_environment` expects its text to come from.
ENVIRONMENT = "PAUSELEDGER_KEYS"
#: Where vault keys come from where `PAUSELEDGER_KEYS` gives the others.
VAULT_ENVIRONMENT = "PAUSELEDGER_VAULT_KEYS"
#: Where the directory of the key file comes from.
DIRECTORY_ENVIRONMENT = "PAUSELEDGER_KEYS_DIR"
#: The key file in its directory.
KEY_FILE = "keys.json"
KID_BYTES = 4
SECRET_BYTES = 32
#: A running process reads its key file again once what it knows is this old.
REREAD_SECONDS = 60.0
#: A token under an unknown key makes a process read the file again, but no more often than this.
MISS_SECONDS = 1.0
#: From a promotion until no process mints under the former key: one reading, and as much again for clocks that differ.
SETTLES = timedelta(seconds=2 * REREAD_SECONDS)

KeyState = Literal["opens", "mints", "retired"]
#: What a key is for: it seals tokens, or wraps the data keys in the vault (there `mints` means that it wraps new ones).
KeyUse = Literal["tokens", "vault"]

_KID = re.compile(r"[0-9a-f]{8}")
_SHAPE = (
    "must read kid:secret[,kid:secret...]: each kid 8 lower-case hex digits, used once; each secret "
    "32 random bytes in base64url; the first mints, all open"
)
_log = logging.getLogger("pauseledger.keys")


@dataclass(frozen=True, kw_only=True)
class KeyLife:
    """What may be told about a key.

    Attributes:
        kid: Its id, 8 hex digits; stands in every token it sealed.
        state: `mints` (one key of a ring), `opens`, or `retired` (opens nothing).
        made_at: When it was drawn (UTC); None where the environment gave it.
        stopped_minting_at: From when on no process mints under it (UTC); None while it mints, or never did.
        use: Whether it seals tokens or wraps the vault's data keys.
    """

    kid: str
    state: KeyState
    made_at: datetime | None = None
    stopped_minting_at: datetime | None = None
    use: KeyUse = "tokens"


@dataclass(frozen=True, kw_only=True)
class Key(KeyLife):
    """A key with its secret (32 bytes, in no repr)."""

    secret: bytes = field(repr=False)

    def life(self) -> KeyLife:
        """Leave the secret out."""
        return KeyLife(
            kid=self.kid,
            state=self.state,
            made_at=self.made_at,
            stopped_minting_at=self.stopped_minting_at,
            use=self.use,
        )


class KeyRing:
    """The keys a process works with. Safe to use from several threads; iterating tells lives, never secrets."""

    def __init__(self, keys: Iterable[Key], *, reload: Callable[[], Iterable[Key]] | None = None) -> None:
        """Take the keys, and how to read them again.

        `reload` may raise `InteractionConfigurationError`: the ring then stays as it is and a warning is logged,
        since a process that worked a minute ago shall not stop over a file somebody is repairing.

        Raises:
            InteractionConfigurationError: an id or secret of the wrong shape, an id used twice, or not exactly one
                key that mints.
        """
        self._keys = _by_kid(keys)
        self._reload = reload
        self._read_at = monotonic()
        self._reading = Lock()

    @classmethod
    def from_environment(cls, text: str, use: KeyUse = "tokens") -> "KeyRing":
        """Read `kid:base64url(32 bytes)`, comma-separated: the first mints, all open. Rotating takes a restart.

        Raises:
            InteractionConfigurationError: the text has another shape; the message never shows it.
        """
        entries = [entry.strip().partition(":") for entry in text.split(",")]
        keys = [
            Key(kid=kid, secret=_secret(secret), state="opens" if at else "mints", use=use)
            for at, (kid, _, secret) in enumerate(entries)
        ]
        if not _sound(keys):
            named = ENVIRONMENT if use == "tokens" else VAULT_ENVIRONMENT
            raise InteractionConfigurationError(f"{named} {_SHAPE}")
        return cls(keys)

    @classmethod
    def ephemeral(cls, use: KeyUse = "tokens") -> "KeyRing":
        """Draw one key that ends with the process, for a ledger that does as well."""
        return cls([_draw("mints", (), use)])

    @property
    def minting(self) -> Key:
        """The key that seals new tokens."""
        self._refresh(REREAD_SECONDS)
        return next(key for key in self._keys.values() if key.state == "mints")

    def by_kid(self, kid: bytes | str) -> Key | None:
        """Find the key that opens (4 bytes, or 8 hex digits). None where there is none, or it is retired."""
        name = kid if isinstance(kid, str) else kid.hex()
        self._refresh(REREAD_SECONDS)
        if name not in self._keys:
            self._refresh(MISS_SECONDS)
        key = self._keys.get(name)
        return None if key is None or key.state == "retired" else key

    def __iter__(self) -> Iterator[KeyLife]:
        return iter([key.life() for key in self._keys.values()])

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"<KeyRing {', '.join(f'{key.kid} {key.state}' for key in self._keys.values())}>"

    def _refresh(self, oldest: float) -> None:
        if self._reload is None or monotonic() - self._read_at < oldest:
            return
        with self._reading:
            # Whoever waited here finds what the other thread has just read.
            if monotonic() - self._read_at < oldest:
                return
            try:
                self._keys = _by_kid(self._reload())
            except InteractionConfigurationError as error:
                _log.warning("the key ring could not be read again, the one in memory goes on: %s", error)
            self._read_at = monotonic()


class KeyFile:
    """The key ring in a file: `keys.json` (0600) in a directory of its own (0700).

    Changes are written to the side and moved into place, one process at a time (`keys.lock`); a reader sees the old
    ring or the new one. A file that is broken or open to others is refused and never overwritten.

    Raises (every method):
        InteractionConfigurationError: the file is missing, unreadable, damaged, or may be read by others; or the key
            named is not there. Messages show ids and the path, never a secret.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / KEY_FILE
        self._lock = directory / "keys.lock"

    @property
    def there(self) -> bool:
        """Whether there is a file."""
        with self._told("read"):
            return self._path.exists()

    def none_here(self) -> InteractionConfigurationError:
        """Say what to do where there is no file."""
        made = f"pauseledger keys new --keys-dir {shlex.quote(str(self._directory))}"
        return InteractionConfigurationError(
            f"there is no key file {self._path}: where one host is enough, make it by `{made}`; where several share "
            f"the ledger, give all of them the same, by one directory ({DIRECTORY_ENVIRONMENT}) or by {ENVIRONMENT}"
        )

    def gone(self) -> InteractionConfigurationError:
        """Say what to do where there is no file, and a ledger that opens by its keys alone."""
        return InteractionConfigurationError(
            f"there is no key file {self._path}, and this ledger was written under keys that are not here: put it "
            f"back, or name its directory by {DIRECTORY_ENVIRONMENT} (--keys-dir), or set {ENVIRONMENT} and "
            f"{VAULT_ENVIRONMENT}; no other key opens its texts and tokens, and none was made"
        )

    def load(self) -> KeyRing:
        """Read the ring; a running process reads it again by itself."""
        return KeyRing(self._of("tokens"), reload=lambda: self._of("tokens"))

    def load_vault(self) -> KeyRing | None:
        """Read the ring of vault keys, likewise; None where there are none, and texts are stored as they are."""
        keys = self._of("vault")
        return KeyRing(keys, reload=lambda: self._of("vault")) if keys else None

    def _of(self, use: KeyUse) -> list[Key]:
        return [key for key in self._read() if key.use == use]

    def create(self) -> KeyRing:
        """Read the ring; make it first, with one key that mints and one that wraps, where there is none.

        Safe when several processes start at once: one of them makes it, and all read the same.
        """
        with self._told("make"):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._path.exists():
                key = _draw("mints", ())
                self._publish([key, _draw("mints", {key.kid}, "vault")], replacing=False)
        return self.load()

    def list(self) -> tuple[KeyLife, ...]:
        """Tell the life of every key, in the order in which they were made."""
        return tuple(key.life() for key in self._read())

    def new(self, use: KeyUse = "tokens") -> KeyLife:
        """Add a key that only opens. Promote it once every host can read it. A file's first vault key wraps at once."""
        with self._changing() as keys:
            first = not any(key.use == use for key in keys.values())
            key = _draw("mints" if first else "opens", keys, use)
            keys[key.kid] = key
        return key.life()

    def promote(self, kid: str) -> KeyLife:
        """Let a key mint. The one that minted goes on opening; it has stopped minting `SETTLES` from now.

        Promoting the key that mints already changes nothing.
        """
        with self._changing() as keys:
            key = self._named(keys, kid)
            if key.state == "retired":
                raise InteractionConfigurationError(f"key {kid} is retired and stays so; make another with `keys new`")
            if key.state == "opens":
                former = next(each for each in keys.values() if each.state == "mints" and each.use == key.use)
                keys[former.kid] = replace(former, state="opens", stopped_minting_at=_now() + SETTLES)
                keys[kid] = key = replace(key, state="mints", stopped_minting_at=None)
        return key.life()

    def retire(self, kid: str, blocked_by: Callable[[datetime], Sequence[UUID]]) -> KeyLife:
        """End a key: its tokens are forged from here on (in processes that run, within `REREAD_SECONDS`).

        Args:
            kid: The key, 8 hex digits. Retiring it twice changes nothing.
            blocked_by: Lists the pauses made before a time (UTC) that are still open or ready; of a vault key, those
                whose data keys it wraps. It is asked with the time at which the key stopped minting; a key that never
                minted is not asked about.

        Raises:
            InteractionConfigurationError: the key mints, may still be minting elsewhere, or pauses need it.
        """
        with self._changing() as keys:
            key = self._named(keys, kid)
            if key.state == "mints":
                raise InteractionConfigurationError(f"key {kid} mints; promote another one first")
            if key.state == "opens":
                if key.stopped_minting_at is not None:
                    _refuse_while_needed(kid, key.stopped_minting_at, blocked_by)
                keys[kid] = key = replace(key, state="retired")
                if key.use == "vault":
                    # While its secret lasts, what it wrapped in an old backup opens.
                    del keys[kid]
        return key.life()

    def _named(self, keys: dict[str, Key], kid: str) -> Key:
        if kid not in keys:
            raise InteractionConfigurationError(f"no such key in {self._path}; `keys list` shows the ids")
        return keys[kid]

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Key]]:
        with self._locked():
            before = self._read()
            keys = {key.kid: key for key in before}
            yield keys
            if tuple(keys.values()) != before:
                with self._told("change"):
                    self._publish(keys.values(), replacing=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._told("lock"):
            handle = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _publish(self, keys: Iterable[Key], *, replacing: bool) -> None:
        handle, name = tempfile.mkstemp(dir=self._directory, prefix=".keys-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_written(keys))
                file.flush()
                os.fsync(file.fileno())
            if replacing:
                Path(name).replace(self._path)
            else:
                _link_unless_there(Path(name), self._path)
        finally:
            Path(name).unlink(missing_ok=True)
        _sync_directory(self._directory)

    def _read(self) -> tuple[Key, ...]:
        with self._told("read"):
            if self._directory.stat().st_mode & 0o022:
                raise InteractionConfigurationError(
                    f"{self._directory} may be written to by others; run: chmod 700 {self._directory}"
                )
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_mode & 0o077:
                    raise InteractionConfigurationError(
                        f"{self._path} may be read by others; run: chmod 600 {self._path}, and rotate the key"
                    )
                keys = _parsed(file.read())
        if keys is None:
            raise InteractionConfigurationError(
                f"the key file {self._path} is damaged and was left as it is; put back a copy of it, or move it away "
                "to begin anew (then no older token opens)"
            )
        return keys

    @contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise self.none_here() from None
        except OSError as error:
            raise InteractionConfigurationError(
                f"cannot {doing} the key file {self._path}: {error.strerror}; check its owner and its directory"
            ) from None


class _StoredKey(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    kid: str
    secret: str
    state: KeyState
    made_at: AwareDatetime | None
    stopped_minting_at: AwareDatetime | None
    use: KeyUse = "tokens"


class _StoredRing(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    #: The second revision says of each key what it is for.
    format: Literal["pauseledger-keys/1", "pauseledger-keys/2"]
    keys: list[_StoredKey]


def _parsed(raw: bytes) -> tuple[Key, ...] | None:
    # None in place of an error: pydantic's would carry the file's text along as its context.
    try:
        stored = _StoredRing.model_validate_json(raw)
    except ValidationError:
        return None
    keys = tuple(Key(**{**entry.model_dump(), "secret": _secret(entry.secret)}) for entry in stored.keys)
    tokens = [key for key in keys if key.use == "tokens"]
    vault = [key for key in keys if key.use == "vault"]
    once = len({key.kid for key in keys}) == len(keys)
    return keys if once and _sound(tokens) and (not vault or _sound(vault)) else None


def _written(keys: Iterable[Key]) -> bytes:
    entries = [
        {
            "kid": key.kid,
            "secret": base64.urlsafe_b64encode(key.secret).decode(),
            "state": key.state,
            "made_at": key.made_at and key.made_at.isoformat(),
            "stopped_minting_at": key.stopped_minting_at and key.stopped_minting_at.isoformat(),
            "use": key.use,
        }
        for key in keys
    ]
    return json.dumps({"format": "pauseledger-keys/2", "keys": entries}, indent=2).encode() + b"\n"


def _secret(text: str) -> bytes:
    """Decode base64url, padded or not. Whatever is not exactly the text of some bytes decodes to none at all."""
    bare = text.removesuffix("=")
    try:
        secret = base64.b64decode(bare + "=" * (-len(bare) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""
    return secret if base64.urlsafe_b64encode(secret).rstrip(b"=") == bare.encode() else b""


def _sound(keys: Iterable[Key]) -> bool:
    held = list(keys)
    shaped = all(_KID.fullmatch(key.kid) and len(key.secret) == SECRET_BYTES for key in held)
    return shaped and len({key.kid for key in held}) == len(held) and sum(key.state == "mints" for key in held) == 1


def _by_kid(keys: Iterable[Key]) -> dict[str, Key]:
    held = list(keys)
    if not _sound(held):
        raise InteractionConfigurationError(
            "a key ring needs exactly one key that mints, ids of 8 lower-case hex digits used once, and 32-byte secrets"
        )
    return {key.kid: key for key in held}


def _draw(state: KeyState, taken: Container[str], use: KeyUse = "tokens") -> Key:
    kid = secrets.token_hex(KID_BYTES)
    while kid in taken:
        kid = secrets.token_hex(KID_BYTES)
    return Key(kid=kid, secret=secrets.token_bytes(SECRET_BYTES), state=state, made_at=_now(), use=use)


def _refuse_while_needed(kid: str, stopped: datetime, blocked_by: Callable[[datetime], Sequence[UUID]]) -> None:
    if _now() < stopped:
        raise InteractionConfigurationError(
            f"processes that run may mint under key {kid} until {stopped.isoformat(timespec='seconds')}; "
            "retire it after that"
        )
    pauses = blocked_by(stopped)
    if pauses:
        shown = ", ".join(str(pause) for pause in pauses[:3])
        more = ", ..." if len(pauses) > 3 else ""  # noqa: PLR2004 - as many as are shown
        raise InteractionConfigurationError(
            f"key {kid} is needed by {len(pauses)} pauses still open or ready ({shown}{more}); "
            "wait for their answers, or reissue or withdraw them first"
        )


def _link_unless_there(made: Path, path: Path) -> None:
    try:
        path.hardlink_to(made)
    except FileExistsError:
        # Another process was first: its ring is read in place of this one.
        return


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _now() -> datetime:
    return datetime.now(UTC)
