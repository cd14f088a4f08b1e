"""A model folder for people: a learner and class names, what images must look like, and what it was taught when.

Everything of the model's own lies in the learner's notes under "model", so that one generation holds all of it: names,
images, history and what is unfinished never belong to different states.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from itl import __version__
from itl.apps.model.generations import FORMAT, UNDO, about_of, finished, newest_learned, pictures_of, with_way_back
from itl.apps.model.memory_images import PILLOW_MODES, MemoryImageFiles
from itl.callbacks.base import Callback, CallbackList
from itl.checkpoint import learner_state, store
from itl.checkpoint.lock import lock, locked
from itl.errors import UserError
from itl.learner import Learner
from itl.nets import ModuleAdapter
from itl.streams import Images, Task, Traits
from itl.streams.arrays import as_pixels, statistics

STRIDED = 96  # pixels from which on a network begins with the strided stem, unless the settings say


class Model:
    """A learner with class names, in a folder. Made by `create` or `open`.

    `names[k]` is the class of output k; several outputs of one name are one class (merged). `image` says what an image
    is brought to; `history` has an entry for everything that was done; `undo` is how many learns can be undone.
    `pending` is what an unfinished learn was about, else None.
    """

    def __init__(self, path: str | os.PathLike[str], learner: Learner, about: dict[str, Any]) -> None:
        self.path, self.learner = Path(path), learner
        self.names: list[str] = about["names"]
        self.image: dict[str, Any] = about["image"]
        self.history: list[dict[str, Any]] = about["history"]
        self.pending: dict[str, Any] | None = about["pending"]
        self.undo: int = about["undo"]
        self.generation: str | None = None
        self._album = MemoryImageFiles()

    # ------------------------------------------------------------------ making and finding one

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        size: int = 32,
        channels: int = 3,
        method: str = "itl",
        buffer: int = 200,
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
        flip: bool = True,
        policy: str | None = None,
        undo: int = UNDO,
        device: str = "auto",
        net: ModuleAdapter | None = None,
    ) -> Model:
        """A new model for images of `channels` x `size` x `size`. Nothing is written before the first `save`.

        `flip` and `policy` (AutoAugment's) say what keeps an image's class; `settings` are the learner's, and `net` is
        a network of one's own in place of the one they name.
        """
        if (Path(path) / store.CURRENT).exists():
            raise UserError(f"{path} holds a model already; open it, or choose another folder")
        if undo < 0:
            raise UserError(f"the number of learns that can be undone must not be negative, not {undo}")
        own = {"net.strided": size >= STRIDED, **(settings or {})}
        learner = Learner(method, buffer, seed, None, settings=own, device=device, net=net)
        image = {"size": size, "channels": channels, "flip": flip, "policy": policy}
        return cls(path, learner, {"names": [], "image": image, "history": [], "pending": None, "undo": undo})

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        device: str = "auto",
        settings: dict[str, Any] | None = None,
        net: nn.Module | None = None,
        learned: bool = False,
    ) -> Model:
        """The model in a folder. `settings` override those it was saved with; `net` is its network, if that is yours.

        With `learned`, the last state at which a learn was finished: what to use while another is going on.
        """
        root = Path(path)
        for _ in range(store.TRIES):
            try:
                now = store.current(root)
            except UserError as error:
                raise with_way_back(root, error) from None
            name = newest_learned(root, now) if learned else now
            try:
                return cls._of(root, name, *store.read_generation(root, name), device, settings, net)
            except UserError as error:
                if store.named(root) == now:  # else it was replaced, and removed, while it was read
                    raise with_way_back(root, error) from error.__cause__
        raise UserError(store.BUSY.format(path))

    @classmethod
    def _of(
        cls,
        path: Path,
        name: str,
        tensors: dict[str, Tensor],
        state: dict[str, Any],
        device: str,
        settings: dict[str, Any] | None,
        net: nn.Module | None,
    ) -> Model:
        about, album = about_of(path, state), MemoryImageFiles()
        if "memory.pixels" not in tensors:
            tensors["memory.pixels"] = pictures_of(path / name, album, tensors, state, about["names"])
        learner = learner_state.unpack(path, tensors, state, device=device, settings=settings, net=net)
        if len(about["names"]) != learner.net.classifier.out_features:
            raise UserError(f"the model folder {path} has {len(about['names'])} names for {state['outputs']} outputs")
        model = cls(path, learner, about)
        model.generation, model._album = name, album
        return model

    # ------------------------------------------------------------------ writing

    def lock(self, wait: float = 0.0) -> AbstractContextManager[None]:
        """Hold the folder against other writers; theirs is waited for, at most `wait` seconds. See `model.lock`."""
        return lock(self.path, wait)

    def save(self, *, private: bool = False) -> None:
        """Commit the model, as it stands, as a new generation. The lock is taken for it where it is not held.

        The last `undo` generations at which a learn was finished are kept; with `private`, none. A folder that
        somebody else has changed since this model was opened is refused.
        """
        with locked(self.path):
            self._save(private)

    def _save(self, private: bool) -> None:
        there = store.current(self.path) if (self.path / store.CURRENT).exists() else None
        if there != self.generation:
            raise UserError(f"{self.path} has been changed by somebody else since it was opened; open it again")
        self.learner._must_be_whole()
        self.learner.notes["model"] = self._notes()
        tensors, state = learner_state.pack(self.learner)
        beside = None
        if self.learner.memory.pixels.shape[1] in PILLOW_MODES:
            pixels, labels = tensors.pop("memory.pixels"), self.learner.memory.labels
            held = len(labels)
            beside = lambda draft: self._album.write(draft, pixels[:held], labels, self.names)  # noqa: E731
        target = store.write(self.path, tensors, state, beside=beside, keep=[] if private else self._kept())
        if beside is not None:
            self._album.settle(target)
        self.generation = target.name

    def _notes(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "names": self.names,
            "image": self.image,
            "history": self.history,
            "pending": self.pending,
            "undo": self.undo,
        }

    def _kept(self) -> list[str]:
        """The older generations worth keeping: where the last `undo` changes began."""
        if self.generation is None:
            return []
        older = store.generations(self.path)
        older = older[: older.index(self.generation) + 1]  # what lies behind it was never, or is no longer, current
        whole = [name for name in older if finished(self.path / name)]
        least = 0 if self.pending is None else 1  # an unfinished learn can always be undone
        return whole[len(whole) - max(self.undo, least) :] if len(whole) > max(self.undo, least) else whole

    # ------------------------------------------------------------------ learning

    def task(self, pixels: Tensor, labels: Sequence[str]) -> Task:
        """Images `[n, c, h, w]` uint8 and the class name of each as the learner's next task; new names get outputs."""
        if not len(pixels) or len(pixels) != len(labels):
            raise UserError(f"there are {len(pixels)} images and {len(labels)} labels; give one label for each image")
        names = self._with(labels)
        columns = torch.tensor([names.index(name) for name in labels])
        images = Images(pixels, columns)
        learner = self.learner
        if learner._ready:
            traits = learner.traits
        else:
            padding = min(4, pixels.shape[-1] // 8)
            mean, std = statistics(images, None, None)
            traits = Traits(mean, std, self.image["flip"], padding, self.image["policy"], 0)
        classes = tuple(sorted(set(columns.tolist())))
        return Task(len(learner.tasks), classes, images, images.take(torch.arange(0)), "", traits)

    def _with(self, labels: Sequence[str]) -> list[str]:
        """The names of all outputs once these classes are known; the order of the images does not matter."""
        return [*self.names, *sorted(set(labels) - set(self.names))]

    def teach(
        self,
        pixels: Tensor,
        labels: Sequence[str],
        about: Mapping[str, Any] | None = None,
        *,
        callback: Callback | None = None,
        every: float | None = None,
    ) -> None:
        """Learn images `[n, c, h, w]` uint8 with a class name each, or go on with learning them where it was stopped.

        The state is saved meanwhile (see `CheckpointThrottle`). When this returns the learner has learned, but the
        model is not yet committed: `finish` does that. `about` (JSON) is kept in `pending` until then.
        """
        task = self.task(pixels, labels)
        mark = fingerprint(pixels, labels)
        if self.pending is not None and self.pending["fingerprint"] != mark:
            raise UserError(
                f"{self.path} is in the middle of learning {self.pending.get('what', 'other images')}; "
                f"give it the same images to go on, or undo that first: itl undo {self.path}"
            )
        if self.pending is None:
            self.pending = {**(about or {}), "fingerprint": mark}
        else:
            learner_state.same_threads(self.learner)
        self.names = self._with(labels)
        keeper = CheckpointCallback(self, every)
        self.learner.callback = CallbackList([keeper, *([callback] if callback else [])])
        try:
            with mishaps(self.path):
                self.learner.learn(task)
        finally:
            self.learner.callback = Callback()

    def finish(self, entry: Mapping[str, Any]) -> None:
        """The learn is done: note it in the history (what, and how well), and commit."""
        pending, self.pending = self.pending or {}, None
        self.note("learn", **{**entry, "fingerprint": pending.get("fingerprint")})
        self.save()

    def note(self, what: str, **entry: Any) -> None:
        """Add an entry to the history."""
        date = time.strftime("%Y-%m-%d %H:%M:%S")
        self.history.append({"what": what, "date": date, "itl": __version__, **entry})

    # ------------------------------------------------------------------ using it

    @property
    def classes(self) -> list[str]:
        """The classes in the order they were taught; merged ones once."""
        return list(dict.fromkeys(self.names))

    def predict(self, images: Any) -> np.ndarray:
        """Return the most probable class name of each image: `[n]` of str."""
        return np.asarray(np.array(self.classes)[self.predict_proba(images).argmax(1)])

    def predict_proba(self, images: Any) -> np.ndarray:
        """Return class probabilities `[n, classes]` float64, in the order of `classes`.

        Whatever a learner takes is taken: arrays, tensors, `Images`, a list of Pillow images.
        """
        with mishaps(self.path):
            probabilities = self.learner.logits(self._images(images)).double().softmax(1)
        return np.asarray((probabilities @ self.membership().double()).numpy())

    def _images(self, images: Any) -> Images:
        if isinstance(images, Images):
            return images
        shape = tuple(getattr(images, "shape", ()))
        ours = len(shape) == 4 and shape[1] == self.image["channels"]
        pixels = as_pixels(images, "NCHW" if ours else None)
        return Images(pixels, torch.zeros(len(pixels), dtype=torch.int64))

    def membership(self) -> Tensor:
        """Which output belongs to which class: `[outputs, classes]` of 0 and 1."""
        places = {name: place for place, name in enumerate(self.classes)}
        out = torch.zeros(len(self.names), len(places))
        for output, name in enumerate(self.names):
            out[output, places[name]] = 1
        return out


def load(
    path: str | os.PathLike[str],
    *,
    device: str = "auto",
    settings: dict[str, Any] | None = None,
    callback: Callback | None = None,
    net: nn.Module | None = None,
) -> Learner:
    """The learner saved in a folder, by `Learner.save` or as a `Model`, ready to predict or to learn on.

    `settings` override those it was saved with. `net` is the network of a learner that was given one of your own: its
    structure; the weights are in the folder.
    """
    learner = Model.open(path, device=device, settings=settings, net=net).learner
    learner.callback = callback or learner.callback
    return learner


class CheckpointCallback(Callback):
    """Saves the model between rounds, at its pace."""

    def __init__(self, model: Model, every: float | None) -> None:
        self.model, self.pace = model, learner_state.CheckpointThrottle(every)

    def round_ends(self, learner: Learner, stage: Any, epoch: int, loss: float) -> None:
        """Save if it is time."""
        if self.pace.due():
            with self.pace.saving(learner):
                self.model.save()


def fingerprint(pixels: Tensor, labels: Sequence[str]) -> str:
    """A digest of images and labels: the same task, the same digest."""
    digest = hashlib.sha256("\0".join(labels).encode("utf-8", "surrogateescape"))
    for image in pixels.numpy():
        digest.update(np.ascontiguousarray(image).tobytes())
    return digest.hexdigest()


@contextmanager
def mishaps(path: Path) -> Iterator[None]:
    """Turn a lack of memory into a line; the folder is as it was."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise UserError(
            f"the GPU has too little memory for this; use --device cpu, a smaller batch or a smaller network. "
            f"{path} is as it was saved last"
        ) from None
    except MemoryError:
        raise UserError(f"there is too little memory for this; {path} is as it was saved last") from None
