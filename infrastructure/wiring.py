"""COMPOSITION ROOT: settings to a ledger; the one file that names concrete classes."""

import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote, urlsplit
from uuid import UUID
from weakref import WeakSet

from ..domain.answers import built_in
from ..domain.axes import Axes, Scope
from ..domain.capability import HumanInteractionCapability, Operator
from ..domain.commands import Actor
from ..domain.continuation import redeem
from ..domain.errors import InteractionConfigurationError
from ..domain.facts import Answered, Fact
from ..domain.ids import Identity
from ..domain.interactions import Interactions
from ..domain.kernel_resume import ResumedTurn
from ..domain.policies import PolicyBook
from ..domain.services import Services
from ..domain.switches import Surface
from ..projections.stranded import Stranded
from .events import LedgerEvents
from .executor import Executor
from .export import Export, ExportCommand, Exported, require_key
from .following import Following
from .gathering import LANES, GatheredStreams
from .headers import Log
from .joined import Joined
from .keys import VAULT_ENVIRONMENT, KeyFile, KeyRing
from .log_key import SEED_BYTES, log_signer, no_other_key
from .logs import StructuredJournal
from .mapper import Registry
from .memory import MemoryRecorder
from .notary import Notary
from .notes import Signer
from .pauses import EventSourcedPauses, Streams, ThreadedStreams
from .schemas import compile_schema
from .seal import TokenSeal
from .sealed import sealed_rows
from .sealer import Sealer, origin_of
from .settings import KEYS_VARIABLE, LedgerSettings, keys_directory, store_url
from .sqlite import SQLiteRecorder
from .store import LedgerRecorder
from .subjects import Named, named_in
from .switches import LedgerSwitches
from .transcripts import known
from .vault import require_opened
from .version import __version__
from .views import LedgerViews
from .views_sqlite import ViewsFile

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

MEMORY = "memory:"
POSTGRES = ("postgresql", "postgres")


