"""Teaching a model folder one lesson after another, so that it can be stopped anywhere and the same command goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itl.apps.images import SkippedPath, printable_path
from itl.apps.model import Model
from itl.apps.model.folder import fingerprint
from itl.apps.teaching.default_settings import OWN, for_lesson, for_new, own_settings
from itl.apps.teaching.held_out_evaluation import HeldOutEvaluation, HeldOutScores, relative_folder, train_only_hashes
from itl.apps.teaching.lesson import Lesson, LessonImages
from itl.apps.teaching.lesson_result import LessonResult
from itl.apps.teaching.options import SIZES, TeachingOptions, check_model_path, check_options
from itl.callbacks.base import Callback, CallbackList
from itl.engine.device import choose_engine
from itl.errors import UserError
from itl.nets.weights import load_backbone_weights
from itl.presets import settings_for
from itl.streams import Progress

if TYPE_CHECKING:
    from itl.engine.stage import Stage
    from itl.learner import Learner


class Teacher:
    """Teaches lessons to the model in `path`, which is made if it is not there; the caller holds the model's lock."""

    def __init__(
        self, path: str | os.PathLike[str], folders: Sequence[str | os.PathLike[str]], options: TeachingOptions
    ) -> None:
        check_model_path(path)
        self.path, self.options = Path(path), options
        choose_engine(options.device)  # no such device: said before anything is read
        self.evaluation = HeldOutEvaluation()
        self.model: Model | None = None
        if self._exists():
            self.model = Model.open(self.path, device=options.device)
            check_options(self.model, options)
        else:
            settings_for(options.way, None, options.room, options.settings)  # a mistake in them is said now
        self.lessons = [self._lesson(folder) for folder in folders]
        self.size = options.size or (self.model.image["size"] if self.model else self._size())

    def _lesson(self, folder: str | os.PathLike[str]) -> Lesson:
        """What is to be learned of a folder: what was learned of it before is not held out now."""
        known = train_only_hashes(self.model, relative_folder(self.model, folder)) if self.model else {}
        return Lesson.of(folder, self.options.test, known)

    def _exists(self) -> bool:
        return (self.path / "CURRENT").exists()

    def _size(self) -> int:
        """What suits the first folder's images: the next size that loses little, up to the largest."""
        side = next((side for side in (lesson.side() for lesson in self.lessons) if side is not None), SIZES[0])
        return next((size for size in SIZES if size >= 0.75 * side), SIZES[-1])

    # ------------------------------------------------------------------ learning

    def lesson_results(self) -> list[LessonResult]:
        """The lessons in their order; those that an interrupted command has done already say so."""
        out = [LessonResult(lesson) for lesson in self.lessons]
        pending = self.model.pending if self.model else None
        if self.model is None or pending is None:
            return out
        places = [relative_folder(self.model, result.lesson.folder) for result in out]
        if _alike(pending.get("plan"), places):
            for result in out[: pending["at"]]:
                result.skip_reason = "learned before the interruption"
        elif not _alike([str(pending.get("folder"))], places[:1]):
            raise self._in_the_middle(pending)
        return out

    def _in_the_middle(self, pending: Mapping[str, Any]) -> UserError:
        return UserError(
            f"{self.path} is in the middle of learning {pending.get('what')}; go on with that first "
            f"(itl learn {self.path} {pending.get('given', pending.get('what'))}), or undo it: itl undo {self.path}"
        )

    def teach(
        self,
        result: LessonResult,
        callback: Callback | None = None,
        progress: Progress | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Learn one lesson, or what is left of it, examine the model, and commit.

        `stop` is asked after every image read and every round: where it says so, what was learned is saved and
        `KeyboardInterrupt` raised.
        """
        if result.skip_reason:
            return
        begun, lesson = time.monotonic(), result.lesson

        def reads(done: int, total: int | None) -> None:
            if stop():
                raise KeyboardInterrupt
            if progress is not None:
                progress(done, total)

        material = lesson.read(self.size, reads)
        result.skipped = material.skipped
        result.train_counts, result.test_counts = material.train.counts(), material.test.counts()
        pixels, labels = material.train.pixels, material.train.labels
        model = self._model(material)
        if not self._is_due(model, result, fingerprint(pixels, labels)):
            return
        callbacks = CallbackList([_Stopper(model, stop), *([callback] if callback else [])])
        model.teach(pixels, labels, self._about(model, result), callback=callbacks)
        self._look_back(model, result)
        place = relative_folder(model, lesson.folder)
        self.evaluation.bring(place, material.test)
        report = self.evaluation.hold(model, (place, lesson.name))
        result.seconds = time.monotonic() - begun
        model.finish(self._entry(model, result, place, report))
        self.model = model

    def evaluate(self) -> HeldOutScores:
        """How well everything learned so far is known."""
        assert self.model is not None
        return self.evaluation.hold(self.model)

    def _is_due(self, model: Model, result: LessonResult, mark: str) -> bool:
        """Whether these images are to be learned: not if they were, and not if others were begun in their place."""
        if model.pending is not None:
            if model.pending["fingerprint"] == mark:
                return True
            if model.pending.get("folder") != relative_folder(
                model, result.lesson.folder
            ):  # of the same name, but another
                raise self._in_the_middle(model.pending)
            raise UserError(
                f"{printable_path(result.lesson.folder)} has changed since {self.path} began to learn it; "
                f"put it back as it was, or undo what was begun: itl undo {self.path}"
            )
        dates = [entry["date"] for entry in model.history if entry.get("fingerprint") == mark]
        if dates and not self.options.again:
            result.skip_reason = f"learned already, {dates[-1]}; --again learns it once more"
        return not result.skip_reason

    # ------------------------------------------------------------------ the model for a lesson

    def _model(self, material: LessonImages) -> Model:
        """The model with the settings that suit this lesson; what is unfinished keeps its own."""
        device, images = self.options.device, len(material.train)
        if not self._exists():
            return self._new(material)
        model = Model.open(self.path, device=device)
        if model.pending is not None:
            return model
        own = {**own_settings(model), **self.options.settings}
        room = max(self.options.buffer or 0, model.learner.memory.size)
        settings = {**for_lesson(images, room, model.learner.settings), **own}
        model = Model.open(self.path, device=device, settings=settings)
        if model.learner.settings.memory.policy != "none":
            model.learner.memory.grow(room)
            model.learner.buffer = room
        model.learner.notes[OWN] = own
        return model

    def _new(self, material: LessonImages) -> Model:
        o = self.options
        model = Model.create(
            self.path,
            size=self.size,
            method=o.way,
            buffer=o.room,
            seed=o.seed or 0,
            settings=for_new(o, self.size, len(material.train)),
            flip=bool(o.flip),
            device=o.device,
        )
        if o.weights is not None:
            model.learner.prepare(model.task(material.train.pixels, material.train.labels))
            load_backbone_weights(model.learner.net, o.weights)
        model.learner.notes[OWN] = dict(o.settings)
        return model

    # ------------------------------------------------------------------ what is noted

    def _about(self, model: Model, result: LessonResult) -> dict[str, Any]:
        """What an unfinished learn must know to be gone on with, and to say in the end what it has changed."""
        return {
            "what": result.lesson.name,
            "given": printable_path(result.lesson.folder),
            "folder": relative_folder(model, result.lesson.folder),
            "plan": [relative_folder(model, lesson.folder) for lesson in self.lessons],
            "at": next(k for k, lesson in enumerate(self.lessons) if lesson is result.lesson),
            "new": [name for name in result.train_counts if name not in model.names],
            "room": model.learner.buffer,
            "buffer": self.options.buffer,
            "tested": self.options.test,
        }

    def _look_back(self, model: Model, result: LessonResult) -> None:
        """What a lesson has changed, once it is learned."""
        assert model.pending is not None
        memory, room = model.learner.memory, model.pending["room"]
        held = {model.names[label] for label in set(memory.labels.tolist())}
        result.learned, result.new_classes = True, model.pending["new"]
        result.dropped_classes = [name for name in model.classes if name not in held] if memory.size else []
        result.memory_growth = (room, memory.size) if room < memory.size else None
        for name in [name for name in result.test_counts if name not in model.names]:
            del result.test_counts[name]
            why = "a class to test on that was never learned; it is left out"
            result.skipped.append(SkippedPath(result.lesson.folder / "test" / name, why))

    def _entry(self, model: Model, result: LessonResult, place: str, report: HeldOutScores) -> dict[str, Any]:
        """The history's."""
        memory, classes = model.learner.memory, {g.name: g.accuracy for g in report.classes if g.accuracy is not None}
        return {
            "folder": place,
            "name": result.lesson.name,
            "classes": result.train_counts,
            "test": result.test_counts,
            "tested": self.options.test,
            "held_out": result.lesson.held_out,
            "beyond": result.lesson.files.train_only_hashes(),
            "accuracy": {"all": report.accuracy, "task": report.tasks[-1].accuracy, "classes": classes},
            "memory": {"images": len(memory), "size": memory.size},
            "problems": len(result.skipped),
            "seconds": round(result.seconds, 3),
        }


def _alike(begun: Sequence[str] | None, places: Sequence[str]) -> bool:
    """Whether these may be the folders that a learn was begun with, one of them or the model having moved since.

    Their images decide in the end.
    """
    return begun is not None and [Path(place).name for place in begun] == [Path(place).name for place in places]


class _Stopper(Callback):
    """Saves the model and stops, at the end of the round in which it is asked to."""

    def __init__(self, model: Model, stop: Callable[[], bool]) -> None:
        self.model, self.stop = model, stop

    def round_ends(self, learner: Learner, stage: Stage, epoch: int, loss: float) -> None:
        if self.stop():
            self.model.save()
            raise KeyboardInterrupt
