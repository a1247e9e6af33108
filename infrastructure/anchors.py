"""Where heads are kept outside: a file on other media, a git repository, an HTTPS endpoint, RFC 3161 time stamps.

An anchor is worth what it costs the database's owner to change what it keeps. Only heads go there: an origin, a number
and a hash.
"""

import http.client
import os
import re
import secrets
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, Protocol
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

from ..domain.errors import InteractionConfigurationError, StoreUnavailable
from .extras import extra
from .merkle import Unproved
from .notes import NOTE_BYTES, Checkpoint
from .patient import read_patiently

#: How long an anchor may take to speak, in seconds.
DEADLINE = 10.0

_HELP = (
    "an anchor is file:///path/head.txt, git:///path/to/repository, https://host/path, or "
    "tsa+https://host/path?into=/directory&roots=/roots.pem"
)
_LOCAL = {"localhost", "127.0.0.1", "::1"}
_STAMPED = re.compile(r"([1-9][0-9]{0,18})\.checkpoint")


class AnchorUnavailable(StoreUnavailable):
    """An anchor could not speak; it is asked again when the next head goes out."""


class Anchor(Protocol):
    """Keeps signed heads where the database's owner cannot change them. Its methods block, within a deadline.

    Raises (every method):
        AnchorUnavailable: it could not speak.
    """

    name: str

    def newest(self) -> str | None:
        """Read the head kept last; None where there is none, or it cannot be read back."""
        ...

    def publish(self, head: str) -> None:
        """Keep a head."""
        ...


class FileAnchor:
    """The newest head in one file: on another machine's share, on media that are taken away.

    The file is replaced as a whole, and on the disk when that is told.
    """

    def __init__(self, path: Path) -> None:
        self.name = f"file {path}"
        self._path = path

    def newest(self) -> str | None:
        """Read the file."""
        try:
            return read_patiently(self._path, seconds=DEADLINE).decode()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise AnchorUnavailable(f"the anchor {self._path} cannot be read: {type(error).__name__}") from None

    def publish(self, head: str) -> None:
        """Replace the file."""
        _write(self._path, head.encode())


