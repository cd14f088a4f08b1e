"""An experiment: a learner over a stream, evaluated and recorded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from itl.callbacks.base import Callback, CallbackList
from itl.callbacks.checkpointing import CheckpointCallback
from itl.engine.concurrency import run_concurrently
from itl.engine.device import choose_engine
from itl.errors import UserError
from itl.experiments.config import Config
from itl.experiments.recorder import Recorder
from itl.learner import Learner, load_learner, use_saved_threads
from itl.results import RunFolder, read_config
from itl.streams import Stream

__all__ = ["Config", "fresh_folder", "run", "run_all"]


def run(
    config: Config,
    stream: Stream,
    out: str | os.PathLike[str],
    *,
    device: str = "auto",
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
    save: bool = True,
) -> dict[str, Any]:
    """Teach a learner the stream and write the run's folder; returns what result.json holds.

    `resume` goes on with an interrupted run in `out` (a finished one is returned as it is); `save=False`: no model.
    """
    folder = RunFolder(out)
    resume = resume and (folder.path / "config.json").exists()
    with ExitStack() as held:
        if resume:
            held.enter_context(folder.lock())
            _check_same(config, folder)
            if (folder.path / "result.json").exists():
                return dict(folder.read("result.json"))
        recorder = Recorder(config, stream, folder, CallbackList(callbacks))
        savers: list[Callback] = [_KeepSpecialists(folder)] if config.keep_specialists else []
        if save:
            savers.append(CheckpointCallback(lambda learner: learner.save(folder.model)))
        learner = _learner(config, stream, folder, device, CallbackList([recorder, *callbacks, *savers]), resume)
        if not resume:
            held.enter_context(folder.lock())
        recorder.opens(learner)
        begun = len(learner.tasks) - (learner.position[0] != "done")
        learner.recall(stream.tasks[:begun])
        for task in stream.tasks[begun:]:
            learner.learn(task)
        return recorder.closes(learner)


def run_all(
    configs: Sequence[Config],
    stream: Stream,
    places: Sequence[str | os.PathLike[str]],
    *,
    lanes: int,
    device: str = "auto",
    callbacks: Sequence[Sequence[Callback]] | None = None,
    resume: bool = False,
    save: bool = True,
) -> list[dict[str, Any]]:
    """Several runs over one stream, on a GPU at most `lanes` of them side by side; their results in order.

    A run that fails does not stop the others; its error is raised when they are done. `callbacks`: those of each run.
    """
    stop = Event()
    watching = callbacks or [()] * len(configs)

    def job(config: Config, place: str | os.PathLike[str], own: Sequence[Callback]) -> dict[str, Any]:
        return run(config, stream, place, device=device, callbacks=(*own, _Stop(stop)), resume=resume, save=save)

    jobs = [partial(job, *one) for one in zip(configs, places, watching, strict=True)]
    return run_concurrently(jobs, lanes, choose_engine(device).device, stop)


class _Stop(Callback):
    """Ends a lane's run at its next round when the user interrupts; what it saved last is there to go on with."""

    def __init__(self, stop: Event) -> None:
        self.stop = stop

    def on_round_end(self, learner: Learner, stage: Any, epoch: int, loss: float) -> None:
        if self.stop.is_set():
            raise KeyboardInterrupt


def _learner(
    config: Config, stream: Stream, folder: RunFolder, device: str, callback: Callback, resume: bool
) -> Learner:
    """A new learner in a new folder, or the one saved in it."""
    if resume and (folder.model / "CURRENT").exists():
        saved = load_learner(folder.model, device=device, callback=callback)
        use_saved_threads(saved)
        return saved
    learner = Learner(
        config.method,
        config.buffer,
        config.seed,
        stream.classes,
        settings=config.settings,
        device=device,
        callback=callback,
    )
    learner.prepare(stream.tasks[0])
    learner.check_memory(stream.classes)  # too small for the last task: said before anything is trained or written
    if not resume:
        folder.create({**asdict(config), "command": config.command, "resolved": learner.settings.model_dump()})
    return learner


def _check_same(config: Config, folder: RunFolder) -> None:
    """A run goes on, or is taken as done, only under the options it was begun with."""
    before = Config.of(read_config(folder.path))
    if before != config:
        differs = [k for k, v in asdict(config).items() if v != asdict(before)[k]]
        raise UserError(
            f"{folder.path} contains a run with different {', '.join(differs)}. Resume it with its own options."
        )


class _KeepSpecialists(Callback):
    """Saves the specialist of each task for `itl refine`."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def on_memory_update(self, learner: Learner, task: Any) -> None:
        learner.save(self.folder.specialist(len(learner.tasks)))


def fresh_folder(root: str | os.PathLike[str], name: str) -> Path:
    """A folder under `root` for a run called `name` that holds none yet: name, name-2, name-3, …"""
    path, number = Path(root) / name, 1
    while (path / "config.json").exists():
        number += 1
        path = Path(root) / f"{name}-{number}"
    return path
