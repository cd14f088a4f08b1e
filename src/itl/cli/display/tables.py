"""Consoles, and the shared style of all tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from itl.cli.output import printable


class PrintableConsole(Console):
    """A console that escapes control characters in the text it prints, which may be a name from somebody's folder."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render an object to segments; only rich's own control segments control the terminal."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def open_console(piped_width: int | None = None) -> Console:
    """A console on standard output; if that is not a terminal, `piped_width` columns wide."""
    console = PrintableConsole(highlight=False)
    if piped_width is None or console.is_terminal:
        return console
    return PrintableConsole(highlight=False, width=piped_width)


def plain_table(*headings: str, left: int = 0, **options: Any) -> Table:
    """A table with one line below the header and no other borders.

    Args:
        *headings: Headings of the columns; more columns can be added later.
        left: How many of them, from the first, are left-aligned. The others are right-aligned numbers.
        **options: Passed on to `rich.table.Table`.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold", **options)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < left else "right", no_wrap=True)
    return table
