"""The model folder: a learner with class names, an image format, a history and older states, saved atomically.

The model's metadata are stored in the learner's notes, so that every generation of the folder contains a consistent
state: weights, memory, class names, history and an unfinished lesson always belong together.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from itl.apps.model.generations import last_finished, newest_finished, with_undo_hint
from itl.apps.model.history import new_entry
from itl.apps.model.memory_images import PILLOW_MODES, MemoryImageFiles, memory_shape, read_image
from itl.apps.model.metadata import (
    DEFAULT_UNDO,
    METADATA_FORMAT,
    METADATA_KEY,
    ModelMetadata,
    NamedImages,
    check_unfinished,
    fingerprint,
    image_spec,
    new_pending,
    read_metadata,
)
from itl.apps.model.prediction import PredictionMixin, out_of_memory_as_user_error
from itl.callbacks.base import Callback, CallbackList
from itl.callbacks.checkpointing import CheckpointCallback
from itl.checkpoint import store
from itl.checkpoint.learner_state import LearnerState
from itl.checkpoint.lock import lock, locked
from itl.errors import UserError
from itl.learner import Learner, learner_from_state, max_tensor_bytes, use_saved_threads
from itl.learner.inputs import next_task
from itl.nets import backbone_settings, fixed_input_size
from itl.nets import find as find_backbone
from itl.streams import Images, Task

DEFAULT_SIZE = 32  # pixels
STRIDED_STEM_SIZE = 96  # pixels: from this image size on, the default network has a strided stem


class Model(PredictionMixin):
    """A learner with class names, kept in a folder. Create it with `Model.create` or `Model.open`.

    `Learner` and `Model` are two levels of the same thing. A `Learner` is the continual-learning algorithm: it takes
    arrays with labels or the tasks of a benchmark stream, and is meant for research. A `Model` wraps one
    learner (`model.learner`) for applications: classes have names, images have one fixed size, and the folder holds a
    history, older states to undo to, and a lock against concurrent writers. Use a `Learner` to compare methods, and a
    `Model` to maintain a classifier of your own images; `itl.load` returns the learner of either folder.

    Attributes:
        path: The model folder.
        learner: The learner. It is prepared (has a network) once images are taught.
        output_names: Class name of each network output. Outputs with the same name are one (merged) class.
        image: Size and channels of the images, and the augmentation that preserves their class.
        history: One entry per finished change.
        pending: Metadata of an unfinished lesson, or None.
        undo: Number of finished changes that can be undone.
        calibration: Temperature of the probabilities and threshold for "unknown", fitted by `calibrate`.
        generation: Name of the generation that was opened or saved last; None before the first save.
    """

    def __init__(self, path: str | os.PathLike[str], learner: Learner, metadata: ModelMetadata) -> None:
        self.path, self.learner = Path(path), learner
        self.output_names = metadata.names
        self.image = metadata.image
        self.history, self.pending, self.undo = metadata.history, metadata.pending, metadata.undo
        self.calibration = metadata.calibration
        self.generation: str | None = None
        self._memory_images = MemoryImageFiles()
        self._has_memory = True

    def __repr__(self) -> str:
        shape = f"{self.image['channels']}x{self.image['size']}x{self.image['size']}"
        return (
            f"Model('{self.path}', method='{self.learner.method}', classes={len(self.classes)}, "
            f"tasks={len(self.learner.tasks)}, buffer={self.learner.buffer}, image={shape})"
        )

    # ------------------------------------------------------------------ creating and opening

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        size: int | None = None,
        channels: int = 3,
        method: str = "itl",
        buffer: int = 200,
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
        flip: bool = True,
        policy: str | None = None,
        undo: int = DEFAULT_UNDO,
        device: str = "auto",
        net: nn.Module | None = None,
        backbone: str | None = None,
    ) -> Model:
        """Create a new model. Nothing is written before the first `save`.

        Args:
            path: The model folder.
            size: Width and height of the images in pixels. Default: the backbone's, or 32.
            channels: Number of channels of the images.
            method: The method, as for `Learner`.
            buffer: Number of images in memory.
            seed: Seed of everything random.
            settings: Further settings by dotted name, as for `Learner`.
            flip: Whether horizontal flips preserve the class (used for augmentation).
            policy: AutoAugment policy that preserves the class, or None.
            undo: Number of finished changes that can be undone.
            device: `auto`, `cpu` or `cuda`.
            net: Your own network, in place of the one that the settings name.
            backbone: Name of a backbone, as for `Learner`.

        Returns:
            The model, without classes.

        Raises:
            UserError: If the folder contains a model, or an argument is invalid.
        """
        if (Path(path) / store.CURRENT).exists():
            raise UserError(f"{path} already contains a model; open it, or choose another folder")
        if undo < 0:
            raise UserError(f"undo must be 0 or more, not {undo}")
        chosen = {}
        if backbone is not None:
            weights = (settings or {}).get("net.weights")
            chosen = {**backbone_settings(backbone, weights), "net.size": fixed_input_size(backbone)}
        if size is None:
            preprocessing = None if backbone is None else find_backbone(backbone).preprocessing
            size = DEFAULT_SIZE if preprocessing is None else preprocessing.input_size
        overrides = {"net.strided": size >= STRIDED_STEM_SIZE, **chosen, **(settings or {})}
        learner = Learner(method, buffer, seed, None, settings=overrides, device=device, net=net)
        image = image_spec(size, channels, flip, policy)
        return cls(path, learner, ModelMetadata(names=[], image=image, undo=undo))

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        device: str = "auto",
        settings: Mapping[str, Any] | None = None,
        net: nn.Module | None = None,
        last_finished: bool = False,
        memory: bool = True,
    ) -> Model:
        """Open a model folder, or a folder written by `Learner.save` (its classes are named "0", "1", "2", …).

        Reading needs no lock: if another process replaces the state meanwhile, the new state is read. A damaged image
        of the memory is dropped (`damaged_images`); the weights do not depend on it.

        Args:
            path: The folder.
            device: `auto`, `cpu` or `cuda`.
            settings: Settings that override the saved ones.
            net: The network's structure, if the model was created with your own network.
            last_finished: Open the last state at which a lesson was finished, for use while another is being learned.
            memory: Read the memory's images. Without them the model can predict, but neither learn nor be saved.

        Returns:
            The model.

        Raises:
            UserError: If the folder is not a model, is damaged, or has another format version.
        """
        root = Path(path)
        for _ in range(store.MAX_READ_ATTEMPTS):
            try:
                current = store.current(root)
            except UserError as error:
                raise with_undo_hint(root, error) from None
            name = newest_finished(root, current) if last_finished else current
            try:
                return cls._from_generation(root, name, device, dict(settings or {}), net, memory)
            except UserError as error:
                if store.current_unchecked(root) == current:  # otherwise it was replaced and removed while it was read
                    raise with_undo_hint(root, error) from error.__cause__
        raise UserError(store.BUSY.format(path))

    @classmethod
    def _from_generation(
        cls, root: Path, name: str, device: str, settings: dict[str, Any], net: nn.Module | None, memory: bool
    ) -> Model:
        tensors, state = store.read_generation(root, name, partial(max_tensor_bytes, source=root, net=net))
        metadata, memory_images = read_metadata(root, state), MemoryImageFiles()
        as_files = METADATA_KEY in state["notes"] and "memory.pixels" not in tensors
        if as_files and memory:
            tensors["memory.pixels"] = memory_images.read_memory(root / name, tensors, state, metadata.names)
        elif as_files:
            slots, _, shape = memory_shape(root / name, tensors, state)
            tensors["memory.pixels"] = torch.zeros(1, dtype=torch.uint8).expand(slots, *shape)
        learner = learner_from_state(LearnerState(tensors, state), root, device=device, settings=settings, net=net)
        outputs = learner.net.classifier.out_features
        if len(metadata.names) != outputs:
            raise UserError(f"the model folder {root} has {len(metadata.names)} class names for {outputs} outputs")
        model = cls(root, learner, metadata)
        model.generation, model._memory_images, model._has_memory = name, memory_images, memory or not as_files
        if memory_images.damaged:
            intact = np.setdiff1d(np.arange(len(learner.memory)), list(memory_images.damaged))
            learner.memory.keep(intact, learner.memory.size)
        return model

    @property
    def damaged_images(self) -> list[str]:
        """Files of the memory that were damaged or missing when the model was opened. The memory has lost them."""
        return list(self._memory_images.damaged.values())

    def memory_image(self, slot: int) -> np.ndarray | None:
        """Return the image in a memory slot, also if the model was opened without its memory.

        Args:
            slot: Slot of an image, below `len(model.learner.memory)`.

        Returns:
            Pixels, uint8 `[c, h, w]`; None if the image file is damaged or missing.
        """
        memory = self.learner.memory
        if self._has_memory or self.generation is None:
            return memory.pixels[slot].cpu().numpy()
        label, shape = int(memory.labels[slot]), memory.pixels.shape[1:]
        return read_image(self.path / self.generation, label, slot, self.output_names, shape)

    # ------------------------------------------------------------------ saving

    def lock(self, wait: float = 0.0) -> AbstractContextManager[None]:
        """Return a context manager that holds the folder's lock.

        Args:
            wait: Seconds to wait if another process holds it.

        Raises:
            UserError: On entry, if another process still holds the lock.
        """
        return lock(self.path, wait)

    def save(self, *, private: bool = False) -> None:
        """Save the present state as a new generation. Takes the lock if it is not held.

        Args:
            private: Remove all older generations; otherwise those that can be undone to are kept.

        Raises:
            UserError: If another process holds the lock or has changed the folder, or the folder cannot be written.
        """
        with locked(self.path):
            self._save(private)

    def _save(self, private: bool) -> None:
        current = store.current(self.path) if (self.path / store.CURRENT).exists() else None
        if current != self.generation:
            raise UserError(f"{self.path} was changed by another process since it was opened; open it again")
        self._require_memory()
        self.learner.check_consistent()
        self.learner.notes[METADATA_KEY] = {
            "format": METADATA_FORMAT,
            "names": self.output_names,
            "image": self.image,
            "history": self.history,
            "pending": self.pending,
            "undo": self.undo,
            "calibration": self.calibration.model_dump(),
        }
        state = self.learner.get_state()
        tensors, as_files = state.tensors, self.image["channels"] in PILLOW_MODES
        pixels, labels = tensors["memory.pixels"], self.learner.memory.labels
        if as_files:
            del tensors["memory.pixels"]

        def write_memory_images(draft: Path) -> dict[str, store.FileEntry]:
            return self._memory_images.write(draft, pixels[: len(labels)], labels, self.output_names)

        add_files = write_memory_images if as_files else None
        undo = max(self.undo, 0 if self.pending is None else 1)  # an unfinished lesson can always be undone
        keep = [] if private or current is None else last_finished(self.path, current, undo)
        try:
            target = store.write(self.path, tensors, state.metadata, add_files=add_files, keep=keep)
        except UserError as error:
            older = [name for name in store.generations(self.path) if name != current]
            if not (private and older and store.is_disk_full(error.__cause__)):
                raise
            store.remove_generations(self.path, older)  # they are to be removed anyway: make room for the new one
            target = store.write(self.path, tensors, state.metadata, add_files=add_files)
        if as_files:
            self._memory_images.commit(target)
        self.generation = target.name

    def _require_memory(self) -> None:
        if not self._has_memory:
            raise UserError(f"{self.path} was opened without its memory; open it with memory=True to change it")

    # ------------------------------------------------------------------ learning

    def task(self, pixels: Tensor, labels: Sequence[str], validation: NamedImages | None = None) -> Task:
        """Return images as the learner's next task; new class names are assigned to new outputs.

        Args:
            pixels: Images, uint8 `[n, c, h, w]`.
            labels: Class name of each image.
            validation: As for `teach`.

        Raises:
            UserError: If there are no images, or the numbers of images and labels differ.
        """
        if not len(pixels) or len(pixels) != len(labels):
            raise UserError(f"there are {len(pixels)} images and {len(labels)} labels; give one label per image")
        names = self._extended_names(labels)

        def images(pixels: Tensor, labels: Sequence[str]) -> Images:
            return Images(pixels, torch.tensor([names.index(name) for name in labels], dtype=torch.int64))

        task = next_task(self.learner, images(pixels, labels), flip=self.image["flip"], policy=self.image["policy"])
        return task if validation is None else replace(task, validation=images(*validation))

    def _extended_names(self, labels: Sequence[str]) -> list[str]:
        """Return the output names including new classes, which are sorted: the order of images does not matter."""
        return [*self.output_names, *sorted(set(labels) - set(self.output_names))]

    def teach(
        self,
        pixels: Tensor,
        labels: Sequence[str],
        notes: Mapping[str, Any] | None = None,
        *,
        callback: Callback | None = None,
        save_interval: float | None = None,
        threads: int | None = None,
        validation: NamedImages | None = None,
        replayed: NamedImages | None = None,
    ) -> None:
        """Learn images as one task, or resume learning the same images after an interruption.

        The unfinished state is saved periodically. When this method returns, the task is learned but not saved: call
        `finish`.

        Args:
            pixels: Images, uint8 `[n, c, h, w]`.
            labels: Class name of each image; new names are new classes.
            notes: JSON-serializable metadata, kept in `pending` until `finish`.
            callback: Receives the learner's events.
            save_interval: Seconds between saves of the unfinished state; by default `ITL_SAVE_EVERY` or 30.
            threads: Number of CPU threads. None: PyTorch's number; an unfinished task continues with its own number,
                and any other number makes its result differ in the last bits.
            validation: Images of known or new classes that are not trained on and decide when training ends
                (`specialist.patience`), and their class names.
            replayed: Images of earlier tasks to learn again, besides those in memory, and their class names.

        Raises:
            UserError: If other images are unfinished, or the images do not fit the model.
        """
        self._require_memory()
        digest, again = fingerprint(pixels, labels), None
        if replayed is not None and len(replayed[1]):
            again = fingerprint(*replayed)
            pixels, labels = torch.cat([pixels, replayed[0]]), [*labels, *replayed[1]]
        if self.pending is not None:
            check_unfinished(self.path, self.pending, digest, again)
        task = self.task(pixels, labels, validation)
        if self.pending is None:
            self.pending = new_pending(notes, digest, again)
        elif threads is None:
            use_saved_threads(self.learner)
        if threads is not None:
            torch.set_num_threads(threads)
        self.output_names = self._extended_names(labels)
        checkpointing = CheckpointCallback(lambda _: self.save(), save_interval, at_task_end=False)
        self.learner.callback = CallbackList([checkpointing, *([callback] if callback else [])])
        try:
            with out_of_memory_as_user_error(self.path):
                self.learner.learn(task)
        finally:
            self.learner.callback = Callback()
        self.calibration = self.calibration.without_threshold()

    def finish(self, entry: Mapping[str, Any]) -> None:
        """Add a learned task to the history and save the model.

        Args:
            entry: JSON-serializable facts for the history, such as what was learned and the accuracy.
        """
        self.add_history_entry("learn", **{**entry, "fingerprint": (self.pending or {}).get("fingerprint")})
        self.pending = None
        self.save()

    def add_history_entry(self, what: str, **entry: Any) -> None:
        """Add an entry with the present date to the history, without saving."""
        self.history.append(new_entry(what, entry))