class Ledger:
    """One ledger, opened. Use it as `async with open_ledger(...) as ledger`."""

    def __init__(
        self, url: str, settings: LedgerSettings, registry: Registry | None = None, *, make: bool = True
    ) -> None:
        self._url = url
        self._make = make
        self._settings = settings
        self._registry = registry
        self._executor: Executor | None = None
        self._rules: Executor | None = None
        self._recorder: LedgerRecorder | None = None
        self._opened: tuple[HumanInteractionCapability, EventSourcedPauses, Services] | None = None
        self._switches: LedgerSwitches | None = None
        self._views: LedgerViews | None = None
        self._log_seed = secrets.token_bytes(SEED_BYTES)
        self._lent: WeakSet[Any] = WeakSet()

    async def __aenter__(self) -> Self:
        if self._executor is not None:
            raise InteractionConfigurationError("the ledger is open already; open another one with open_ledger()")
        self._executor = Executor(self._settings.threads)
        self._rules = Executor(self._settings.threads)
        try:
            self._opened = await self._executor(self._open)
            self._opened[1].stay()
            assert self._recorder is not None  # noqa: S101 - opened with it
            apart = self._settings.views
            views = self._recorder if apart is None else open_views(apart, self._settings)
            self._views = LedgerViews(self._recorder, views, self._opened[1], self._opened[2], self._executor)
            # Threads need connections again when views are read or followed; a worker that does neither has one pool.
            await self._executor(self._recorder.rest)
            self._switches = LedgerSwitches(self._opened[2], self._opened[1])
            await self._switches.begin()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    @property
    def capability(self) -> HumanInteractionCapability:
        """The operations: pause, answer, resume, recover, and the rest."""
        return self._open_or_say()[0]

    @property
    def pauses(self) -> EventSourcedPauses:
        """The repository, with eventsourcing's application and notification log inside (`pauses.log`)."""
        return self._open_or_say()[1]

    @property
    def recorder(self) -> LedgerRecorder:
        """The store's recorder."""
        self._open_or_say()
        assert self._recorder is not None  # noqa: S101 - opened with it
        return self._recorder

    @property
    def switches(self) -> LedgerSwitches:
        """Which surfaces the kernel serves, for `ContinuationDoor`."""
        self._open_or_say()
        assert self._switches is not None  # noqa: S101 - made with it
        return self._switches

    @property
    def views(self) -> LedgerViews:
        """What can be asked: open pauses, history, refusals, response times, stranded turns."""
        self._open_or_say()
        assert self._views is not None  # noqa: S101 - made with it
        return self._views

    @property
    def refused(self) -> dict[str, int]:
        """How many attempts this process has refused since it opened the ledger, by reason; for a host's metrics.

        What is written nowhere is counted too: forged tokens, and attempts past the bounds of the record.
        """
        return dict(self._open_or_say()[2].counts)

    @property
    def events(self) -> LedgerEvents:
        """The log as integration events (CloudEvents 1.0), page by page or followed.

        Raises:
            InteractionConfigurationError: the library is not installed, or the ledger is not open.
        """
        _, pauses, services = self._open_or_say()
        assert self._executor is not None  # noqa: S101 - made on entry
        ledger_id = services.identity.ledger_id
        log = Log(self.recorder, pauses.mapper, ledger_id)
        return LedgerEvents(log, ledger_id, self._executor, services.journal)

    def follow(
        self, *, sweep: bool = True, seal: bool = True, progress: Callable[[int, int], None] | None = None
    ) -> Following:
        """Follow the log, so that views are a moment behind, mark closed windows, and seal: in this event loop.

        `async with ledger.follow():` does so beside what the host does; `await ledger.follow().run()` does nothing
        else. Any number may follow at once; one of them seals. Heads are signed where there is a log key (`pauseledger
        keys log`), and kept in the anchors of the settings. `progress` is called with the slowest view's position and
        the log's newest.

        Raises:
            InteractionConfigurationError: the log key is not safe where it is.
        """
        notary = self.notary() if seal else None
        return self.views.follow(self.capability, sweep=sweep, progress=progress, notary=notary)

    def notary(self, *, make_key: bool = False) -> Notary:
        """Make what seals the log, signs its heads and keeps them in the anchors of the settings.

        Raises:
            InteractionConfigurationError: the log key is not safe where it is, or (with `make_key`) it is not there any
                more and heads signed by it are; or there is none, and heads are to be kept in anchors.
        """
        services, settings = self._open_or_say()[2], self._settings
        signer = self._signer(make_key=make_key)
        if signer is None and settings.anchors:
            raise InteractionConfigurationError(
                "no head would be kept outside: there is no log key to sign one with; `pauseledger keys log` makes one"
            )
        sealer = Sealer(sealed_rows(self.recorder), origin_of(services.identity.ledger_id), signer)
        return Notary(sealer, settings.anchors, services.journal, anchor_seconds=settings.anchor_seconds)

    def _signer(self, *, make_key: bool = False) -> Signer | None:
        ledger_id, directory = self._open_or_say()[2].identity.ledger_id, self._settings.keys_directory
        if self._url == MEMORY and directory is None:
            return Signer(origin_of(ledger_id), self._log_seed)
        if make_key:
            no_other_key(self.recorder, ledger_id, keys_directory(directory))
        return log_signer(ledger_id, keys_directory(directory), make=make_key)

    async def export(
        self, scope: Scope, command: ExportCommand, progress: Callable[[int, int], None] | None = None
    ) -> Exported:
        """Export an evidence bundle of one scope, which verifies without us: docs/evidence.md says what is in it.

        It is all under the newest signed head; `await asyncio.to_thread(ledger.notary().seal)` makes one. `progress` is
        called, from a thread, with how far it is and how far there is to go, first over the log and then over the
        rows of the bundle.

        Raises:
            InteractionConfigurationError: the scope is none, nothing was found, no head was signed, there is no log
                key, or the place is taken.
            RequestMissing: the scope has no such pause.
            Unproved: what is sealed does not hold together; nothing is exported.
            StoreUnavailable: the store could not speak.
        """
        if not isinstance(scope, Scope):
            raise InteractionConfigurationError("an export is one scope's; pass a Scope, or see export_of_all_tenants")
        return await self._export(scope, command, progress)

    async def export_of_all_tenants(
        self, command: ExportCommand, progress: Callable[[int, int], None] | None = None
    ) -> Exported:
        """Export as `export` does, whoever's the pauses are: for who runs the ledger."""
        return await self._export(None, command, progress)

    async def _export(
        self, scope: Scope | None, command: ExportCommand, progress: Callable[[int, int], None] | None
    ) -> Exported:
        _, pauses, _ = self._open_or_say()
        signer = self._signer()
        rows, mapper = sealed_rows(self.recorder), pauses.mapper
        key = require_key(signer.verifier if signer else None, rows)
        export = Export(self.recorder, rows, mapper, key, scope=scope, command=command, progress=progress)
        assert self._executor is not None  # noqa: S101 - made on entry
        return await self._executor(export.run)

    def owed(self, scope: Scope) -> AsyncIterator[Stranded]:
        """Go through the turns of a scope that are ready, stalled or left by a dead worker, for a worker to `recover`.

        `await ledger.capability.recover(RecoverCommand(pause_id=item.pause_id, axes=item.axes))` takes one up. Others
        may do so as well: of two that recover at once one wins, and the other is told by a `RecoveryError`. Nobody has
        to follow: what the log holds is folded first, for 10 seconds at most; what is left comes the next time.

        Raises (when iterated):
            InteractionConfigurationError: the scope is none.
            StoreUnavailable: the store could not speak.
        """
        return self.views.owed(scope)

    async def flip(self, surface: Surface, on: bool, by: Actor) -> bool:
        """Hand a surface (run, stream, stream_typed) to the kernel, or roll it back, for every process on this ledger.

        Gives False where it stood so already; nothing is written then.

        Raises:
            InteractionConfigurationError: there is no such surface, `on` is no bool, or nobody is named.
            StoreUnavailable: the store could not speak; the same flip again tells.
            LedgerCorrupt, LedgerTooNew: the flips on record cannot be read.
        """
        return await self.switches.flip(surface, on, by)

    async def redeem(
        self,
        token: str,
        response: Any,
        *,
        axes: Axes,
        by: Actor | None = None,
        attempt_key: str | None = None,
        cites: Sequence[UUID] = (),
    ) -> ResumedTurn:
        """Recognise a token and redeem it: `recognise` and `prepare` in one.

        `attempt_key` is the host's own name for this attempt: after `StoreUnavailable` with the outcome `unknown`, the
        same call with the same key wins, or learns by `AlreadyConsumed.own` that it has won already; then `recover`.

        Raises:
            NotRedeemable: the string is not one of our tokens.
            What `prepare` raises.
        """
        return await redeem(self.capability, token, response, axes=axes, by=by, attempt_key=attempt_key, cites=cites)

    def joined(self, connection: "AsyncConnection[Any] | Connection[Any]") -> Joined:
        """Take part in a transaction of the host's, on its own psycopg connection to this ledger's database.

        `joined = ledger.joined(connection)` has every operation of the capability. If the host commits, both happened;
        if it rolls back, neither did; a lost race leaves the transaction as it was. Make one for each transaction, end
        that soon, and go on with a turn after the commit.

        Args:
            connection: A `psycopg.AsyncConnection` of this event loop, or a blocking `psycopg.Connection`.

        Raises:
            InteractionConfigurationError: the ledger is not on PostgreSQL, or the connection is no psycopg connection.
        """
        capability, pauses, services = self._open_or_say()
        if self._url.partition(":")[0] not in POSTGRES:
            raise InteractionConfigurationError(
                "a ledger in memory or in a SQLite file joins no transaction; open one on PostgreSQL"
            )
        assert self._executor is not None  # noqa: S101 - made on entry
        streams = open_joined(connection, self.recorder, services.identity.ledger_id, self._executor, self._lent)
        return Joined(services, capability, pauses, streams)

    def operator(self, actor: Actor) -> Operator:
        """Act as whoever runs the ledger: pauses are named by id, no axes are stated, who and why are recorded."""
        return self.capability.operator(actor)

    async def story(self, pause_id: UUID, *, shown: Iterable[UUID] = ()) -> Sequence[Fact]:
        """Read a pause's facts, those of its refusal stream and the presentations cited, proved and in order of time.

        `shown` are streams of presentations to read besides: an answer need not cite them.

        Raises:
            LedgerCorrupt: a row is not what was written.
        """
        services = self._open_or_say()[2]
        told = await self.pauses.story(
            [pause_id, services.identity.refusals(pause_id), services.identity.erasures(pause_id)]
        )
        beside = {cited for fact in told if isinstance(fact, Answered) for cited in fact.cites}.union(shown)
        if beside:
            told = (*told, *await self.pauses.story(sorted(beside), keys_of=[pause_id]))
        return sorted(told, key=lambda fact: (fact.at, fact.originator_id != pause_id, fact.originator_version))

    async def named(self, person: str, scope: Scope) -> Named:
        """Find the pauses of a scope whose facts name a person; the whole log is read, rows that cannot be set aside.

        Raises:
            StoreUnavailable: the store could not speak.
        """
        services = self._open_or_say()[2]
        assert self._executor is not None  # noqa: S101 - opened with it
        log = Log(self.recorder, self.pauses.mapper, services.identity.ledger_id)
        return await self._executor(named_in, log, scope, services.identity.tag("actor", person))

    async def scrub(self) -> bool:
        """Overwrite what destroyed keys left in the store's own files; False where this connection could not.

        Raises:
            StoreUnavailable: the store could not speak.
        """
        return await self.pauses.scrub()

    def _open_or_say(self) -> tuple[HumanInteractionCapability, EventSourcedPauses, Services]:
        if self._opened is None:
            raise InteractionConfigurationError(
                "the ledger is not open; use it as `async with open_ledger() as ledger`"
            )
        return self._opened

    def _open(self) -> tuple[HumanInteractionCapability, EventSourcedPauses, Services]:
        settings = self._settings
        self._recorder = recorder = self._store()
        identity = recorder.identity()
        tokens = key_ring(self._url, settings, written=identity.vault_kid is not None)
        ring = vault_ring(self._url, settings)
        require_opened(recorder, identity.vault_kid, ring)
        assert self._executor is not None  # noqa: S101 - made on entry
        assert self._rules is not None  # noqa: S101 - made on entry
        pauses = EventSourcedPauses(
            recorder,
            self._executor,
            identity.ledger_id,
            epoch=identity.epoch,
            leeway=timedelta(seconds=settings.leeway),
            registry=self._registry,
            streams=open_streams(self._url, recorder, self._executor),
            ring=ring,
        )
        transcripts = known()
        for codec in settings.transcripts:
            transcripts.register(codec)
        interactions = Interactions(compile_schema, (*built_in(compile_schema), *settings.interactions))
        tags = Identity(identity.ledger_id, identity.identity_key)
        services = Services(
            identity=tags,
            pauses=pauses,
            vault=pauses,
            policies=PolicyBook(pauses, identity.ledger_id),
            seal=TokenSeal(tokens, ledger_id=identity.ledger_id, audience=settings.audience),
            interactions=interactions,
            transcripts=transcripts,
            journal=StructuredJournal(),
            off_loop=self._rules,
            writer=f"pauseledger/{__version__}",
            holder=tags.tag("holder", socket.gethostname(), str(os.getpid()), secrets.token_bytes(8)),
            checkpoints=dict(settings.checkpoints),
            optional_axes=settings.optional_axes,
            leeway=timedelta(seconds=settings.leeway),
            lease_seconds=settings.lease,
        )
        return HumanInteractionCapability(services), pauses, services

    def _store(self) -> LedgerRecorder:
        return open_recorder(self._url, self._settings, make=self._make)

    async def _close(self) -> None:
        executor, rules, recorder, views = self._executor, self._rules, self._recorder, self._views
        pauses = self._opened[1] if self._opened else None
        self._opened = self._executor = self._rules = self._recorder = self._views = None
        if rules is not None:
            # A host's rule that never ends is not waited for.
            rules.close(wait=False)
        if executor is not None:
            if views is not None:
                await views.close()
            if pauses is not None:
                await pauses.close()
            if recorder is not None:
                await executor(recorder.close)
            executor.close()


