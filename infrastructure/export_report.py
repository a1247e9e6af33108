"""The printable report of a bundle (PDF, by fpdf2): every fact as a sentence, every answer with name, time and meaning.

The same facts make the same bytes: nothing in it is drawn or read from a clock, and nothing is compressed.
"""

import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ..domain.errors import InteractionConfigurationError
from ..domain.sentences import harmless
from .extras import extra

if TYPE_CHECKING:
    from fpdf import FPDF

#: A volume holds so many facts, and about so many characters: fpdf2 keeps a document in memory until it is written.
VOLUME, _LONG = 2000, 1 << 21
#: Characters that fit a line of A4 in Courier of 8 points.
_WIDE = 108
_SIZE, _HEIGHT = 8, 4.0
#: A document is dated by its newest fact; one whose facts have no time, by this.
_NO_TIME = datetime(2000, 1, 1, tzinfo=UTC)
_WITHOUT = (
    "Printed in a font of Western Europe: any other character stands as its number in Unicode, such as \\u4e2d; the "
    "text itself is in facts.jsonl."
)
_WITH = (
    "A character that the font given does not have stands as its number in Unicode, such as \\u4e2d; the text itself "
    "is in facts.jsonl. Arabic letters are not joined."
)


class Report:
    """Writes `report-001.pdf` and so on into a folder.

    Raises (on making one):
        InteractionConfigurationError: fpdf2 is not installed, or the font is none.
    """

    def __init__(self, folder: Path, title: Sequence[str], font: Path | None) -> None:
        try:
            import fpdf  # noqa: PLC0415 - an extra
        except ModuleNotFoundError:
            raise InteractionConfigurationError(
                f"a printable report needs the library fpdf2; run {extra('report')}, or leave it out (--no-report)"
            ) from None
        self._made = fpdf.FPDF
        self._folder = folder
        self._font = font
        self._glyphs = None if font is None else _glyphs(font)
        self._title = [*title, _WITHOUT if font is None else _WITH]
        self._volumes = self._facts = self._length = 0
        self._at = _NO_TIME
        self._page: FPDF | None = None

    def add(self, lines: Sequence[str], at: datetime | None) -> None:
        """Tell one fact; the first line is its heading."""
        page = self._page
        if page is None:
            page = self._page = self._begin()
        for number, line in enumerate(lines):
            self._write(page, line if not number else f"    {line}")
        self._at = self._at if at is None else at
        self._facts += 1
        self._length += sum(map(len, lines))
        if self._facts >= VOLUME or self._length >= _LONG:
            self.close()

    def close(self) -> None:
        """Write the volume that is begun."""
        page, self._page = self._page, None
        self._facts = self._length = 0
        if page is None:
            return
        page.set_creation_date(self._at)
        page.output(str(self._folder / f"report-{self._volumes:03}.pdf"))

    def _begin(self) -> "FPDF":
        self._volumes += 1
        page = self._made(format="A4")
        page.set_compression(False)
        page.set_title("Evidence of pauseledger")
        page.set_auto_page_break(auto=True, margin=15)
        if self._font is None:
            page.set_font("Courier", size=_SIZE)
        else:
            page.add_font("given", fname=self._font)
            page.set_font("given", size=_SIZE)
        page.add_page()
        for line in (*self._title, f"Volume {self._volumes}", ""):
            self._write(page, line)
        return page

    def _write(self, page: "FPDF", text: str) -> None:
        said = self._printable(harmless(text))
        if self._font is not None:
            page.multi_cell(0, _HEIGHT, said or " ", align="L", new_x="LMARGIN", new_y="NEXT")
            return
        # Far quicker than the library's own way to wrap lines.
        indent = " " * (len(said) - len(said.lstrip()))
        for line in textwrap.wrap(said, _WIDE, subsequent_indent=indent) or [""]:
            page.cell(0, _HEIGHT, line, new_x="LMARGIN", new_y="NEXT")

    def _printable(self, text: str) -> str:
        glyphs = self._glyphs
        if glyphs is None:
            return text.encode("latin-1", "backslashreplace").decode("latin-1")
        return "".join(
            char if ord(char) in glyphs else char.encode("ascii", "backslashreplace").decode() for char in text
        )


def _glyphs(font: Path) -> frozenset[int]:
    from fontTools.ttLib import (  # type: ignore[import-untyped]  # noqa: PLC0415 - comes with fpdf2
        TTFont,
        TTLibError,
    )

    try:
        with TTFont(font) as opened:
            return frozenset(opened.getBestCmap() or ())
    except (OSError, TTLibError):
        raise InteractionConfigurationError(f"{font} is no TrueType or OpenType font; give another file") from None
