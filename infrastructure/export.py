"""Exports evidence bundles: rows, proofs and a head for an auditor's machine, and the same told for people."""

import contextlib
import csv
import hashlib
import json
import os
import shutil
import socket
import tempfile
import time
import zipfile
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Self, TextIO
from uuid import UUID

try:
    import fcntl
except ImportError:  # Windows: what a killed export left is there for whoever finds it.
    fcntl = None  # type: ignore[assignment]

from eventsourcing.persistence import Notification

from ..domain.axes import Scope
from ..domain.content import SALT_BYTES, ContentAlteredError, ContentErasedError
from ..domain.errors import InteractionConfigurationError, LedgerCorrupt, LedgerTooNew, RequestMissing
from ..domain.facts import Answered, Fact, contents_of
from ..domain.sentences import signature, tell
from .export_picked import Chosen, Pick, Picked, Progress
from .export_readme import readme, title
from .export_report import Report
from .headers import Log, json_object
from .mapper import FactMapper, stored_digest
from .merkle import inclusion_proof
from .notes import Checkpoint, Proof, Verifier, hashes_as_text
from .sealed import NO_HEAD, SealedRows
from .sealer import prove_consistency
from .store import LedgerRecorder

#: Rows read whole at a time; each may hold a turn of 4 MiB.
_WHOLE = 32
#: Cells that begin so are taken for formulas by spreadsheets; the last four are full width (OWASP, CSV Injection).
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_COLUMNS = (
    "leaf_index", "position", "at", "tenant", "session_id", "run_id", "pause", "stream", "version", "topic", "sentence",
    "signed_by", "signed_at", "meaning", "digest",
)  # fmt: skip
#: Whole streams; and single rows of others. The verifier has these names of its own: it is handed on alone.
_CHAINED, _BESIDE = "facts.jsonl", "beside.jsonl"
#: In an archive everything stands in this folder, with this time.
_INSIDE, _TIME = "evidence", (1980, 1, 1, 0, 0, 0)
_SUMS = "SHA256SUMS"
#: Where a bundle is made, beside its place; and how long that may take to be held by whoever makes it (seconds).
_ASIDE, _MARK, _BEGINNING = ".export-", "of-pauseledger", 60.0


