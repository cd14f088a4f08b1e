"""A running `itl serve` for tests: the process, its address, and pictures to teach."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image, ImageDraw

QUICK = ("--set", "net.name=resnet8", "--set", "net.width=8", "--size", "16")
EPOCHS = {"specialist.epochs": 60, "tangent.epochs": 20, "projection.epochs": 20}


class Served:
    """An `itl serve` in a separate process."""

    def __init__(self, path: Path, *args: str, settings: dict[str, Any] | None = None) -> None:
        self.path = path
        chosen = EPOCHS if settings is None else settings
        pairs = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        env["ITL_CACHE"] = "off"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "itl", "serve", str(path), "--no-open", "--port", "0", *QUICK, *pairs, *args],
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"(http://\S+)/\?token=(\S+)", line)
        assert found is not None, f"the server printed {line!r}"
        self.base, self.token = found.groups()
        self.url = f"{self.base}/?token={self.token}"

    def client(self) -> httpx.Client:
        """A client that sends the token."""
        return httpx.Client(base_url=self.base, headers={"Authorization": f"Bearer {self.token}"}, timeout=120)

    @contextmanager
    def lessons_paused(self) -> Iterator[None]:
        """Suspend the process that teaches: a lesson can be started and cancelled inside the context, but not end."""
        worker = self._worker()
        worker.suspend()
        try:
            yield
        finally:
            worker.resume()

    def _worker(self) -> Any:
        """The process that teaches, which the server starts soon after it has printed its address."""
        import psutil

        while self.process.poll() is None:
            for child in psutil.Process(self.process.pid).children():
                with suppress(psutil.NoSuchProcess):
                    if "itl.apps.server.worker" in child.cmdline():
                        return child
            time.sleep(0.05)
        raise AssertionError("the server has ended")

    def kill(self) -> None:
        """Kill the server with SIGKILL; it cannot clean up."""
        self.process.send_signal(signal.SIGKILL)
        self._wait()

    def close(self) -> None:
        """End the server as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        self._wait()

    def _wait(self) -> None:
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


def shape_picture(kind: str, number: int, side: int = 64) -> Image.Image:
    """A picture of one class: a colored shape at a random position on a noisy background."""
    rng = np.random.default_rng([number, *kind.encode()])
    background = rng.integers(150, 235, 3) + rng.integers(-12, 12, (side, side, 3))
    image = Image.fromarray(background.clip(0, 255).astype(np.uint8))
    draw, half = ImageDraw.Draw(image), side * float(rng.uniform(0.2, 0.32))
    x, y = (float(value) for value in rng.uniform(0.38, 0.62, 2) * side)
    color = {"circle": (200, 45, 45), "square": (40, 80, 200), "cross": (30, 140, 70)}[kind]
    shade = tuple(int(c) for c in np.clip(np.array(color) + rng.integers(-25, 25, 3), 0, 255))
    box = (x - half, y - half, x + half, y + half)
    if kind == "circle":
        draw.ellipse(box, fill=shade)
    elif kind == "square":
        draw.rectangle(box, fill=shade)
    else:
        draw.line((box[0], y, box[2], y), fill=shade, width=side // 6)
        draw.line((x, box[1], x, box[3]), fill=shade, width=side // 6)
    return image


def png(image: Image.Image) -> bytes:
    """An image as the content of a PNG file."""
    out = io.BytesIO()
    image.save(out, format="PNG")
    return out.getvalue()


def shapes(kind: str, numbers: Sequence[int], side: int = 64) -> list[tuple[str, bytes]]:
    """Names and contents of picture files of one class."""
    return [(f"{kind}-{number}.png", png(shape_picture(kind, number, side))) for number in numbers]
