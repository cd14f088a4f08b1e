"""Runs: a learner learns a stream, and is evaluated and recorded."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
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
from itl.experiments.config import Config, first_few
from itl.experiments.recorder import Recorder
from itl.learner import Learner, load_learner, use_saved_threads
from itl.results import RunFolder, read_config, read_run
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
    stop: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Learn a stream and write the folder of the run.

    Args:
        config: Configuration of the run.
        stream: Stream to learn, from `config.load_stream`.
        out: Folder of the run.
        device: Device to run on: `auto`, `cpu`, `cuda` or `cuda:N`.
        callbacks: Callbacks of the learner; they also receive every line of metrics.
        resume: Whether to continue an interrupted run in `out`. A finished run is returned as it is.
        save: Whether to save the model.
        stop: Asked after every round whether to stop the run, which needs `save`.

    Returns:
        The contents of result.json.

    Raises:
        RunStopped: If `stop` returned true; the run is saved and can be resumed.
        UserError: If an option is invalid, `out` contains a run and `resume` is false, or the run in `out` has another
            configuration.
    """
    folder = RunFolder(out)
    with folder.lock():  # first, so that no other process can start a run in this folder
        resume = resume and (folder.path / "config.json").exists()
        if resume:
            _check_same_config(config, folder)
            if (folder.path / "result.json").exists():
                return read_run(folder.path).result or {}
        recorder = Recorder(config, stream, folder, CallbackList(callbacks))
        savers: list[Callback] = [_SpecialistSaver(folder)] if config.keep_specialists else []
        if save:
            savers.append(CheckpointCallback(lambda learner: learner.save(folder.model), stop=stop))
        callback = CallbackList([recorder, *callbacks, *savers])
        learner = _create_or_load_learner(config, stream, folder, device, callback, resume)
        recorder.start(learner)
        learned = len(learner.tasks) - (learner.position[0] != "done")
        learner.recall(stream.tasks[:learned])
        for task in stream.tasks[learned:]:
            learner.learn(task)
        return recorder.finish(learner)


def run_all(
    configs: Sequence[Config],
    stream: Stream,
    folders: Sequence[str | os.PathLike[str]],
    *,
    runs_per_gpu: int,
    device: str = "auto",
    callbacks: Sequence[Sequence[Callback]] | None = None,
    resume: bool = False,
    save: bool = True,
) -> list[dict[str, Any]]:
    """Run several configurations on one stream. A run that fails does not stop the others.

    Args:
        configs: Configuration of each run.
        stream: Stream of all runs.
        folders: Folder of each run.
        runs_per_gpu: Maximum number of concurrent runs on a GPU; on a CPU, one run follows another.
        device: Device to run on.
        callbacks: Callbacks of each run.
        resume: Whether to continue interrupted runs.
        save: Whether to save the models.

    Returns:
        The contents of each result.json, in the order of `configs`.

    Raises:
        Exception: The error of a run that failed, once all runs have ended.
    """
    stop = Event()

    def job(config: Config, folder: str | os.PathLike[str], own: Sequence[Callback]) -> dict[str, Any]:
        used = (*own, _StopCallback(stop))
        return run(config, stream, folder, device=device, callbacks=used, resume=resume, save=save)

    arguments = zip(configs, folders, callbacks or [()] * len(configs), strict=True)
    jobs = [partial(job, *values) for values in arguments]
    return run_concurrently(jobs, runs_per_gpu, choose_engine(device).device, stop)


class _StopCallback(Callback):
    """Stops a concurrent run after its round when the user interrupts; it can be resumed from its last checkpoint."""

    def __init__(self, stop: Event) -> None:
        self.stop = stop

    def on_round_end(self, learner: Learner, stage: Any, epoch: int, loss: float) -> None:
        if self.stop.is_set():
            raise KeyboardInterrupt


def _create_or_load_learner(
    config: Config, stream: Stream, folder: RunFolder, device: str, callback: Callback, resume: bool
) -> Learner:
    """Create a learner and the folder of its run, or load the learner that the folder contains."""
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
    learner.check_memory(stream.classes)  # a memory too small for the last task must fail before training
    if not resume:
        folder.create({**asdict(config), "command": config.command, "resolved": learner.settings.model_dump()})
    return learner


def _check_same_config(config: Config, folder: RunFolder) -> None:
    """Check that the run in a folder has this configuration, so that it may be resumed or returned."""
    saved = Config.from_dict(read_config(folder.path))
    if saved != config:
        raise UserError(
            f"{folder.path} contains a run with different options: {first_few(config.differences(saved))}. "
            "Resume it with its own options."
        )


class _SpecialistSaver(Callback):
    """Saves the specialist of each task, for `refine`."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def on_memory_update(self, learner: Learner, task: Any) -> None:
        learner.save(self.folder.specialist(len(learner.tasks)))


def fresh_folder(root: str | os.PathLike[str], name: str) -> Path:
    """First folder among name, name-2, name-3, … under `root` that no run uses. It is reserved for this process.

    Raises:
        UserError: If the folder cannot be created.
    """
    for number in itertools.count(1):
        folder = RunFolder(Path(root) / (name if number == 1 else f"{name}-{number}"))
        if not (folder.path / "config.json").exists() and folder.reserve():
            if not (folder.path / "config.json").exists():  # a run may have ended before the folder was reserved
                return folder.path
            folder.cancel_reservation()
    raise AssertionError("unreachable")
