"""What the kernels' tests have in common: a ledger in memory, and pages that are played."""

import ast
import contextlib
import io
import re
from pathlib import Path

import pytest
from pauseledger import open_ledger

PAGES = Path(__file__).resolve().parents[2] / "docs" / "kernels"


@pytest.fixture
async def memory():
    """Open a ledger that ends with the test."""
    async with open_ledger("memory:") as opened:
        yield opened


@pytest.fixture
def play():
    """Run a page's snippets in one namespace, in order; each prints what its comments say. Give their number."""

    async def played(page, namespace):
        snippets = re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
        for snippet in snippets:
            printed = io.StringIO()
            code = compile(snippet, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            with contextlib.redirect_stdout(printed):
                running = eval(code, namespace)
                if running is not None:
                    await running
            assert printed.getvalue().splitlines() == re.findall(r"print\(.*\)  # (.*)", snippet)
        return len(snippets)

    return played