def open_ledger(store: str | None = None, settings: LedgerSettings | None = None) -> Ledger:
    """Open a ledger: `memory:`, `sqlite:///path` or `postgresql://...`.

    Without `store`, what `PAUSELEDGER_STORE` names, else a SQLite file in the user's data directory. SQLite files are
    made on first use; a PostgreSQL ledger is made by `pauseledger migrate`.

    Raises (on entering it; for an empty `store` at once):
        InteractionConfigurationError: the store or the keys are not configured so that they could work.
        StoreUnavailable: the store could not speak.
        LedgerTooNew: its tables belong to a newer version.
    """
    return Ledger(store_url(store), settings or LedgerSettings())


def open_recorder(url: str, settings: LedgerSettings, *, make: bool = True) -> LedgerRecorder:
    """Open the store a URL names; without `make` no tables are made in a file that has none.

    Raises:
        InteractionConfigurationError: no store has such a URL.
    """
    if url == MEMORY:
        return MemoryRecorder()
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        return SQLiteRecorder(sqlite_path(url), busy_timeout=settings.busy_timeout, create=make)
    if scheme in POSTGRES:
        from .postgres import PostgresRecorder  # noqa: PLC0415 - a driver that an embedded ledger need not load

        return PostgresRecorder(
            url,
            schema=settings.schema,
            pool_size=settings.threads,
            connect_timeout=settings.connect_timeout,
            statement_timeout=settings.statement_timeout,
            pool_timeout=settings.pool_timeout,
            pooled=settings.pooled,
        )
    raise InteractionConfigurationError(
        "a store is `memory:`, `sqlite:///path/to/file` or `postgresql://user@host/database`; pass one of these"
    )


