"""Teach a model folder lesson by lesson; an interrupted call is resumed by making the same call again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from itl.apps.images import SkippedPath, printable_path
from itl.apps.model import Model
from itl.apps.model.input_format import interpolation
from itl.apps.model.metadata import fingerprint
from itl.apps.teaching.default_settings import (
    USER_SETTINGS_NOTE,
    LessonSize,
    new_model_settings,
    training_settings,
    user_settings,
)
from itl.apps.teaching.folder_replay import FolderReplay, replay_folders
from itl.apps.teaching.held_out_evaluation import (
    HeldOutEvaluation,
    HeldOutScores,
    fallen_classes,
    recorded_train_only_hashes,
    relative_folder,
)
from itl.apps.teaching.lesson import DecodedImages, Lesson, LessonImages
from itl.apps.teaching.lesson_callbacks import StopCallback, TimeLimitCallback
from itl.apps.teaching.lesson_result import LessonResult
from itl.apps.teaching.options import (
    DEFAULT_IMAGE_SIZES,
    DEFAULT_MINUTES,
    MINUTES_NOTE,
    ROWS_NOTE,
    TeachingOptions,
    are_photographs,
    check_model_path,
    check_options,
    input_sizes,
    saved_minutes,
)
from itl.callbacks.base import Callback, CallbackList
from itl.checkpoint.store import current_unchecked
from itl.engine.device import choose_engine
from itl.errors import UserError
from itl.nets import find as find_backbone
from itl.presets import settings_for
from itl.settings import Settings, build, flatten
from itl.streams import Progress


class Teacher:
    """Teaches a model folder from image folders, one task per folder, as `itl learn` does.

    The teacher chooses a network and the number of epochs, holds out test images, skips folders that were learned
    before, resumes an interrupted lesson and evaluates the model after every lesson. The caller holds the model
    folder's lock::

        with lock("model"):
            teacher = Teacher("model", ["monday"], TeachingOptions())
            for result in teacher.lesson_results():
                teacher.teach(result)
            scores = teacher.evaluate()

    Args:
        path: The model folder. A new model is created if there is none.
        folders: The image folders, in the order in which they are learned.
        options: The user's options.

    Attributes:
        model: The model; None until the first lesson of a new model is learned.
        lessons: One lesson per folder.
        image_size: Width and height of the model's images in pixels.
        chooses_model: Whether network, image size or method of a new model are chosen here.
        chooses_backbone: Whether the default backbone is chosen here.
        lacks_backbone: Whether it would be chosen if its weights were installed.

    Raises:
        UserError: If a folder cannot be used, or the options do not fit the model.
    """

    def __init__(
        self, path: str | os.PathLike[str], folders: Sequence[str | os.PathLike[str]], options: TeachingOptions
    ) -> None:
        check_model_path(path)
        self.path, self.options = Path(path), options
        choose_engine(options.device)  # report an unknown device before reading anything
        self.evaluation = HeldOutEvaluation()
        self.model: Model | None = None
        if self._exists():
            self.model = Model.open(self.path, device=options.device)
            check_options(self.model, options)
        else:  # report invalid settings before reading anything
            settings_for(options.method_or_default, None, options.buffer or 1, options.settings)
        self.lessons = [self._scan(folder) for folder in folders]
        self.chooses_model = self.chooses_backbone = self.lacks_backbone = False
        if self.model is None:
            self._choose(options, self._median_side())
        self.image_size = options.size or (self.model.image["size"] if self.model else self._default_image_size())

    def _choose(self, options: TeachingOptions, side: int | None) -> None:
        """Choose backbone and method of a new model, if the user leaves them open."""
        self.options = options.with_default_backbone(side)
        open_choices = (options.leaves_model_open, options.leaves_method_open, options.leaves_backbone_open)
        self.chooses_model = any(open_choices)
        self.chooses_backbone = self.options.backbone != options.backbone
        self.lacks_backbone = options.leaves_model_open and are_photographs(side) and not self.chooses_backbone

    def _scan(self, folder: str | os.PathLike[str]) -> Lesson:
        """Scan an image folder; images that the model was trained on are not held out."""
        train_only = None
        if self.model:
            train_only = recorded_train_only_hashes(self.model, relative_folder(self.model, folder))
        return Lesson.from_folder(folder, self.options.test, train_only)

    def _exists(self) -> bool:
        return (self.path / "CURRENT").exists()

    def _median_side(self) -> int | None:
        """Return the median side of the first folder's images that can be read."""
        sides = (lesson.median_side() for lesson in self.lessons)
        return next((side for side in sides if side is not None), None)

    @property
    def buffer(self) -> int:
        """Size of the memory in images, as far as it is known before the lessons are learned."""
        if self.model is None:
            return self.options.buffer_for(self.image_size)
        return max(self.options.buffer or 0, self.model.learner.memory.size)

    @property
    def minutes(self) -> float:
        """Time for one lesson."""
        return self.options.minutes or self._saved_minutes(self.model) or DEFAULT_MINUTES

    def _saved_minutes(self, model: Model | None) -> float | None:
        return None if model is None else saved_minutes(model)

    def interpolation(self) -> str:
        """How images are resized: as the model's, or a new model's, pre-trained backbone expects."""
        if self.model is not None:
            return interpolation(self.model)
        settings = self.options.settings
        named = settings.get("net.name") if settings.get("net.pretrained") else None
        name = self.options.backbone or named
        preprocessing = None if name is None else find_backbone(str(name)).preprocessing
        return "bilinear" if preprocessing is None else preprocessing.interpolation

    def _default_image_size(self) -> int:
        """Return the smallest default size that loses little detail of the first folder's images, or the largest."""
        side = self._median_side() or DEFAULT_IMAGE_SIZES[0]
        sizes = DEFAULT_IMAGE_SIZES if self.options.backbone is None else input_sizes(self.options.backbone)
        return next((size for size in sizes if size >= 0.75 * side), sizes[-1])

    # ------------------------------------------------------------------ teaching

    def lesson_results(self) -> list[LessonResult]:
        """Return one empty result per lesson, in order, to be passed to `teach`.

        Lessons that an interrupted call has already learned are marked with a `skip_reason`.

        Raises:
            UserError: If another lesson is unfinished.
        """
        results = [LessonResult(lesson) for lesson in self.lessons]
        pending = self.model.pending if self.model else None
        if self.model is None or pending is None:
            return results
        folders = [relative_folder(self.model, lesson.folder) for lesson in self.lessons]
        if _same_names(pending.get("plan"), folders):
            for result in results[: pending.get("at", 0)]:
                result.skip_reason = "learned before the interruption"
        elif not _same_names([str(pending.get("folder"))], folders[:1]):
            raise self._unfinished_error(pending)
        return results

    def _unfinished_error(self, pending: Mapping[str, Any]) -> UserError:
        return UserError(
            f"{self.path} has not finished learning {pending.get('what')}; finish it first "
            f"(itl learn {self.path} {pending.get('given', pending.get('what'))}), or undo it: itl undo {self.path}"
        )

    def thread_remark(self) -> str | None:
        """Return a line about the result of a lesson that is resumed with another number of CPU threads."""
        if self.model is None or self.model.pending is None or self.model.learner.engine.device.type != "cpu":
            return None
        before, now = self.model.learner.threads, self.options.threads
        if now is None or before is None or before == now:
            return None
        return (
            f"continuing with {now} instead of {before} threads: the result will not be bit-identical to that of an "
            "uninterrupted lesson"
        )

    def teach(
        self,
        result: LessonResult,
        callback: Callback | None = None,
        progress: Progress | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Learn one lesson (or the rest of it), evaluate the model, save it, and fill in `result`.

        Args:
            result: One of `lesson_results()`. A result with a `skip_reason` is left as it is.
            callback: Receives the learner's events.
            progress: Called as `progress(done, total)` while images are read.
            stop: Called after every image and every training round. If it returns True, the state is saved and
                `KeyboardInterrupt` is raised; the same call resumes.

        Raises:
            UserError: If no image can be read, or other images are being learned.
            KeyboardInterrupt: If `stop` returned True.
        """
        if result.skip_reason:
            return
        start, lesson = time.monotonic(), result.lesson

        def on_image(done: int, total: int | None) -> None:
            if stop():
                raise KeyboardInterrupt
            if progress is not None:
                progress(done, total)

        images = lesson.read(self.image_size, on_image, self.interpolation())
        result.skipped = images.skipped
        result.train_counts, result.test_counts = images.train.class_counts(), images.test.class_counts()
        pixels, labels = images.train.pixels, images.train.labels
        model = self.model_for(images)
        if not self._must_learn(model, result, fingerprint(pixels, labels)):
            return
        limit = TimeLimitCallback()
        callbacks = CallbackList([StopCallback(model, stop), limit, *([callback] if callback else [])])
        known = images.test.of_classes({*model.classes, *labels})
        replay = self._replay(model, lesson)
        model.teach(
            pixels,
            labels,
            {**self._pending_notes(model, result), **replay.notes},
            callback=callbacks,
            threads=self.options.threads,
            validation=(known.pixels, known.labels) if lesson.held_out else None,
            replayed=(replay.images.pixels, replay.images.labels),
        )
        result.replayed = len(replay.images)
        result.time_limit_reached = limit.reached and "specialist.steps" not in self._chosen_by_user(model)
        self._record_changes(model, result)
        folder = relative_folder(model, lesson.folder)
        self.evaluation.add_test_images(folder, images.test)
        scores = self.evaluation.evaluate(model, (folder, lesson.name))
        result.fallen_classes = fallen_classes(model, scores)
        result.seconds = time.monotonic() - start
        model.finish(self._history_entry(model, result, folder, scores))
        self.model = model

    def _replay(self, model: Model, lesson: Lesson) -> FolderReplay:
        """Return the images of earlier folders that are learned again, as an unfinished lesson was started.

        A method that computes its classifier directly has learned all earlier images exactly, so it needs none.
        """
        wanted = self.options.replay_folders if model.pending is None else ROWS_NOTE in model.pending
        if not wanted or not model.learner.is_built or not model.learner.specialist.optimizes:
            return FolderReplay(DecodedImages(torch.zeros(0), []), 0, {})
        return replay_folders(model, [relative_folder(model, lesson.folder)])

    def evaluate(self) -> HeldOutScores:
        """Evaluate the model on the test images of everything learned so far."""
        assert self.model is not None
        return self.evaluation.evaluate(self.model)

    def _must_learn(self, model: Model, result: LessonResult, digest: str) -> bool:
        """Return whether the lesson's images are still to be learned; refuse them if other images are unfinished."""
        if model.pending is not None:
            if model.pending["fingerprint"] == digest:
                return True
            if model.pending.get("folder") != relative_folder(model, result.lesson.folder):  # only the name is the same
                raise self._unfinished_error(model.pending)
            raise UserError(
                f"{printable_path(result.lesson.folder)} has changed since {self.path} started to learn it; restore "
                f"the folder, or undo the unfinished learn: itl undo {self.path}"
            )
        dates = [entry["date"] for entry in model.history if entry.get("fingerprint") == digest]
        if dates and not self.options.again:
            result.skip_reason = f"already learned on {dates[-1]}; use --again to learn it again"
        return not result.skip_reason

    # ------------------------------------------------------------------ the model for a lesson

    def model_for(self, images: LessonImages) -> Model:
        """Return the model with settings that suit the lesson, unsaved; an unfinished lesson keeps its settings."""
        if not self._exists():
            return self._create_model(images)
        model = self.model
        is_current = model is not None and model.generation == current_unchecked(self.path)
        if model is None or not is_current or model.pending is not None:  # it may have stopped within a round
            model = Model.open(self.path, device=self.options.device)
        if model.pending is not None:
            return model
        buffer, saved = max(self.options.buffer or 0, model.learner.memory.size), self._saved_minutes(model)
        has_new_classes = not set(images.train.labels) <= set(model.classes)
        size = LessonSize(len(images.train), len(model.learner.memory), buffer, self.image_size, has_new_classes)
        settings = self._overrides(model, size)
        model = Model.open(self.path, device=self.options.device, settings=settings)
        if model.learner.settings.memory.policy != "none":
            model.learner.memory.grow(buffer)
            model.learner.buffer = buffer
        model.learner.notes[USER_SETTINGS_NOTE] = self._chosen_by_user(model)
        model.learner.notes[MINUTES_NOTE] = self.options.minutes or saved
        return model

    def settings_for_lesson(self, size: LessonSize) -> Settings:
        """Return the settings that a lesson of this size would be learned with now."""
        if self.model is None:
            settings = new_model_settings(self.options, size)
            return settings_for(self.options.method_or_default, None, size.buffer, settings)
        return build(flatten(self.model.learner.settings.model_dump()), self._overrides(self.model, size))

    def _overrides(self, model: Model, size: LessonSize) -> dict[str, Any]:
        """Return the settings for a lesson of an existing model that differ from those of its last lesson."""
        chosen, saved = self._chosen_by_user(model), self._saved_minutes(model)
        return {**training_settings(size, model.learner.settings, chosen, self.options, saved), **chosen}

    def _chosen_by_user(self, model: Model) -> dict[str, Any]:
        return {**user_settings(model), **self.options.settings}

    def _create_model(self, images: LessonImages) -> Model:
        options, buffer = self.options, self.options.buffer_for(self.image_size)
        size = LessonSize(len(images.train), 0, buffer, self.image_size)
        model = Model.create(
            self.path,
            size=self.image_size,
            method=options.method_or_default,
            buffer=buffer,
            seed=options.seed or 0,
            settings=new_model_settings(options, size),
            flip=bool(options.flip),
            device=options.device,
        )
        model.learner.notes |= {USER_SETTINGS_NOTE: dict(options.settings), MINUTES_NOTE: options.minutes}
        return model

    # ------------------------------------------------------------------ notes and history

    def _pending_notes(self, model: Model, result: LessonResult) -> dict[str, Any]:
        """Return the metadata needed to resume an unfinished lesson and to report what it changed."""
        return {
            "what": result.lesson.name,
            "given": printable_path(result.lesson.folder),
            "folder": relative_folder(model, result.lesson.folder),
            "plan": [relative_folder(model, lesson.folder) for lesson in self.lessons],
            "at": next(k for k, lesson in enumerate(self.lessons) if lesson is result.lesson),
            "new": [name for name in result.train_counts if name not in model.output_names],
            "room": model.learner.buffer,
            "buffer": self.options.buffer,
            "tested": self.options.test,
        }

    def _record_changes(self, model: Model, result: LessonResult) -> None:
        """Fill in what the lesson changed, once it is learned."""
        assert model.pending is not None
        memory, pending = model.learner.memory, model.pending
        previous_size = pending.get("room", memory.size)
        in_memory = {model.output_names[label] for label in set(memory.labels.tolist())}
        result.learned, result.new_classes = True, pending.get("new", [])
        result.dropped_classes = [name for name in model.classes if name not in in_memory] if memory.size else []
        result.memory_growth = (previous_size, memory.size) if previous_size < memory.size else None
        for name in [name for name in result.test_counts if name not in model.output_names]:
            del result.test_counts[name]
            reason = "a class with test images only, which was never learned"
            result.skipped.append(SkippedPath(result.lesson.folder / "test" / name, reason))

    def _history_entry(self, model: Model, result: LessonResult, folder: str, scores: HeldOutScores) -> dict[str, Any]:
        memory = model.learner.memory
        by_class = {group.name: group.accuracy for group in scores.classes if group.accuracy is not None}
        return {
            "folder": folder,
            "name": result.lesson.name,
            "classes": result.train_counts,
            "test": result.test_counts,
            "tested": self.options.test,
            "held_out": result.lesson.held_out,
            "beyond": result.lesson.files.train_only_hashes(),
            "accuracy": {"all": scores.accuracy, "task": scores.tasks[-1].accuracy, "classes": by_class},
            "memory": {"images": len(memory), "size": memory.size},
            "problems": len(result.skipped),
            "seconds": round(result.seconds, 3),
        }


def _same_names(saved: Sequence[str] | None, folders: Sequence[str]) -> bool:
    """Return whether two lists of folders have the same names: folders or model may have been moved since.

    Whether their images are the same is checked by their fingerprint.
    """
    return saved is not None and [Path(path).name for path in saved] == [Path(path).name for path in folders]
