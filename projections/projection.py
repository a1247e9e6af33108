"""What all views have in common: how one is folded, how one is asked, and what it sets aside."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Generic, Protocol, TypeVar
from uuid import UUID

from ..domain.axes import Scope
from ..domain.errors import InteractionConfigurationError, LedgerError
from .rows import Condition, Key, Page, Query, Table, Values
from .seen import UNFOLDABLE, Seen, Why

R = TypeVar("R")

#: How long a question waits for its view where the caller does not say (seconds).
PATIENCE = 5.0


class ViewBehind(LedgerError, TimeoutError):
    """A view did not reach a position in time. It goes on; ask again, or look at `lag`."""

    def __init__(self, view: str, position: int, reached: int, seconds: float) -> None:
        self.view = view
        self.position = position
        self.reached = reached
        super().__init__(
            f"view {view} is at position {reached} and did not reach {position} within {seconds} s; ask again, or see"
            " what holds it up with `pauseledger lag`"
        )


@dataclass(frozen=True, slots=True)
class SetAside:
    """A fact that could not be folded: of a newer version of this package (`too_new`), or `corrupt`.

    Attributes:
        since: Its time (UTC), None where its header cannot be read.
        scope: The tenant, None where its header cannot be read or names none.
    """

    position: int
    stream: UUID
    version: int
    pause: UUID
    scope: Scope | None
    topic: str
    why: str
    since: datetime | None


class Projection(ABC):
    """Folds the log into one view, fact by fact, from headers alone.

    Attributes:
        name: What the view is called for good.
        revision: Counts up when rows or fold change: each revision has tables of its own, so that processes of two
            versions can follow side by side.
        facts: The stored names it looks at. Any other fact known here changes nothing.
        reads: Those of which it needs more than pause, time and scope; the headers of others are not parsed.
        tables: Where its rows are, the facts set aside among them.
    """

    name: ClassVar[str]
    revision: ClassVar[int] = 1
    facts: ClassVar[frozenset[str]]
    reads: ClassVar[frozenset[str]]
    own_tables: ClassVar[tuple[Table[Any], ...]]
    set_aside: ClassVar[Table[SetAside]]

    def __init_subclass__(cls) -> None:
        cls.set_aside = Table(f"{cls.name}_set_aside", SetAside, ("position",), (("scope", "position"),))

    @property
    def id(self) -> str:
        """The view's name with its revision."""
        return f"{self.name}@{self.revision}"

    @property
    def tables(self) -> tuple[Table[Any], ...]:
        """All its tables."""
        return (*self.own_tables, self.set_aside)

    def wants(self, facts: Sequence[Seen], page: Page) -> Iterator[tuple[Table[Any], Iterable[Key]]]:  # noqa: ARG002 - a view whose rows only come looks at none
        """Name the rows these facts will look at; those named before are on the page by the next step."""
        yield from ()

    @abstractmethod
    def fold(self, fact: Seen, page: Page) -> None:
        """Take one readable fact into the page. It may raise over a header that lacks what it needs."""

    def flag(self, fact: Seen, page: Page) -> None:  # noqa: B027 - a view of sums has nothing to mark
        """Mark what an unreadable fact belongs to, so that it is shown first and hides nothing."""

    def why_not(self, fact: Seen) -> Why | None:
        """Tell why a fact cannot be folded into this view, as far as its header tells; None where it can."""
        if fact.unreadable is None and fact.name in self.reads and not fact.heard():
            return "corrupt"
        return fact.unreadable

    def take(self, fact: Seen, page: Page) -> None:
        """Take any fact into the page; one that cannot be folded is set aside."""
        page.mark()
        # What was heard before can be read.
        why = self.why_not(fact) if fact.said is None else None
        if why is None:
            try:
                self.fold(fact, page)
            except UNFOLDABLE:
                page.undo()
                why = "corrupt"
            else:
                return
        row = (fact.position, fact.stream, fact.version, fact.pause, fact.scope, fact.topic, why, fact.at)
        page.add(self.set_aside, row)
        self.flag(fact, page)


class Asking(Protocol):
    """How a view's questions reach its rows.

    Attributes:
        ledger: Whose facts they were folded from.
        leeway: How far clocks may differ.
    """

    ledger: UUID
    leeway: timedelta

    def now(self) -> datetime:
        """Tell the store's time (UTC)."""
        ...

    def tag(self, kind: str, name: str) -> str:
        """Fold a person's or a group's id into its tag."""
        ...

    async def reach(self, position: int | None, seconds: float) -> None:
        """Wait until the view is at a position.

        Raises:
            ViewBehind: it was not in time.
        """
        ...

    async def select(self, query: Query[Any]) -> list[Values]:
        """Ask one table."""
        ...

    async def select_both(self, one: Query[Any], other: Query[Any]) -> tuple[list[Values], list[Values]]:
        """Ask one table two questions at once."""
        ...

    async def tally(self, table: Table[Any], columns: Sequence[str], where: Sequence[Condition] = ()) -> dict[Key, int]:
        """Count by columns."""
        ...

    async def leases(self, pauses: Sequence[UUID]) -> Mapping[UUID, tuple[int, datetime]]:
        """Read the renewed leases of these pauses: fence and end (UTC)."""
        ...


P = TypeVar("P", bound=Projection)


class View(Generic[P]):
    """The questions to one view. Each takes a scope and crosses none; an operator's are named `..._of_all_tenants`.

    With `after`, the position of a receipt, a question waits (at most `seconds`) until the view has folded that.

    Raises (every question):
        InteractionConfigurationError: the scope is none.
        ViewBehind: the view was not there in time.
        StoreUnavailable: the store could not speak.
    """

    projection: ClassVar[type[Projection]]

    def __init__(self, asking: Asking) -> None:
        self._ask = asking

    async def unreadable(
        self, scope: Scope, *, limit: int = 100, after: int | None = None, seconds: float = PATIENCE
    ) -> list[SetAside]:
        """List the facts set aside, oldest first."""
        return await self._unreadable(within(scope), limit, after, seconds)

    async def unreadable_of_all_tenants(
        self, *, limit: int = 100, after: int | None = None, seconds: float = PATIENCE
    ) -> list[SetAside]:
        """List the facts set aside of every tenant, those among them whose tenant cannot be read."""
        return await self._unreadable((), limit, after, seconds)

    async def _unreadable(
        self, where: Sequence[Condition], limit: int, after: int | None, seconds: float
    ) -> list[SetAside]:
        await self._ask.reach(after, seconds)
        return await self._rows(Query(self.projection.set_aside, where, ("position",), limit=limit))

    async def _rows(self, query: Query[R]) -> list[R]:
        return [query.table.show(values) for values in await self._ask.select(query)]


def within(scope: Scope) -> tuple[Condition, ...]:
    """Keep a question inside one scope.

    Raises:
        InteractionConfigurationError: it is none.
    """
    if not isinstance(scope, Scope):
        raise InteractionConfigurationError("a view is asked within a Scope; an operator's questions are named so")
    return (("scope", "=", scope),)