@dataclass(frozen=True, slots=True)
class ExportCommand:
    """What to export, and where to.

    Attributes:
        out: A folder that is not there or empty, or a file ending in `.zip` that is not there.
        pause: Of this pause alone.
        session_id: Of this session alone.
        run_id: Of this run of the session alone.
        begins, ends: Of pauses in which something happened from `begins` on, and before `ends` (with their zones); each
            is told from its beginning up to `ends`.
        content: Tell what people wrote in sentences and tables too. Its digests are always told.
        report: Make a printable report, which needs fpdf2 (the extra `report`).
        font: The report's TrueType or OpenType font; without one it is printed in one of Western Europe.
        kept: Older heads that whoever verifies has kept: it is proved that the log still begins with them.

    Raises:
        InteractionConfigurationError: it does not say what it means.
    """

    out: Path
    pause: UUID | None = None
    session_id: str | None = None
    run_id: str | None = None
    begins: datetime | None = None
    ends: datetime | None = None
    content: bool = False
    report: bool = True
    font: Path | None = None
    kept: Sequence[str] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.out, Path):
            raise InteractionConfigurationError(
                "out must be a pathlib.Path: a new folder, or a new file ending in .zip"
            )
        if self.run_id is not None and self.session_id is None:
            raise InteractionConfigurationError("a run is one of a session; give its session as well")
        if self.pause is not None and self.session_id is not None:
            raise InteractionConfigurationError("give a pause or a session, not both")
        if any(one is not None and one.tzinfo is None for one in (self.begins, self.ends)):
            raise InteractionConfigurationError("a period begins and ends at times with their zones")
        if self.begins is not None and self.ends is not None and self.begins >= self.ends:
            raise InteractionConfigurationError("a period ends after it begins; give them the other way round")


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export came to.

    Attributes:
        pauses, rows, proofs: How many are in the bundle.
        size: How many leaves the head has under which all of it is proved.
        unsealed: How many facts belong into it and are not under that head yet; they are not in it.
        unread: With `content`: how many texts are not told, as nothing here opens them or tells that they were erased.
    """

    out: Path
    pauses: int
    rows: int
    proofs: int
    size: int
    unsealed: int
    unread: int = 0


class Export:
    """One export, of one scope or (None) of all tenants. Blocks; holds a batch of rows, whatever the number of them.

    Raises (every method):
        StoreUnavailable: the store could not speak.
        Unproved: what is sealed does not hold together; nothing is exported.
        RequestMissing: there is no such pause.
        InteractionConfigurationError: there is nothing to export, or nowhere to put it.
    """

    def __init__(
        self,
        recorder: LedgerRecorder,
        rows: SealedRows,
        mapper: FactMapper,
        key: Verifier,
        *,
        scope: Scope | None,
        command: ExportCommand,
        progress: Progress | None = None,
    ) -> None:
        self._recorder = recorder
        self._rows = rows
        self._mapper = mapper
        self._ledger = recorder.identity().ledger_id
        self._key = key
        self._scope = scope
        self._command = command
        self._progress = progress
        self._unread = 0

    def run(self) -> Exported:
        """Make the bundle; where it fails, nothing is left behind."""
        out = self._command.out
        _require_free(out)
        newest = self._rows.newest_head()
        if newest is None:
            raise InteractionConfigurationError(NO_HEAD)
        head = Checkpoint.open(newest.checkpoint, [self._key])
        chosen = self._choose()
        with Picked(chosen, head.size) as picked:
            picked.walk(self._rows, Log(self._recorder, self._mapper, self._ledger), self._progress)
            self._require_something(picked)
            with _placed(out) as folder:
                telling = title(self._ledger, chosen, head.size, picked)
                proofs = self._write(folder, newest.checkpoint, head, picked, telling)
            return Exported(out, picked.pauses, picked.rows, proofs, head.size, picked.unsealed, self._unread)

    def _choose(self) -> Chosen:
        """Say what is chosen; a pause alone is of its own tenant, whose rules go with it."""
        command, scope = self._command, self._scope
        if scope is None and command.pause is not None:
            rows = self._recorder.load([command.pause]).rows
            if not rows:
                raise RequestMissing(command.pause)
            fact = self._read(rows[0])
            scope = None if fact is None else fact.scope
        return Chosen(scope, command.pause, command.session_id, command.run_id, command.begins, command.ends)

    def _require_something(self, picked: Picked) -> None:
        if picked.of_pauses:
            return
        if picked.unsealed:
            raise InteractionConfigurationError(
                "what was asked for is not under the newest head yet; run `pauseledger seal`, or export with --seal"
            )
        command = self._command
        if command.pause is not None and command.begins is None and command.ends is None:
            raise RequestMissing(command.pause)
        raise InteractionConfigurationError(
            "nothing was found; look at the tenant, the session, the run, and at the period with its zone"
        )

    def _write(self, folder: Path, checkpoint: str, head: Checkpoint, picked: Picked, telling: Sequence[str]) -> int:
        (folder / "head.txt").write_text(checkpoint, "utf-8")
        (folder / "public-key.txt").write_text(f"{self._key}\n", "utf-8")
        shutil.copyfile(Path(__file__).with_name("verify.py"), folder / "verify.py")
        for kept in self._command.kept:
            older = Checkpoint.of(kept)
            (folder / "consistency").mkdir(exist_ok=True)
            path = prove_consistency(self._rows, older, head)
            (folder / "consistency" / f"{older.size}.txt").write_text(hashes_as_text(path), "utf-8")
        says = readme(telling, picked, self._command.kept, content=self._command.content)
        (folder / "README.md").write_text(says, "utf-8")
        with _Sums(folder) as sums:
            with _People(folder, telling, self._command) as people:
                self._write_rows(folder, checkpoint, head.size, picked, people, sums)
            sums.add_others()
            return sums.proofs

    def _write_rows(  # noqa: PLR0917 - one caller
        self, folder: Path, checkpoint: str, size: int, picked: Picked, people: "_People", sums: "_Sums"
    ) -> None:
        node, done, total = self._rows.node(size), 0, picked.rows
        picks = iter(picked)
        with (
            _opened(folder / _CHAINED) as chained,
            _opened(folder / _BESIDE) as beside,
        ):
            while some := list(islice(picks, _WHOLE)):
                for pick, row in zip(some, self._whole(some), strict=True):
                    fact = self._read(row)
                    told = self._told(pick, row, fact)
                    (beside if pick.beside else chained).write(json.dumps(told, separators=(",", ":")) + "\n")
                    people.tell(told, fact)
                    if pick.proof:
                        proof = Proof(pick.leaf, inclusion_proof(node, pick.leaf, size), checkpoint)
                        sums.add_proof(pick.leaf, proof.text())
                done += len(some)
                if self._progress is not None:
                    self._progress(done, total)
        if not (folder / _BESIDE).stat().st_size:
            (folder / _BESIDE).unlink()

    def _whole(self, picks: Sequence[Pick]) -> list[Notification]:
        """Read rows whole: by one question where they stand close together, else one by one."""
        positions = {pick.position for pick in picks}
        first, last = min(positions), max(positions)
        if last - first < 2 * _WHOLE:
            near = self._recorder.select_notifications(first, last - first + 1, last)
            found = {row.id: row for row in near if row.id in positions}
        else:
            found = {at: row for at in positions for row in self._recorder.select_notifications(at, 1, at)}
        return [found[pick.position] for pick in picks]

    def _told(self, pick: Pick, row: Notification, fact: Fact | None) -> dict[str, Any]:
        state, before = bytes(row.state), pick.before
        if before is None:
            before = bytes(32) if pick.version == 1 else self._digest_of(pick.stream, pick.version - 1)
        try:
            header = json_object(self._mapper.header(row))
        except (LedgerCorrupt, ValueError):
            header = {}
        told = {
            "leaf_index": pick.leaf,
            "position": pick.position,
            "stream": str(pick.stream),
            "version": pick.version,
            "topic": row.topic,
            "before": before.hex(),
            "state": b64encode(state).decode(),
            "digest": stored_digest(state).hex(),
            "pause": header.get("pause"),
            "at": header.get("at"),
            "sentence": _sentence(row, fact, content=self._command.content),
            "fact": header,
        }
        if not self._command.content:
            return told
        contents, unread = _contents(fact)
        self._unread += unread
        return {**told, "contents": contents}

    def _digest_of(self, stream: UUID, version: int) -> bytes:
        found = self._recorder.select_events(stream, gt=version - 1, lte=version)
        return stored_digest(bytes(found[0].state)) if found else bytes(32)

    def _read(self, row: Notification) -> Fact | None:
        try:
            fact: Fact = self._mapper.to_domain_event(row)
        except (LedgerTooNew, LedgerCorrupt):
            return None
        return fact


class _People:
    """What a bundle holds for people: the table and the report."""

    def __init__(self, folder: Path, telling: Sequence[str], command: ExportCommand) -> None:
        self._report = Report(folder, telling, command.font) if command.report else None
        self._table = (folder / "facts.csv").open("w", encoding="utf-8", newline="")
        self._csv = csv.writer(self._table)
        self._csv.writerow(_COLUMNS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._table.close()
        if self._report is not None:
            self._report.close()

    def tell(self, told: dict[str, Any], fact: Fact | None) -> None:
        """Tell one fact."""
        signed = signature(fact) if isinstance(fact, Answered) else ("", "", "")
        header = told["fact"]
        cells = {
            **told,
            **dict(zip(("signed_by", "signed_at", "meaning"), signed, strict=True)),
            "tenant": (header.get("scope") or {}).get("tenant_id"),
            "session_id": header.get("session_id"),
            "run_id": header.get("run_id"),
        }
        self._csv.writerow([_cell(cells[name]) for name in _COLUMNS])
        if self._report is None:
            return
        lines = [told["sentence"], f"pause {told['pause']}, leaf {told['leaf_index']}, digest {told['digest']}"]
        if isinstance(fact, Answered):
            lines += [
                f"SIGNED BY  {signed[0]}",
                f"DATE, TIME {signed[1]}",
                f"MEANING    {signed[2]}",
                f"OF         what was asked, digest {fact.shown}; the answer, digest {fact.response.digest}",
            ]
        self._report.add(lines, None if fact is None else fact.at)


class _Sums:
    """Writes proofs, and `SHA256SUMS` as `sha256sum` does. There may be many proofs, so no list of them is held."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = _opened(folder / _SUMS)
        (folder / "proofs").mkdir()
        self.proofs = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add_proof(self, leaf: int, text: str) -> None:
        """Write a proof."""
        name, said = f"proofs/{leaf}.tlog-proof", text.encode()
        (self._folder / name).write_bytes(said)
        self._add(hashlib.sha256(said).hexdigest(), name)
        self.proofs += 1

    def add_others(self) -> None:
        """Digest every other file, in one order everywhere."""
        found = [path for path in self._folder.iterdir() if path.is_file() and path.name != _SUMS]
        for path in sorted([*found, *self._folder.glob("consistency/*")]):
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            self._add(digest, path.relative_to(self._folder).as_posix())

    def _add(self, digest: str, name: str) -> None:
        self._file.write(f"{digest}  {name}\n")


