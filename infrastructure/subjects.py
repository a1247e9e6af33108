"""Where in a ledger a person is named: found by their tag in headers alone, whether or not their name can be read."""

import json
from uuid import UUID

from ..domain.axes import Scope
from .mapper import FactMapper
from .store import LedgerRecorder


def named_in(recorder: LedgerRecorder, mapper: FactMapper, scope: Scope, tag: str) -> list[UUID]:
    """Walk the log (blocks), and list the pauses and other streams of a scope whose facts name a tag, oldest first.

    A scope's parts that are None choose nothing: a tenant's covers all that is narrower.

    Raises:
        LedgerCorrupt: a row is not in the ledger's format.
    """
    wanted = {name: value for name, value in scope.model_dump().items() if value is not None}
    found: dict[UUID, None] = {}
    for row in recorder.walk():
        header = mapper.header(row)
        if tag.encode() not in header:
            continue
        said = json.loads(header)
        if said["scope"] is not None and wanted.items() <= said["scope"].items():
            found[UUID(said["pause"])] = None
    return list(found)
