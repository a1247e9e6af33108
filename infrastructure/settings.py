"""Where a ledger is, and how it behaves: settings, and what the environment says where they are silent."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import platformdirs

from ..domain.axes import AXES
from ..domain.errors import InteractionConfigurationError
from ..domain.interactions import Interaction
from ..domain.ports import Checkpoints
from ..domain.turn import Transcript
from .anchors import Anchor

#: Names the store where `open_ledger` is not told one.
STORE_VARIABLE = "PAUSELEDGER_STORE"
#: Holds the keys themselves, for hosts that inject secrets.
KEYS_VARIABLE = "PAUSELEDGER_KEYS"
#: Names the directory of the key file.
KEYS_DIRECTORY_VARIABLE = "PAUSELEDGER_KEYS_DIR"
APPLICATION = "pauseledger"
#: No deadline is longer (seconds): a day.
LONGEST = 86_400


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """How a ledger behaves. Times are seconds.

    Attributes:
        keys_directory: Where `keys.json` is; its own directory, 0700. Default: what `PAUSELEDGER_KEYS_DIR` names, else
            the user's configuration directory. `PAUSELEDGER_KEYS` holds the keys themselves and comes before both.
        audience: Tokens are bound to it; give each deployment that must not open another's tokens its own.
        leeway: Whole seconds by which clocks may differ when a window is judged.
        lease: Whole seconds a claim holds before somebody else may take the turn up.
        optional_axes: Axes that `resume` may leave unstated: scope, session, run, call.
        interactions: The host's own, beside `ask_user` and `approval`.
        checkpoints: Where the host keeps turns of its own, by the name of the store.
        transcripts: Codecs of further wire formats.
        anchors: Where `Ledger.follow` keeps tree heads outside (`anchors.anchor_of` makes one of a URL).
        anchor_seconds: How often a head goes there at most.
        views: Where the views are kept, as the URL of a store. Default: beside the ledger.
        threads: Threads for drivers that block; to PostgreSQL as many connections, and as many of the loop.
        schema: The PostgreSQL schema.
        pooled: Whether PostgreSQL is reached through a pooler in transaction mode, such as PgBouncer.
        busy_timeout: How long SQLite waits for another process's write.
        connect_timeout: How long one attempt to connect to PostgreSQL may take (rounded up to whole seconds).
        statement_timeout: How long PostgreSQL may work on one statement, waiting for locks included.
        pool_timeout: How long a call waits for one of the connections to PostgreSQL.

    Raises:
        InteractionConfigurationError: a value is none that could work.
    """

    keys_directory: Path | None = None
    audience: str = ""
    leeway: int = 0
    lease: int = 60
    optional_axes: frozenset[str] = frozenset()
    interactions: Sequence[Interaction] = ()
    checkpoints: Mapping[str, Checkpoints] = field(default_factory=dict)
    transcripts: Sequence[Transcript] = ()
    anchors: Sequence[Anchor] = ()
    anchor_seconds: float = 60.0
    views: str | None = field(default=None, repr=False)
    threads: int = 8
    schema: str = "pauseledger"
    pooled: bool = False
    busy_timeout: float = 5.0
    connect_timeout: float = 5.0
    statement_timeout: float = 10.0
    pool_timeout: float = 10.0

    def __post_init__(self) -> None:
        for name, least, most in (("leeway", 0, 86_400), ("lease", 1, 30 * 86_400), ("threads", 1, 1000)):
            if type(getattr(self, name)) is not int or not least <= getattr(self, name) <= most:
                raise InteractionConfigurationError(f"{name} must be a whole number from {least} to {most}")
        for name in ("busy_timeout", "connect_timeout", "statement_timeout", "pool_timeout"):
            given = getattr(self, name)
            # A deadline of nought means none at all to the server.
            if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given <= LONGEST:
                raise InteractionConfigurationError(f"{name} must be seconds, above 0 and at most {LONGEST}")
        unknown = set(self.optional_axes) - set(AXES)
        if unknown:
            raise InteractionConfigurationError(
                f"optional_axes may list {', '.join(AXES)}; not {', '.join(sorted(unknown))}"
            )


def store_url(given: str | None) -> str:
    """Tell which store is meant: the one given, what `PAUSELEDGER_STORE` names, or a file of the user's.

    Raises:
        InteractionConfigurationError: an empty text was given, as a shell does for a variable that is not set.
    """
    if given == "":
        raise InteractionConfigurationError(
            "the store given is an empty text, as of a variable that is not set; name a store, or leave it out for the"
            " file in the user's data directory"
        )
    named = given or os.environ.get(STORE_VARIABLE)
    return named or f"sqlite:///{quote(str(Path(platformdirs.user_data_dir(APPLICATION)) / 'ledger.db'))}"


def keys_directory(given: Path | None) -> Path:
    """Tell where the key file is."""
    named = given or os.environ.get(KEYS_DIRECTORY_VARIABLE)
    return Path(named) if named else Path(platformdirs.user_config_dir(APPLICATION)) / "keys"