class GitAnchor:
    """A commit a head, of `head.txt` in a repository that is there; whoever fetches from it holds every head."""

    def __init__(self, repository: Path) -> None:
        self.name = f"git {repository}"
        self._repository = repository

    def newest(self) -> str | None:
        """Read the head committed last."""
        if self._git("rev-parse", "--verify", "--quiet", "HEAD:head.txt", may_fail=True) is None:
            self._git("rev-parse", "--git-dir")
            return None
        return self._git("show", "HEAD:head.txt")

    def publish(self, head: str) -> None:
        """Commit a head."""
        if self.newest() == head:
            return
        _write(self._repository / "head.txt", head.encode())
        self._git("add", "--", "head.txt")
        who = ("-c", "user.name=pauseledger", "-c", "user.email=pauseledger@localhost")
        says = f"Tree head of {Checkpoint.of(head).size} leaves"
        self._git(*who, "commit", "--quiet", "--message", says, "--", "head.txt")

    def _git(self, *arguments: str, may_fail: bool = False) -> str | None:
        try:
            done = subprocess.run(  # noqa: S603 - fixed words; the path is the operator's own
                ["git", "-C", str(self._repository), *arguments],  # noqa: S607 - whichever git the operator uses
                capture_output=True,
                timeout=DEADLINE,
                check=False,
                env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise AnchorUnavailable(f"git could not do it in {self._repository}: {type(error).__name__}") from None
        if done.returncode == 0:
            return done.stdout.decode("utf-8", "replace")
        if may_fail:
            return None
        raise AnchorUnavailable(f"git {arguments[0]} failed in {self._repository}; is it a repository of yours?")


class HttpsAnchor:
    """Heads sent by POST as text/plain to an endpoint, which answers GET with the newest, or with 404, 405 or 410."""

    def __init__(self, url: str) -> None:
        self.name = f"https {urlsplit(url).hostname}"
        self._url = url

    def newest(self) -> str | None:
        """Ask for the newest head."""
        try:
            said = _asked(self.name, urllib.request.Request(self._url))  # noqa: S310 - `anchor_of` lets https alone through
        except urllib.error.HTTPError as error:
            if error.code in {404, 405, 410}:
                return None
            raise AnchorUnavailable(f"the anchor {self.name} answered {error.code}") from None
        return said.decode("utf-8", "replace") or None

    def publish(self, head: str) -> None:
        """Send a head."""
        _sent(self.name, self._url, head.encode(), "text/plain; charset=utf-8")


class TimestampAnchor:
    """Heads stamped by an RFC 3161 authority: `N.checkpoint` and `N.tsr` in a directory. Needs the extra `timestamps`.

    A stamp is verified before it is kept: that it is of this head and this request, and by whom the roots vouch for.
    The roots are read once.

    Raises (on making one):
        InteractionConfigurationError: the extra is not installed, or the roots cannot be read or are none.
    """

    def __init__(self, url: str, into: Path, roots: Path) -> None:
        self._tsp = _tsp()
        self.name = f"tsa {urlsplit(url).hostname}"
        self._url = url
        self._into = into
        self._roots = _roots_in(roots)

    def newest(self) -> str | None:
        """Read the head stamped last."""
        try:
            kept = [int(found[1]) for one in self._into.iterdir() if (found := _STAMPED.fullmatch(one.name))]
            return read_patiently(self._into / f"{max(kept)}.checkpoint").decode() if kept else None
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise AnchorUnavailable(f"the anchor {self._into} cannot be read: {type(error).__name__}") from None

    def publish(self, head: str) -> None:
        """Have a head stamped, and keep both."""
        builder = self._tsp.TimestampRequestBuilder()
        request = builder.data(head.encode()).hash_algorithm(self._tsp.HashAlgorithm.SHA256).build()
        said = _sent(self.name, self._url, request.as_bytes(), "application/timestamp-query")
        try:
            verify_stamp(said, head, self._roots, nonce=request.nonce)
        except Unproved as wrong:
            raise AnchorUnavailable(f"the anchor {self.name} gave no stamp that can be kept: {wrong}") from None
        size = Checkpoint.of(head).size
        _write(self._into / f"{size}.tsr", said)
        _write(self._into / f"{size}.checkpoint", head.encode())


def verify_stamp(response: bytes, head: str, roots: bytes, *, nonce: int | None = None) -> datetime:
    """Hold a time stamp against a head, and its signer against root certificates (PEM); give the time (UTC).

    Raises:
        Unproved: it is not of this head, or nobody vouches for it.
        InteractionConfigurationError: the extra is not installed, or the roots are none.
    """
    tsp = _tsp()
    builder = tsp.VerifierBuilder(roots=_certificates(roots), nonce=nonce)
    try:
        stamp = tsp.decode_timestamp_response(response)
        builder.build().verify_message(stamp, head.encode())
    except (tsp.VerificationError, ValueError) as wrong:
        raise Unproved(f"the time stamp does not hold: {wrong}") from None
    said: datetime = stamp.tst_info.gen_time
    return said


def anchor_of(url: str) -> Anchor:
    """Find the anchor that a URL names.

    Raises:
        InteractionConfigurationError: there is none of that kind, a part of it is missing or cannot be read, or it
            holds a name or a password: what is wrong with an anchor is logged.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise InteractionConfigurationError(_HELP) from None
    if "@" in parts.netloc:
        raise InteractionConfigurationError(
            f"leave the name and the password out of the URL of the anchor at {host or 'no host'}; what its endpoint "
            "wants to know may stand in the path or behind the question mark, which are never shown"
        )
    path = Path(unquote(parts.path))
    if parts.scheme in {"file", "git"} and not parts.netloc and path.is_absolute():
        return FileAnchor(path) if parts.scheme == "file" else GitAnchor(path)
    told = parse_qs(parts.query)
    scheme = parts.scheme.removeprefix("tsa+")
    plain = scheme == "https" or (scheme == "http" and host in _LOCAL)
    if plain and parts.scheme.startswith("tsa+") and {"into", "roots"} <= told.keys():
        bare = urlunsplit((scheme, parts.netloc, parts.path, "", ""))
        return TimestampAnchor(bare, Path(told["into"][0]), Path(told["roots"][0]))
    if plain and parts.scheme == scheme and host:
        return HttpsAnchor(url)
    raise InteractionConfigurationError(_HELP)


def _tsp() -> Any:
    try:
        import rfc3161_client  # noqa: PLC0415 - an optional extra
    except ImportError:
        raise InteractionConfigurationError(
            f"time stamps need the library rfc3161-client; run {extra('timestamps')}"
        ) from None
    return rfc3161_client


def _roots_in(path: Path) -> bytes:
    try:
        roots = path.read_bytes()
    except OSError as error:
        raise InteractionConfigurationError(
            f"the roots of the time stamps, {path}, cannot be read: {error.strerror}"
        ) from None
    _certificates(roots)
    return roots


def _certificates(roots: bytes) -> Any:
    from cryptography.x509 import load_pem_x509_certificates  # noqa: PLC0415 - of this anchor alone

    try:
        return load_pem_x509_certificates(roots)
    except ValueError:
        raise InteractionConfigurationError("the roots of the time stamps are no certificates in PEM") from None


def _write(path: Path, content: bytes) -> None:
    """Replace a file as a whole; it is on the disk when this returns."""
    aside = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with aside.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise AnchorUnavailable(f"the anchor {path} cannot be written: {error.strerror}") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would turn a POST into a GET, and a head into nothing."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


def _sent(name: str, url: str, body: bytes, kind: str) -> bytes:
    request = urllib.request.Request(url, body, {"Content-Type": kind})  # noqa: S310 - `anchor_of` chose the scheme
    try:
        return _asked(name, request)
    except urllib.error.HTTPError as error:
        raise AnchorUnavailable(f"the anchor {name} answered {error.code}") from None


def _asked(name: str, request: urllib.request.Request) -> bytes:
    """Send a request; whatever the other side does, this returns within the deadline."""

    def ask() -> bytes:
        with _OPENER.open(request, timeout=DEADLINE) as response:
            said: bytes = response.read(NOTE_BYTES + 1)
        if len(said) > NOTE_BYTES:
            raise AnchorUnavailable(f"the anchor {name} answers more than a head")
        return said

    try:
        return _within(ask)
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        # A host's name, or a path, that cannot be sent is a ValueError.
        raise AnchorUnavailable(f"the anchor {name} cannot be reached: {type(error).__name__}") from None


def _within(work: Callable[[], bytes]) -> bytes:
    # A socket's own timeout begins anew with every byte.
    done: list[bytes] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(DEADLINE)
    if failed:
        _raise(failed[0])
    if not done:
        raise TimeoutError
    return done[0]


def _raise(error: BaseException) -> NoReturn:
    raise error
