"""What is redrawn on a terminal while something goes on."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live


class Screen:
    """Shown from `with` to its end, by a thread of its own, so that nothing waits for a terminal."""

    def __init__(self, console: Console, a_second: int) -> None:
        self.console = console
        self.live = Live(get_renderable=self.render, console=console, refresh_per_second=a_second, transient=True)

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    def render(self) -> RenderableType:
        """What is seen now."""
        raise NotImplementedError
