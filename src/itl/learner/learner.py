"""The front door: a learner is taught one task after another and keeps one network and one small memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from itl import generalists, metrics, nets, presets, specialists
from itl.augment import Augment
from itl.callbacks.base import Callback, Clock
from itl.engine.concurrency import CAPTURE_GATE
from itl.engine.device import Engine, choose_engine
from itl.engine.keyed_random import generator, torch_generator
from itl.engine.loop import train
from itl.engine.normalize import Normalize
from itl.engine.pool import ImagePool
from itl.engine.stage import Diverged, Stage
from itl.engine.stepper import Stepper
from itl.errors import UserError
from itl.generalists import Generalist, MemoryContext
from itl.learner import validation
from itl.learner.inputs import lesson
from itl.memory import Memory, PolicyOptions
from itl.replay import LabeledSource, ReplayRoundPlanner, phase_data, specialist_stage
from itl.settings import Network, Settings, flatten
from itl.specialists import Phase, TaskContext
from itl.streams import Images, Stream, Task, Traits
from itl.streams.arrays import as_images

BATCH = {"cpu": 512, "cuda": 2048}  # images evaluated at once: a GPU is asked in few large calls
CANDIDATES = "candidates."  # what the memory gathers while a task is trained, in `flight`

# The stages of a task, in order. A learner's position is one of them and how many of its rounds are done.
STAGES = ("specialist", "closing", "memory", "generalist", "projection", "done")


class Learner:
    """Learns tasks one after another by a method of the registry.

    `buffer` is the memory's size in images. `classes=N` fixes the classifier as the benchmark does; None lets it grow
    with the classes taught. `settings` are dotted overrides of the method's defaults, which depend on the stream the
    first task comes from. `net` is a network of one's own (`itl.nets.ModuleAdapter`) in place of the settings' one.
    Nothing random is hidden: `seed` and the position in the stream determine every draw.
    """

    def __init__(
        self,
        method: str = "itl",
        buffer: int = 200,
        seed: int = 0,
        classes: int | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        device: str = "auto",
        callback: Callback | None = None,
        net: nets.ModuleAdapter | None = None,
    ) -> None:
        presets.get(method)
        if buffer < 0:
            raise UserError(f"the buffer's size must not be negative, not {buffer}")
        self.method, self.buffer, self.seed, self.classes = method, buffer, seed, classes
        self.overrides = flatten(settings or {})
        self.settings: Settings = self._before_a_stream()  # mistakes are said now
        self.device, self.own_net = device, net
        self.callback = callback or Callback()
        self.clock = Clock()
        self.tasks: list[tuple[int, ...]] = []  # the output columns of each task begun
        self.position: tuple[str, int] = ("done", 0)
        self.flight: dict[str, Tensor] = {}  # what an unfinished stage needs beside the network and the memory
        self.notes: dict[str, Any] = {}  # the owner's own, saved with the learner (JSON)
        self.threads: int | None = None  # of the CPU, when it was saved
        self._ready = False
        self._torn = False  # within a round: weights, memory and position do not belong together
        self._generalist: Generalist | None = None
        self._before: Generalist | None = None  # the last task's
        self._stepper_cache: dict[str, Stepper] = {}  # steps that may be the same at the next task
        self._past: list[LabeledSource] = []  # the images of the tasks before, for a method that keeps them

    def __getstate__(self) -> dict[str, Any]:
        """To be copied or pickled: without what only saves time at the next task."""
        return {**self.__dict__, "_before": None, "_stepper_cache": {}}

    # ------------------------------------------------------------------ Algorithm 1

    def learn(self, task: Task | Any, labels: Any = None) -> None:
        """Learn a task: a `Task` of a stream, images (arrays, tensors, Pillow images) with labels, or a `Dataset`.

        Labels are whole numbers, the classifier's outputs; `itl.apps.model.Model` has names.

        A learner that was stopped within a round (by divergence, an interrupt, any error) is in no state to go on from:
        it refuses to learn or to be saved, and the state it saved last is loaded instead.
        """
        self._must_be_whole()
        if not isinstance(task, Task):
            task = lesson(task, labels, len(self.tasks), self.traits if self._ready else None)
        self._begin(task)
        with self.engine.activate():
            self._learn(task)
        self._finish()

    def _learn(self, task: Task) -> None:
        """What is left to do of a task."""
        try:
            self._train_specialist(task)  # p_t = argmin L(f_{t-1}; B_{t-1} ∪ D_t)
            self._update_memory(task)  # B_t = B_{t-1} ⊕ D_t
            self._half_pipe(task)  # redraw the classifier
            self._learn_generalist()  # w_t = argmin L(p_t + V(w); B_t)
            self._project(task)  # f_t = π(p_t + V(w_t); B_t)
        except Diverged as error:
            raise UserError(validation.explain(self, error)) from error

    def _train_specialist(self, task: Task) -> None:
        if self._due("specialist"):
            self._run(self._specialist_stage(self.specialist.training_phase()), "specialist")
            self._move("closing")
        if self._due("closing"):
            phase = self.specialist.closing_phase()
            if phase is not None:
                self._run(self._specialist_stage(phase), "specialist")
            self._move("memory")

    def _specialist_stage(self, phase: Phase) -> Stage:
        missing = len(self.tasks) - 1 - len(self._past)
        if phase.data == "all" and missing:
            raise UserError(
                f"{self.specialist.name} learns from all tasks' images, and those of {missing} before this one are not "
                "here; hand their tasks to learner.recall first"
            )
        return specialist_stage(
            ReplayRoundPlanner(self.specialist, phase, *phase_data(phase, self.specialist, self._past))
        )

    def _update_memory(self, task: Task) -> None:
        if not self._due("memory"):
            return
        with self.clock.section("memory"), CAPTURE_GATE.eager():
            if self.specialist.data != "memory":
                self._choose_memory(task)
            self.specialist.on_task_end()
        self._move("generalist")
        self.callback.memory_updated(self, task)

    def _choose_memory(self, task: Task) -> None:
        """B_t ← B_{t-1} ⊕ D_t, by a policy that chooses when a task is done."""
        rng, context = generator(*self._key(), "memory"), self.specialist.context
        self.memory.end_task(
            context.pool, context.labels, context.task, self.net.classifier.out_features, rng, context.model_outputs()
        )
        self.flight = {n: t for n, t in self.flight.items() if not n.startswith(CANDIDATES)}

    def _half_pipe(self, task: Task) -> None:
        """Redraw the classifier (only it), and set out the generalist at that point."""
        if self.settings.generalist == "none" or self.position[0] not in ("generalist", "projection"):
            return
        self._ground = ground = self._on_memory(task.traits)
        if self.position == ("generalist", 0):
            if not self.flight:  # else it was interrupted right after the jump: what was there before is kept
                before = {n: t.clone() for n, t in self.net.state_dict().items()}
                with CAPTURE_GATE.eager():
                    moved = self.specialist.on_generalist_start(self.net)
                kept = {n: t for n, t in before.items() if moved or n.startswith(f"{self.net.classifier_name}.")}
                self.flight = {f"before.{n}": t for n, t in kept.items()}
            if self.settings.jumps:
                self.net.reinitialize_classifier(torch_generator(*self._key(), "half-pipe"))
            with CAPTURE_GATE.eager():
                self._generalist = generalists.build(self.net, ground, self._before)
        else:
            with CAPTURE_GATE.eager():
                self._generalist = generalists.restore(self.net, ground, self.flight)

    def _on_memory(self, traits: Traits) -> MemoryContext:
        """What a generalist learns from."""
        return MemoryContext(
            memory=self.memory,
            augment=self._augment(traits, self.settings.augment.memory),
            normalize=self.normalize,
            engine=self.engine,
            key=self._key(),
            settings=self.settings,
        )

    def take_up_generalist(self) -> None:
        """The generalist's model again, in a learner saved while it learned or before anything of it was projected."""
        stage, rounds = self.position
        unfinished = (stage == "generalist" and rounds > 0) or (stage, rounds) == ("projection", 0)
        if self.settings.generalist != "none" and unfinished:
            with CAPTURE_GATE.eager():
                self._generalist = generalists.restore(self.net, self._on_memory(self.traits), self.flight)

    def _learn_generalist(self) -> None:
        if self._generalist is None or not self._due("generalist"):
            return
        self._run(self._generalist.stage, "tangent")
        self._before = self._generalist
        self.flight |= self._generalist.tensors()
        self._move("projection")

    def _project(self, task: Task) -> None:
        if self._generalist is None or not self._due("projection"):
            return
        if not self.settings.projects:
            if self.settings.generalist == "tangent":  # it leaves no weights to go on from: back to the specialist
                kept = {n.removeprefix("before."): t for n, t in self.flight.items() if n.startswith("before.")}
                self.net.load_state_dict(kept, strict=False)
            return
        teacher, over = self._generalist, self.settings.projection.over
        source = self.memory if over == "memory" else self._pool(task)
        augment = self._augment(task.traits, getattr(self.settings.augment, over))
        size = len(self.memory) if over == "memory" else len(task.train)
        stage = generalists.projection_stage(self.net, teacher.logits, self._ground, (source, size), augment)
        self._generalist = None  # from here on the network itself is what is evaluated
        self._run(stage, "projection")

    # ------------------------------------------------------------------ using it

    def evaluate(self, stream: Stream | Any, labels: Any = None) -> metrics.Scores:
        """Class-IL and Task-IL in percent, on every task of a stream, or on what `learn` takes as one task."""
        if isinstance(stream, Stream):
            return self.scores(stream.tasks, [task.test for task in stream])
        self._must_be_ready()
        task = stream if isinstance(stream, Task) else lesson(stream, labels, 0, self.traits, "evaluate")
        return self.scores([task], [task.test if len(task.test) else task.train])

    def scores(self, tasks: Sequence[Task], images: Sequence[Images]) -> metrics.Scores:
        """The same on given images of given tasks, in one pass over all of them."""
        logits = self.logits(Images.join(images)).split([len(part) for part in images])
        each = [
            metrics.score(those, part.labels, task.classes)
            for those, part, task in zip(logits, images, tasks, strict=True)
        ]
        return metrics.Scores.of(each, seen=len(self.tasks))

    def predict(self, images: Any) -> tuple[np.ndarray, np.ndarray]:
        """Labels `[n]` and probabilities `[n, classes]` of uint8 images (any layout that `learn` takes)."""
        pixels = images if isinstance(images, Images) else as_images(images)
        probabilities = self.logits(pixels).softmax(1).cpu().numpy()
        return probabilities.argmax(1), probabilities

    @torch.no_grad()
    def logits(self, images: Images) -> Tensor:
        """Logits `[n, classes]` (on the CPU) of whatever model the present stage has: specialist, tangent or expert."""
        self._must_be_ready()
        shape, own = tuple(images.source.shape[1:]), tuple(self.memory.pixels.shape[1:])
        if shape != own:
            raise UserError(f"these images are {list(shape)}, the learner's are {list(own)}; bring them to one shape")
        training = self.net.training
        self.net.eval()
        out, batch = [], BATCH[self.engine.device.type]
        for first in range(0, max(len(images), 1), batch):  # no images: one empty batch
            rows = torch.arange(first, min(first + batch, len(images)))
            with CAPTURE_GATE.eager(), self.engine.activate():
                out.append(self._logits(self.normalize(self.engine.send(images.gather(rows)))))
        self.net.train(training)
        return torch.cat(out).cpu()

    def _logits(self, x: Tensor) -> Tensor:
        if self._generalist is not None:
            return self._generalist.logits(x).float()
        with self.engine.autocast():
            plain = self._is_expert() or not self.tasks  # a specialist that has begun no task has no model of its own
            return (self.net(x) if plain else self.specialist.evaluate_logits(self.net, x)).float()

    def _is_expert(self) -> bool:
        """Whether the network is what a generalist has made of it, and no longer the specialist's."""
        s = self.settings
        leaves_weights = s.generalist in ("full", "linear") or s.projects
        return s.generalist != "none" and leaves_weights and self.position[0] in ("projection", "done")

    def recall(self, tasks: Sequence[Task]) -> None:
        """Hand over the tasks learned before, to a loaded learner whose method learns from all of them (joint)."""
        if self._ready and self.specialist.data == "all":
            self._past = [
                (ImagePool(task.train, len(task.train), self.engine), task.train.labels.numpy()) for task in tasks
            ]

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the learner, as it stands, into a model folder; the old state stays until the new one is whole."""
        from itl.checkpoint.learner_state import save

        self._must_be_whole()
        save(self, folder)

    # ------------------------------------------------------------------ setting out

    def prepare(self, task: Task) -> None:
        """Build network and memory for the stream that `task` comes from, without learning yet."""
        if not self._ready:
            channels, height, width = task.train.source.shape[1:]
            self._set_up(task.stream, (channels, height, width), task.traits, self.classes or max(task.classes) + 1)

    def _begin(self, task: Task) -> None:
        """Open the next task, unless one is unfinished: then it must be this one."""
        self.prepare(task)
        opens = self.position[0] == "done"
        validation.task(self, task, opens)
        width = max(self.net.classifier.out_features, max(task.classes) + 1)
        if opens:
            self._make_room(len({c for known in (*self.tasks, task.classes) for c in known}))
            self.net.grow_classifier(width, torch_generator(self.seed, "outputs", width))
            self.memory.grow_logits(width)
            self.tasks.append(task.classes)
            self.position = ("specialist", 0)
        self._stand(task)
        if opens:
            self._open(task)

    def _stand(self, task: Task) -> None:
        """Tell the specialist what it stands on."""
        self.specialist.context = TaskContext(
            net=self.net,
            memory=self.memory,
            pool=self._pool(task),
            labels=task.train.labels.numpy(),
            tasks=tuple(self.tasks),
            key=self._key(),
            augment_task=self._augment(task.traits, self.settings.augment.task),
            augment_memory=self._augment(task.traits, self.settings.augment.memory),
            normalize=self.normalize,
            engine=self.engine,
        )
        if self.position[0] in ("specialist", "closing", "memory"):
            kept = {n.removeprefix(CANDIDATES): t for n, t in self.flight.items() if n.startswith(CANDIDATES)}
            self.memory.begin_task(len(task.train), kept)

    def _open(self, task: Task) -> None:
        """What happens once a task, before its training."""
        if self.specialist.resets_network:
            self.net.reinitialize(torch_generator(*self._key(), "network"))
        with CAPTURE_GATE.eager():
            if self.specialist.data == "memory":
                self._choose_memory(task)
            self.specialist.on_task_start()

    def _set_up(self, stream: str, shape: tuple[int, int, int], traits: Traits, outputs: int) -> None:
        self.stream, self.traits = stream, traits
        self.settings = s = self.settings_on(stream)
        reverse = s.design == "reverse"
        self.specialist = generalists.TangentSpecialist(s) if reverse else specialists.build(s.specialist)
        self.engine: Engine = choose_engine(self.device, s.precision, exact=s.exact, capture=s.capture)
        self.normalize = Normalize(traits.mean, traits.std, self.engine)
        self.net = self.engine.to_device(self.network(s.net, shape[0], outputs, torch_generator(self.seed, "network")))
        self.net.validate_input(shape)
        stored = outputs if s.memory.logits or self.specialist.stores_logits else None
        size = 0 if s.memory.policy == "none" else self.buffer
        m = s.memory
        options = PolicyOptions(m.temperature, m.fraction, m.every, s.specialist.alpha, s.specialist.beta or 1.0)
        self.memory = Memory(size, m.policy, shape, stored, self.engine, weighted=m.weights, options=options)
        validation.settings(self)
        for views in (s.augment.task, s.augment.memory):
            self._augment(traits, views)  # an unknown policy is refused before anything is trained
        self._ready = True

    def _before_a_stream(self) -> Settings:
        """The settings of no stream. An option may be that of a specialist which the method has on some stream only."""
        wrong = None
        for stream in ("", *dict.fromkeys(name for name, _ in presets.get(self.method).stream_defaults)):
            try:
                found = self.settings_on(stream)
            except UserError as error:
                wrong = error
            else:
                return presets.settings_for(self.method, None, self.buffer, self.overrides) if stream else found
        assert wrong is not None
        raise wrong

    def settings_on(self, stream: str) -> Settings:
        """All settings, for a stream by name ("" for none): the method's defaults, and the user's own on top."""
        return specialists.resolve_options(
            presets.settings_for(self.method, stream or None, self.buffer, self.overrides)
        )

    def network(self, s: Network, channels: int, outputs: int, drawn: torch.Generator | None = None) -> nets.Net:
        """A network as the settings name it, or the user's own with a new classifier; weights from `drawn`."""
        if self.own_net is not None:
            return nets.with_new_classifier(self.own_net, outputs, drawn)
        return nets.build(s.name, outputs, channels=channels, width=s.width, strided=s.strided, generator=drawn)

    def check_memory(self, classes: int) -> None:
        """Refuse to learn so many classes with a memory that cannot hold enough of each, unless a setting allows it."""
        validation.memory(self.settings.memory, self.memory.size, classes)

    def _make_room(self, classes: int) -> None:
        """See to it that the memory suits so many classes: refused, grown, or left as it is, as the setting says."""
        self.check_memory(classes)
        s = self.settings.memory
        if s.policy != "none" and s.outgrown == "grow":
            self.memory.grow(classes * s.least)
            self.buffer = max(self.buffer, self.memory.size)

    # ------------------------------------------------------------------ running a stage

    def _run(self, stage: Stage, section: str) -> None:
        """Train a stage from where it stands to its end, telling the observer."""
        start = self.position[1]
        momentum = {n.removeprefix("momentum."): t for n, t in self.flight.items() if n.startswith("momentum.")}
        still = {n: t for n, t in self.flight.items() if not n.startswith("momentum.")}
        if self._generalist is not None:
            still |= self._generalist.tensors()  # the same ones throughout: a stage changes them in place
        self.callback.stage_begins(self, stage)

        def after(index: int, loss: float, moments: dict[str, Tensor]) -> None:
            self.position = (self.position[0], index + 1)
            self.flight = {**still, **{f"momentum.{n}": t for n, t in moments.items()}}
            if self.memory.candidates is not None:
                self.flight |= {CANDIDATES + n: t for n, t in self.memory.candidates.tensors().items()}
            self._torn = False
            with self.clock.section("evaluation"):
                self.callback.round_ends(self, stage, stage.planner.epochs_done(index), loss)
            self._torn = True

        if not self.net.supports_fused_paths:
            self._take_as_it_is(stage)
        with self.clock.section(section):
            self._torn = True
            train(
                stage,
                self.engine,
                start=start,
                momentum=momentum,
                on_round_end=after,
                stepper_cache=self._stepper_cache,
            )
            self._torn = False
        self.flight = {n: t for n, t in self.flight.items() if not n.startswith("momentum.")}
        with self.clock.section("evaluation"):
            self.callback.stage_ends(self, stage)

    def _take_as_it_is(self, stage: Stage) -> None:
        """A network of the user's own: no shortcut is taken, its frozen layers stay, what it draws has a key."""
        stage.capturable, stage.net = False, None
        stage.parameters = {name: p for name, p in stage.parameters.items() if p.requires_grad}
        stage.round_seed = lambda index: torch_generator(*self._key(), stage.name, index, "network").initial_seed()

    def _due(self, stage: str) -> bool:
        return self.position[0] == stage

    def _move(self, stage: str) -> None:
        self.position = (stage, 0)

    def _finish(self) -> None:
        self.flight, self._generalist = {}, None
        self.position = ("done", 0)
        if self._is_expert():
            self.specialist.on_generalist_end(self.net)
        if self.specialist.data == "all":
            self._past.append((self.specialist.context.pool, self.specialist.context.labels))
        with self.clock.section("evaluation"):
            self.callback.task_ends(self)

    def _key(self) -> tuple[int, int]:
        return (self.seed, len(self.tasks))

    def _pool(self, task: Task) -> ImagePool:
        """The task's images as the device sees them, kept while the same task is being learned."""
        if getattr(self, "_pooled", (None,))[0] is not task.train:
            self._pooled = (task.train, ImagePool(task.train, len(task.train), self.engine))
        return self._pooled[1]

    def _augment(self, traits: Traits, policy: str | None) -> Augment:
        s = self.settings.augment
        return Augment(
            padding=traits.padding if s.padding is None else s.padding,
            flip=traits.flip if s.flip is None else s.flip,
            policy=traits.policy if policy == "stream" else policy,
            fill=s.fill,
        )

    def _must_be_ready(self) -> None:
        if not self._ready:
            raise UserError("this learner has learned nothing yet; call learn first")

    def _must_be_whole(self) -> None:
        if self._torn:
            raise UserError(
                "this learner was stopped in the middle of its training; load the state it saved last and go on"
            )
