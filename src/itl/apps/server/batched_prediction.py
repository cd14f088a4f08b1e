"""Batched inference: requests that arrive at the same time share forward passes of the newest finished state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from itl.apps.images.read import Pixels, decode_bytes, ignore_warnings
from itl.apps.model import Model
from itl.apps.model.calibration import Predictions
from itl.apps.model.input_format import interpolation, match_channels
from itl.apps.server.limits import Limits
from itl.checkpoint import store
from itl.cpu import available_cores
from itl.errors import UserError

BATCH_SIZE = 64  # pictures in one forward pass
TOP_CLASSES = 5
T = TypeVar("T")


class Predictor:
    """Serves one model folder. The model is loaded again whenever another process has saved a new state.

    All computation happens in one thread, so a model is never used by two threads at once.

    Args:
        folder: The model folder.
        device: `auto`, `cpu` or `cuda`.
        limits: Limits on uploads.
    """

    def __init__(self, folder: Path, device: str, limits: Limits) -> None:
        self.folder, self.device, self.limits = folder, device, limits
        self._compute = ThreadPoolExecutor(1, "inference")
        self._decode = ThreadPoolExecutor(available_cores(), "decode")
        self._waiting: list[tuple[Pixels, asyncio.Future[tuple[Model, np.ndarray, bool]]]] = []
        self._running: asyncio.Task[None] | None = None
        self._model: Model | None = None
        self._state: tuple[str | None, ...] = ()  # the generations on disk when `_model` was loaded

    def close(self) -> None:
        """End the threads."""
        self._compute.shutdown(wait=False, cancel_futures=True)
        self._decode.shutdown(wait=False, cancel_futures=True)

    async def run(self, function: Callable[[Model], T]) -> T:
        """Call a function with the loaded model, in the thread that owns it.

        Raises:
            UserError: If no lesson is finished.
        """
        return await asyncio.get_running_loop().run_in_executor(self._compute, lambda: function(self.load()))

    def load(self) -> Model:
        """Return the newest finished state; only for the thread that owns the model."""
        state = (store.current_unchecked(self.folder), *store.generations(self.folder))
        if self._model is None or state != self._state:
            if state[0] is None:
                self._model = None
                raise UserError("this model has not learned anything yet; teach it two classes first")
            self._model = Model.open(self.folder, device=self.device, last_finished=True, memory=False)
            self._state = state
        return self._model

    # ------------------------------------------------------------------ prediction

    async def predict(self, data: bytes) -> dict[str, Any]:
        """Return the prediction for the content of an image file.

        Raises:
            UserError: If no lesson is finished, or the image cannot be read.
        """
        loop = asyncio.get_running_loop()
        model = await self.run(lambda model: model) if self._model is None else self._model
        arguments = (data, model.image["size"], self.limits.pixels, interpolation(model))
        pixels = await loop.run_in_executor(self._decode, _decode, *arguments)
        future: asyncio.Future[tuple[Model, np.ndarray, bool]] = loop.create_future()
        self._waiting.append((pixels, future))
        if self._running is None:
            self._running = loop.create_task(self._drain())
        return describe_prediction(*await future)

    async def _drain(self) -> None:
        """Compute waiting pictures, as many at a time as have arrived."""
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:BATCH_SIZE], self._waiting[BATCH_SIZE:]
                try:
                    model, predictions = await self.run(partial(_classify, batch))
                except Exception as error:
                    for _, future in batch:
                        if not future.done():
                            future.set_exception(error)
                    continue
                for k, (_, future) in enumerate(batch):
                    if not future.done():
                        future.set_result((model, predictions.probabilities[k], bool(predictions.unknown[k])))
        finally:
            self._running = None


def _decode(data: bytes, size: int, max_pixels: int, interpolation: str) -> Pixels:
    with ignore_warnings():
        return decode_bytes(data, size, max_pixels, interpolation)


def _classify(batch: list[tuple[Pixels, Any]], model: Model) -> tuple[Model, Predictions]:
    pixels = torch.from_numpy(np.stack([pixels for pixels, _ in batch]))
    if pixels.shape[-1] != model.image["size"]:  # the model was replaced by one of another size
        raise UserError("the model has changed; try again")
    return model, model.classify(match_channels(pixels, model))


def describe_prediction(model: Model, row: np.ndarray, unknown: bool) -> dict[str, Any]:
    """Return a prediction as the service reports it; `row` are the probabilities `[classes]`."""
    classes = model.classes
    order = (-row).argsort(kind="stable")[:TOP_CLASSES]
    top = [{"class": classes[k], "confidence": round(float(row[k]), 6)} for k in order]
    return {**top[0], "unknown": unknown, "top": top}
