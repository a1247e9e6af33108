"""This package's version, as facts name it, in a place that imports nothing of ours."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("pauseledger")
except PackageNotFoundError:
    __version__ = "unpackaged"
