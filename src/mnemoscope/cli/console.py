"""The consoles and tables with which verbs draw.

Rich writes escape sequences of its own to a terminal, so a console writes past the runner's filter and does its work:
no control code of a drawn text gets through, and no text is read as rich's markup.
"""

import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from mnemoscope.cli.runner import FilteredStream
from mnemoscope.formatting import show_controls


class _Plain(Console):
    """A console whose texts are shown as they stand; only rich's own control segments act."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(show_controls(segment.text), segment.style)


def drawing(*, piped_width: int) -> Console:
    """A console on stdout; `piped_width` is its width where stdout is no terminal."""
    width = None if sys.stdout.isatty() else piped_width
    return _Plain(file=_stream_behind(sys.stdout), width=width, highlight=False, markup=False, emoji=False)


def noting() -> Console:
    """A console on stderr, for bars."""
    return _Plain(file=_stream_behind(sys.stderr))


def _stream_behind(stream: TextIO | FilteredStream) -> TextIO:
    return stream.stream if isinstance(stream, FilteredStream) else stream


def grid(*columns: str, wrap: bool = False) -> Table:
    """A table without lines; the name of a column that begins with `>` is to the right. `wrap` breaks long names."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    for name in columns:
        table.add_column(name.removeprefix(">"), justify="right" if name[:1] == ">" else "left", no_wrap=not wrap)
    return table
