"""A part of the terminal that is redrawn while a command works."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.live import Live

from itl.cli.display.tables import open_console


def live_console(given: dict[str, Any]) -> Console | None:
    """The console for a live display; None for `--json`, `--quiet` and outputs that are not interactive terminals."""
    console = open_console()
    interactive = console.is_terminal and not console.is_dumb_terminal
    return console if interactive and not given.get("as_json") and not given.get("quiet") else None


class LiveDisplay:
    """A context manager that redraws `render()` from a background thread, so that the work never waits for it."""

    def __init__(self, console: Console, refresh_per_second: int) -> None:
        self.console = console
        self.live = Live(
            get_renderable=self.render, console=console, refresh_per_second=refresh_per_second, transient=True
        )

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    def render(self) -> RenderableType:
        """The current contents."""
        raise NotImplementedError
