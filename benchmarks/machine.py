"""What it was measured on: cores, memory, the disk and how long a flush takes, and the versions of everyone."""

import os
import platform
import sqlite3
import statistics
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def processor():
    """Name the processor and count its cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} cores ({names[0] if names else platform.machine()})"


def memory():
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"


def disk(folder):
    """Tell the file system a folder is on."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    reaching = [mount for mount in mounts if Path(folder).resolve().is_relative_to(mount[1])]
    device, _, kind, *_ = max(reaching, key=lambda mount: len(mount[1]))
    return f"{kind} on {device}"


def flush_us(folder, times=100):
    """Measure a flush of 8 KiB that were just written, in microseconds (median)."""
    took = []
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(times):
            file.write(os.urandom(8192))
            file.flush()
            begun = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - begun)
    return statistics.median(took) * 1e6


def installed(package):
    """Tell a package's version, or None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def describe(server_version, packages):
    """Tell it all in one sentence for a README."""
    folder = tempfile.gettempdir()
    # Its number says enough; what a builder calls theirs tells of the machine alone.
    kernel = platform.release().partition("-")[0]
    versions = [f"{package} {found}" for package in packages if (found := installed(package))]
    return (
        f"{processor()}, {memory()}, {disk(folder)} (a flush takes {flush_us(folder):.0f} us),"
        f" {platform.system()} {kernel}, Python {platform.python_version()}, PostgreSQL {server_version},"
        f" SQLite {sqlite3.sqlite_version}, {', '.join(versions)}"
    )
