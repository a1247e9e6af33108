"""How the libraries of this package's extras are installed, in words that a shell takes."""


def extra(name: str) -> str:
    """Spell the command for an extra, from an index and in a clone."""
    return f"`pip install 'pauseledger[{name}]'` (in a clone: `pip install '.[{name}]'`)"
