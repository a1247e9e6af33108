"""Listed words: what a header may hold of the host's own. Free text never goes there."""

import re
from typing import Any

from .errors import InteractionConfigurationError

WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,63}")


def is_word(value: Any) -> bool:
    """Tell whether a value is a word: up to 64 letters, digits and `_.:/-`."""
    return isinstance(value, str) and WORD.fullmatch(value) is not None


def require_word(parameter: str, value: Any) -> None:
    """Check that a value is a word.

    Raises:
        InteractionConfigurationError: it is none; the value is not quoted.
    """
    if not is_word(value):
        raise InteractionConfigurationError(f"{parameter} must be a word of up to 64 letters, digits and _.:/-")


def require_one_of(parameter: str, value: Any, words: tuple[str, ...]) -> None:
    """Check that a value is one of the fixed words.

    Raises:
        InteractionConfigurationError: it is none of them; the value is not quoted.
    """
    if value not in words:
        raise InteractionConfigurationError(f"{parameter} must be one of {', '.join(words)}")