def _names(folder: Path) -> Iterator[str]:
    """Go through the files of a bundle, in the order of its sums."""
    with (folder / _SUMS).open(encoding="utf-8") as sums:
        for line in sums:
            yield line.rstrip("\n").partition("  ")[2]
    yield _SUMS


def _sentence(row: Notification, fact: Fact | None, *, content: bool) -> str:
    if fact is None:
        return f"{row.topic} cannot be read by this version; its bytes are here as they were stored."
    return tell(fact, content=content)


def _contents(fact: Fact | None) -> tuple[list[dict[str, Any]], int]:
    """Tell what people wrote, with its salt, and how much of it nothing here opens or tells to be erased.

    SHA-256 over salt and text is the digest in the header.
    """
    told, unread = [], 0
    for one in contents_of(fact):
        salt = text = None
        try:
            body = one.body()
            # What is no UTF-8 was written by nobody's product, and as a text would not fit its digest.
            with contextlib.suppress(UnicodeDecodeError):
                text, salt = body[SALT_BYTES:].decode(), body[:SALT_BYTES].hex()
        except ContentErasedError:
            pass
        except ContentAlteredError:
            unread += 1
        told.append({"digest": one.digest, "media_type": one.media_type, "salt": salt, "text": text})
    return told, unread


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULAS) else value


