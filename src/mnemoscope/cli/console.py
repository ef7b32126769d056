"""The consoles on which verbs draw tables and bars.

Rich writes escape sequences of its own to a terminal, so a console writes past the frame's filter and does its work: no
control code of a drawn text gets through, and no text is read as rich's markup.
"""

import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from mnemoscope.atlas.visible import without_controls
from mnemoscope.cli.frame import Seen


class _Plain(Console):
    """A console whose texts are shown as they stand; only rich's own control segments act."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(without_controls(segment.text), segment.style)


def drawing(*, piped_width: int) -> Console:
    """A console on stdout; `piped_width` is its width where stdout is no terminal."""
    width = None if sys.stdout.isatty() else piped_width
    return _Plain(file=_past(sys.stdout), width=width, highlight=False, markup=False, emoji=False)


def noting() -> Console:
    """A console on stderr, for bars."""
    return _Plain(file=_past(sys.stderr))


def _past(stream: TextIO | Seen) -> TextIO:
    """The stream behind the frame's filter."""
    return stream.stream if isinstance(stream, Seen) else stream
