"""The key that signs tree heads: in the environment, or in a file of its own beside the keys that seal tokens."""

import base64
import binascii
import json
import os
import secrets
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from ..domain.errors import InteractionConfigurationError
from .notes import Signer
from .sealed import sealed_rows
from .sealer import origin_of
from .store import LedgerRecorder

#: Holds the key itself, for hosts that inject secrets: 32 random bytes in base64url.
LOG_KEY_VARIABLE = "PAUSELEDGER_LOG_KEY"
SEED_BYTES = 32
_NAME = "log-key.json"
_FORMAT = "pauseledger-log-key/1"
_DAMAGED = (
    "is damaged and was left as it is; put back a copy of it, or move it away to begin anew (auditors then need both "
    "public keys)"
)


class LogKeyFile:
    """The key in `log-key.json` (0600), in the directory of the key file.

    One key signs for every ledger that uses it: each head, and each public key, bears the ledger's own name.

    Raises (every method):
        InteractionConfigurationError: the file is damaged, may be read by others, or cannot be made; no message shows
            the key.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / _NAME

    def read(self) -> bytes | None:
        """Read the key; None where there is none."""
        try:
            with self._path.open("rb") as file:
                if (os.fstat(file.fileno()).st_mode & 0o077) or (self._directory.stat().st_mode & 0o022):
                    raise InteractionConfigurationError(
                        f"{self._path} may be read, or its directory changed, by others; run: chmod 700 "
                        f"{self._directory}; chmod 600 {self._path}, and make another key"
                    )
                said = file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InteractionConfigurationError(
                f"cannot read {self._path}: {error.strerror}; check its owner and its directory"
            ) from None
        return self._parsed(said)

    def _parsed(self, said: bytes) -> bytes:
        try:
            held = json.loads(said)
            seed = _seed(held["seed"]) if held["format"] == _FORMAT else b""
        except (ValueError, KeyError, TypeError):
            seed = b""
        if not seed:
            raise InteractionConfigurationError(f"the key file {self._path} {_DAMAGED}")
        return seed

    def make(self) -> bytes:
        """Read the key; draw it first where there is none. Of several processes one draws it, and all read the same."""
        seed = base64.urlsafe_b64encode(secrets.token_bytes(SEED_BYTES)).decode()
        said = json.dumps({"format": _FORMAT, "seed": seed, "made_at": datetime.now(UTC).isoformat()}) + "\n"
        aside = self._directory / f".log-key-{secrets.token_hex(8)}"
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._path.exists():
                with os.fdopen(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
                    file.write(said)
                    file.flush()
                    os.fsync(file.fileno())
                self._link(aside)
        except OSError as error:
            raise InteractionConfigurationError(
                f"cannot make {self._path}: {error.strerror}; check its directory"
            ) from None
        made = self.read()
        if made is None:
            raise InteractionConfigurationError(f"{self._path} is gone again; look who removes it")
        return made

    def _link(self, aside: Path) -> None:
        try:
            self._path.hardlink_to(aside)
        except FileExistsError:
            # Another process was first: its key is read in place of this one.
            return
        finally:
            aside.unlink()


def log_signer(ledger_id: UUID, directory: Path, *, make: bool = False) -> Signer | None:
    """Find the key that signs this ledger's heads; None where there is none. With `make` it is drawn then.

    Raises:
        InteractionConfigurationError: it is not safe where it is, or what the environment holds is none.
    """
    named = os.environ.get(LOG_KEY_VARIABLE)
    if named:
        seed: bytes | None = _seed(named)
        if not seed:
            raise InteractionConfigurationError(f"{LOG_KEY_VARIABLE} must be 32 random bytes in base64url")
    else:
        file = LogKeyFile(directory)
        seed = file.make() if make else file.read()
    return None if seed is None else Signer(origin_of(ledger_id), seed)


def no_other_key(recorder: LedgerRecorder, ledger_id: UUID, directory: Path) -> None:
    """Let no key be made where heads were signed by one that is not here: auditors would be told of a forger.

    Raises:
        InteractionConfigurationError: it is not here.
    """
    if log_signer(ledger_id, directory) is None and sealed_rows(recorder).newest_head() is not None:
        raise InteractionConfigurationError(
            f"heads of this ledger were signed by a key that is not here; put {_NAME} back into {directory}, or begin"
            " with another key by `pauseledger keys log --another`: auditors then need both public keys"
        )


def _seed(text: str) -> bytes:
    try:
        raw = base64.urlsafe_b64decode(text.strip() + "=" * (-len(text.strip()) % 4))
    except (binascii.Error, ValueError):
        return b""
    return raw if len(raw) == SEED_BYTES else b""