def _opened(path: Path) -> TextIO:
    return path.open("w", encoding="utf-8", newline="\n")


def _require_free(out: Path) -> None:
    try:
        taken = out.exists() and not (out.is_dir() and out.suffix != ".zip" and not any(out.iterdir()))
    except OSError as failed:
        raise InteractionConfigurationError(f"cannot write {out}: {failed.strerror}; give another place") from None
    if taken:
        raise InteractionConfigurationError(f"{out} is there already, and not empty; give another place")


@contextmanager
def _placed(out: Path) -> Iterator[Path]:
    """Lend a folder beside the place meant, and move it there whole, or as an archive; nothing half is ever there."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(out.parent)
        aside = Path(tempfile.mkdtemp(prefix=_ASIDE, dir=out.parent))
    except OSError as failed:
        raise InteractionConfigurationError(f"cannot write beside {out}: {failed.strerror}") from None
    at_work: int | None = None
    try:
        at_work = _held(aside, begins=True)
        folder = aside / _INSIDE
        folder.mkdir(mode=0o700)
        yield folder
        if out.suffix == ".zip":
            _pack(folder, aside / "packed")
            _put(aside / "packed", out)
        else:
            for path in folder.rglob("*"):
                path.chmod(0o700 if path.is_dir() else 0o600)
            folder.rename(out)
    except OSError as failed:
        raise InteractionConfigurationError(f"cannot write {out}: {failed.strerror}; nothing is left of it") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if at_work is not None:
            os.close(at_work)


def _put(made: Path, out: Path) -> None:
    """Give a file its name unless somebody was first: renaming would put it in the other one's place."""
    try:
        out.hardlink_to(made)
    except FileExistsError:
        raise
    except OSError:
        # Some media have no second names.
        _require_free(out)
        made.rename(out)


def _held(aside: Path, *, begins: bool) -> int | None:
    """Hold a folder of ours for as long as this process lives; None where it is taken, or not known to be ours.

    What shows that it is: a file in it that names this package, machine and user. Locks of other machines may not
    reach here.
    """
    if fcntl is None:
        return None
    mine = f"pauseledger export on {socket.gethostname()} as {os.getuid()}\n".encode()
    descriptor = os.open(aside / _MARK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if begins else 0), 0o600)
    try:
        if begins:
            os.write(descriptor, mine)
        elif os.pread(descriptor, len(mine) + 1, 0) != mine:
            raise PermissionError
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_abandoned(beside: Path) -> None:
    """Remove what exports of ours left that were killed. One that has just begun may not hold its folder yet."""
    for aside in beside.glob(f"{_ASIDE}*"):
        with suppress(OSError):
            if time.time() - aside.stat().st_mtime < _BEGINNING:
                continue
            free = _held(aside, begins=False)
            if free is not None:
                shutil.rmtree(aside, ignore_errors=True)
                os.close(free)


def _pack(folder: Path, to: Path) -> None:
    """Put a folder into an archive, uncompressed: what a compressor makes differs from one machine to the next."""
    descriptor = os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w") as archive:
        for name in _names(folder):
            entry = zipfile.ZipInfo(f"{_INSIDE}/{name}", _TIME)
            entry.external_attr, entry.create_system = 0o644 << 16, 3
            entry.file_size = (folder / name).stat().st_size
            with (folder / name).open("rb") as source, archive.open(entry, "w") as target:
                shutil.copyfileobj(source, target)


def require_key(key: Verifier | None, rows: SealedRows) -> Verifier:
    """Give the key that the heads of the sealed log are verified with.

    Raises:
        InteractionConfigurationError: there is none, or no head was signed yet.
    """
    if rows.newest_head() is None:
        raise InteractionConfigurationError(NO_HEAD)
    if key is None:
        raise InteractionConfigurationError(
            "there is no log key here; give its public key (--public-key FILE), as `pauseledger keys log` prints it"
        )
    return key