def open_streams(url: str, recorder: LedgerRecorder, executor: Executor) -> Streams:
    """Reach a store's streams from the event loop: without threads where the driver can do that."""
    if url == MEMORY:
        return ThreadedStreams(recorder, executor)
    if url.partition(":")[0] not in POSTGRES:
        # One writes at a time.
        return GatheredStreams(ThreadedStreams(recorder, executor), lanes=1)
    from .postgres import PostgresRecorder  # noqa: PLC0415 - a driver that an embedded ledger need not load
    from .postgres_async import PostgresStreams  # noqa: PLC0415 - the same

    assert isinstance(recorder, PostgresRecorder)  # noqa: S101 - opened by the same URL
    return GatheredStreams(
        PostgresStreams(recorder.database), lanes=min(LANES, max(1, recorder.database.pool_size // 2))
    )


def open_joined(
    connection: Any, recorder: LedgerRecorder, ledger_id: UUID, executor: Executor, known: WeakSet[Any]
) -> Streams:
    """Reach the streams inside a transaction of the host's; `known` are the connections that lead to this ledger."""
    from .postgres import PostgresRecorder  # noqa: PLC0415 - a driver that an embedded ledger need not load
    from .postgres_joined import JoinedStreams  # noqa: PLC0415 - the same

    assert isinstance(recorder, PostgresRecorder)  # noqa: S101 - opened by the same URL
    return JoinedStreams(connection, recorder.database, ledger_id, executor, known)


def open_views(url: str, settings: LedgerSettings) -> LedgerRecorder:
    """Open the store a URL names for views alone; no ledger is made in it."""
    if url.partition(":")[0] == "sqlite":
        return ViewsFile(sqlite_path(url), busy_timeout=settings.busy_timeout)
    return open_recorder(url, settings)


def sqlite_path(url: str) -> Path:
    """Read the path of a file out of a store's URL."""
    parts = urlsplit(url)
    path = unquote(parts.path)[1:]
    if parts.query or parts.fragment or "\0" in path:
        raise InteractionConfigurationError(
            "a SQLite store's URL has no query and no fragment; write `?` as %3F and `#` as %23 in a path"
        )
    if not url.startswith("sqlite:///") or not path:
        raise InteractionConfigurationError(
            "a SQLite store is `sqlite:///relative/path` or `sqlite:////absolute/path`, with three or four slashes"
        )
    return Path(path)


def embedded(url: str) -> bool:
    """Tell whether a store is this host's alone, so that its keys may be made here.

    Beside a server they are not: each of its hosts would make its own, and open none of the others' tokens.
    """
    return url == MEMORY or url.startswith("sqlite:")


def key_ring(url: str, settings: LedgerSettings, *, written: bool = False) -> KeyRing:
    """Find the keys: in the environment, or in the key file, which is made on first use with an embedded store only.

    A ledger in memory ends with its process, and so does its key, unless one is configured. For a ledger that was
    `written` under keys no others are made.

    Raises:
        InteractionConfigurationError: there are none, or they are not safe where they are.
    """
    named = os.environ.get(KEYS_VARIABLE)
    if named:
        return KeyRing.from_environment(named)
    if url == MEMORY and settings.keys_directory is None:
        return KeyRing.ephemeral()
    keys = KeyFile(keys_directory(settings.keys_directory))
    if written and not keys.there:
        raise keys.gone()
    return keys.create() if embedded(url) else keys.load()


def vault_ring(url: str, settings: LedgerSettings, *, written: bool = False) -> KeyRing | None:
    """Find the keys that wrap the vault's data keys, where the others are; None where texts are stored as they are.

    A vault that was `written` has keys: where their file is gone that is said, and not how others are made.

    Raises:
        InteractionConfigurationError: they are not safe where they are.
    """
    named = os.environ.get(VAULT_ENVIRONMENT)
    if named:
        return KeyRing.from_environment(named, "vault")
    if os.environ.get(KEYS_VARIABLE):
        return None
    if url == MEMORY and settings.keys_directory is None:
        return KeyRing.ephemeral("vault")
    keys = KeyFile(keys_directory(settings.keys_directory))
    if written and not keys.there:
        raise keys.gone()
    return keys.load_vault()
