"""Teaching a model folder one lesson after another, so that it can be stopped anywhere and the same command goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itl.engine.device import choose_engine
from itl.errors import UserError
from itl.images import Problem, shown
from itl.methods import settings_for
from itl.model import Model
from itl.model.folder import fingerprint
from itl.nets.weights import start_from
from itl.observer import Observer, Observers
from itl.settings import Settings, build, flatten
from itl.streams import Progress
from itl.teach import suited
from itl.teach.estimate import estimate
from itl.teach.exams import Exams, Report, lessons, where
from itl.teach.lesson import Lesson, Material
from itl.teach.options import BUFFER, LEAST_OF_A_CLASS, SIZES, Options, check_model, check_path

if TYPE_CHECKING:
    from itl.engine.loop import Stage
    from itl.learner import Learner

OWN = "own settings"  # in the learner's notes: what the user set, which later lessons keep to


@dataclass
class Lecture:
    """What became of one lesson."""

    lesson: Lesson
    learned: bool = False
    why: str = ""  # it was not
    train: dict[str, int] = field(default_factory=dict)  # images, by class
    test: dict[str, int] = field(default_factory=dict)
    new: list[str] = field(default_factory=list)  # classes
    dropped: list[str] = field(default_factory=list)  # classes that the memory holds no more
    grown: tuple[int, int] | None = None  # the memory's size before and after
    problems: list[Problem] = field(default_factory=list)
    seconds: float = 0.0

    def asdict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "folder": shown(self.lesson.folder),
            "learned": self.learned,
            "why_not": self.why or None,
            "train": self.train,
            "test": self.test,
            "new_classes": self.new,
            "memory_dropped": self.dropped,
            "memory_grown": self.grown,
            "problems": [{"path": shown(p.path), "why": p.why} for p in self.problems],
            "seconds": round(self.seconds, 3),
        }


class Teacher:
    """Teaches lessons to the model in `path`, which is made if it is not there; the caller holds the model's lock."""

    def __init__(
        self, path: str | os.PathLike[str], folders: Sequence[str | os.PathLike[str]], options: Options
    ) -> None:
        self.path, self.options = Path(path), options
        check_path(self.path)
        choose_engine(options.device)  # no such device: said before anything is read
        self.lessons = [Lesson.of(folder, options.test) for folder in folders]
        self.exams = Exams()
        self.model: Model | None = None
        if (self.path / "CURRENT").exists():
            self.model = Model.open(self.path, device=options.device)
            if self.model.image["channels"] != 3:
                raise UserError(f"{path} learns images of {self.model.image['channels']} channel, not colours")
            check_model(self.model, options)
        else:
            settings_for(options.method or "itl", None, options.buffer or BUFFER, options.settings)
        self.size = options.size or (self.model.image["size"] if self.model else self._size())

    def _size(self) -> int:
        """What suits the first folder: the next size that loses nothing, up to the largest."""
        side = next((side for side in (lesson.side() for lesson in self.lessons) if side is not None), SIZES[0])
        return next((size for size in SIZES if size >= 0.75 * side), SIZES[-1])

    # ------------------------------------------------------------------ learning

    def due(self) -> list[Lecture]:
        """The lessons in their order; those that an unfinished command has done already are marked so."""
        out = [Lecture(lesson) for lesson in self.lessons]
        pending = self.model.pending if self.model else None
        if self.model is None or pending is None:
            return out
        places = [where(self.model, lecture.lesson.folder) for lecture in out]
        planned, at = pending.get("plan"), pending.get("at", 0)
        if planned == places:
            for lecture in out[:at]:
                lecture.why = "learned before the interruption"
        elif pending.get("folder") != places[0]:
            raise UserError(
                f"{self.path} is in the middle of learning {pending.get('what')}; go on with that first "
                f"(itl learn {self.path} {pending.get('given', pending.get('what'))}), or undo it: itl undo {self.path}"
            )
        return out

    def teach(
        self,
        lecture: Lecture,
        observer: Observer | None = None,
        progress: Progress | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Learn one lesson, or what is left of it, examine the model, and commit.

        `stop` is asked after every image read and every round: where it says so, what was learned is saved and
        `KeyboardInterrupt` raised.
        """
        if lecture.why:
            return
        begun = time.monotonic()

        def read(done: int, total: int | None) -> None:
            if stop():
                raise KeyboardInterrupt
            if progress is not None:
                progress(done, total)

        material = lecture.lesson.read(self.size, read)
        lecture.problems = material.problems
        lecture.train, lecture.test = material.train.counts(), material.test.counts()
        mark = fingerprint(material.train.pixels, material.train.labels)
        model = self._model(material)
        if model.pending is None and not self.options.again and (date := _learned(model, mark)):
            lecture.why = f"learned already, {date}; --again learns it once more"
            return
        if model.pending is not None and model.pending["fingerprint"] != mark:
            raise UserError(
                f"{shown(lecture.lesson.folder)} has changed since {self.path} began to learn it; "
                f"put it back as it was, or undo what was begun: itl undo {self.path}"
            )
        known, size = set(model.names), model.learner.memory.size if model.learner._ready else model.learner.buffer
        place = where(model, lecture.lesson.folder)
        observers = Observers([_Stopper(model, stop), *([observer] if observer else [])])
        about = self._about(model, lecture, place)
        model.teach(material.train.pixels, material.train.labels, about, observer=observers)
        self.exams.bring(place, material.test)
        report = self.exams.hold(model, (place, lecture.lesson.name))
        memory = model.learner.memory
        held = {model.names[label] for label in set(memory.labels.tolist())}
        lecture.learned = True
        lecture.new = [name for name in lecture.train if name not in known]
        lecture.dropped = [name for name in model.classes if name not in held] if memory.size else []
        lecture.grown = (size, memory.size) if 0 < size < memory.size else None
        lecture.seconds = time.monotonic() - begun
        model.finish(self._entry(model, lecture, place, report))
        self.model = model

    def report(self) -> Report:
        """How well everything learned so far is known."""
        assert self.model is not None
        return self.exams.hold(self.model)

    # ------------------------------------------------------------------ the model for a lesson

    def _model(self, material: Material) -> Model:
        """The model, opened with the settings that suit this lesson; what is unfinished keeps its own."""
        own = dict(self.options.settings)
        if (self.path / "CURRENT").exists():
            model = Model.open(self.path, device=self.options.device)
            if model.pending is not None:
                return model
            learner = model.learner
            own = {**_own(model), **own}
            buffer = max(self.options.buffer or 0, learner.memory.size)
            settings = {**_epochs(len(material.train), buffer, learner.settings), **own}
            model = Model.open(self.path, device=self.options.device, settings=settings)
            if learner.settings.memory.policy != "none":
                model.learner.memory.grow(buffer)
                model.learner.buffer = max(model.learner.buffer, buffer)
        else:
            model = self._new(material)
        model.learner.notes[OWN] = own
        return model

    def _new(self, material: Material) -> Model:
        o, count = self.options, len(material.train)
        model = Model.create(
            self.path,
            size=self.size,
            method=o.method or "itl",
            buffer=o.buffer or BUFFER,
            seed=o.seed or 0,
            settings=self._suited(count),
            flip=bool(o.flip),
            device=o.device,
        )
        if o.weights is not None:
            model.learner.prepare(model.task(material.train.pixels, material.train.labels))
            start_from(model.learner.net, o.weights)
        return model

    def _suited(self, count: int) -> dict[str, Any]:
        """A new model's settings, with the user's own on top, for a first lesson of `count` images."""
        o = self.options
        method, buffer = o.method or "itl", o.buffer or BUFFER
        fast = choose_engine(o.device).device.type == "cuda"
        suits = {
            **suited.network(self.size, fast, o.weights is not None),
            **suited.rates(method, fast),
            "memory.outgrown": "grow",
            "memory.least": LEAST_OF_A_CLASS if o.buffer is None else 1,
        }
        first = settings_for(method, None, buffer, {**suits, **o.settings})
        return {**suits, **_epochs(count, min(count, buffer), first), **o.settings}

    # ------------------------------------------------------------------ before anything is learned

    def plan(self) -> dict[str, Any]:
        """What would be learned, as JSON: classes, counts, imbalance, and an estimate of time and memory."""
        o, model = self.options, self.model
        known = list(model.classes) if model else []
        settings: list[tuple[Settings, int]] = []
        out = []
        for lesson in self.lessons:
            train = {name: len(files) for name, files in lesson.found.train.items()}
            test = {name: len(files) for name, files in lesson.found.test.items()}
            count = sum(train.values())
            classes = [
                {"class": name, "train": n, "test": test.get(name, 0), "known": name in known}
                for name, n in train.items()
            ]
            imbalance = max(train.values()) / min(train.values())
            problems = [{"path": shown(p.path), "why": p.why} for p in lesson.found.problems]
            folder = {"folder": shown(lesson.folder), "images": count, "held_out": lesson.held_out}
            out.append({**folder, "classes": classes, "imbalance": imbalance, "problems": problems})
            known += [name for name in train if name not in known]
            settings.append((self._settings(count), count))
        buffer = max(o.buffer or 0, model.learner.memory.size) if model else o.buffer or BUFFER
        guess = estimate(settings, self.size, len(known), buffer, o.device, begun=model is not None)
        net = settings[0][0].net
        return {
            "model": str(self.path),
            "exists": model is not None,
            "method": model.learner.method if model else o.method or "itl",
            "network": {"name": net.name, "width": net.width, "strided": net.strided},
            "size": self.size,
            "buffer": buffer,
            "lessons": out,
            "estimate": {"seconds": guess.seconds, "bytes": guess.bytes, "device": guess.device},
        }

    def _settings(self, count: int) -> Settings:
        """The settings a lesson of `count` images would be learned with."""
        if self.model is None:
            method, buffer = self.options.method or "itl", self.options.buffer or BUFFER
            return settings_for(method, None, buffer, self._suited(count))
        learner = self.model.learner
        own = {**_own(self.model), **self.options.settings}
        saved = flatten(learner.settings.model_dump())
        return build({**saved, **_epochs(count, learner.memory.size, learner.settings), **own})

    # ------------------------------------------------------------------ what is noted

    def _about(self, model: Model, lecture: Lecture, place: str) -> dict[str, Any]:
        """What an unfinished learn must know to be gone on with."""
        plan = [where(model, lesson.folder) for lesson in self.lessons]
        at = next(k for k, lesson in enumerate(self.lessons) if lesson is lecture.lesson)
        given = shown(lecture.lesson.folder)
        return {"what": lecture.lesson.name, "given": given, "folder": place, "plan": plan, "at": at}

    def _entry(self, model: Model, lecture: Lecture, place: str, report: Report) -> dict[str, Any]:
        """The history's."""
        memory, classes = model.learner.memory, {g.name: g.now for g in report.classes if g.now is not None}
        return {
            "folder": place,
            "name": lecture.lesson.name,
            "classes": lecture.train,
            "test": lecture.test,
            "tested": self.options.test,
            "held_out": lecture.lesson.held_out,
            "accuracy": {"all": report.accuracy, "task": report.tasks[-1].now, "classes": classes},
            "memory": {"images": len(memory), "size": memory.size},
            "problems": len(lecture.problems),
            "seconds": round(lecture.seconds, 3),
        }


class _Stopper(Observer):
    """Saves the model and stops, at the end of the round in which it is asked to."""

    def __init__(self, model: Model, stop: Callable[[], bool]) -> None:
        self.model, self.stop = model, stop

    def round_ends(self, learner: Learner, stage: Stage, epoch: int, loss: float) -> None:
        if self.stop():
            self.model.save()
            raise KeyboardInterrupt


def _epochs(images: int, stored: int, settings: Settings) -> dict[str, int]:
    return suited.epochs(images, stored, settings.specialist.batch, settings.tangent.batch)


def _own(model: Model) -> dict[str, Any]:
    """What the user has set in earlier calls; one who has resized the memory himself wants it so, if it can be."""
    resized = {"memory.least": 1} if any(entry["what"] == "resize" for entry in model.history) else {}
    return {**resized, **model.learner.notes.get(OWN, {})}


def _learned(model: Model, mark: str) -> str | None:
    """When these very images were learned, if they were."""
    dates = [e["date"] for e in lessons(model).values() if e.get("fingerprint") == mark]
    return str(dates[-1]) if dates else None
