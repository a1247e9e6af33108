"""Reads a file that may be a pipe, and waits for whoever writes into it for a while and not for good."""

import os
import select
import stat
import time
from pathlib import Path

#: How long (seconds), and how much (bytes).
SECONDS, MOST = 10.0, 1 << 20


def read_patiently(path: Path, *, seconds: float = SECONDS, most: int = MOST) -> bytes:
    """Read a file, or what comes through a pipe or from a terminal within so many seconds.

    Raises:
        OSError: it cannot be read, nothing came in time (`TimeoutError`), or there is more than `most`.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        # A terminal or a socket may keep one waiting as a pipe does.
        comes = not stat.S_ISREG(os.fstat(descriptor).st_mode)
        found = _coming(descriptor, time.monotonic() + seconds, most) if comes else file.read(most + 1)
    if len(found) > most:
        raise OSError(f"it has more than {most} bytes")
    return found


def _coming(descriptor: int, deadline: float, most: int) -> bytes:
    found = b""
    while len(found) <= most:
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError("nobody wrote into it, or nobody ended it")
        some = os.read(descriptor, most)
        if not some:
            break
        found += some
    return found
