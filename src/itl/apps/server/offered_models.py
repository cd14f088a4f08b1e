"""The models that a server offers: one model folder, or all models in a folder."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from itl.apps.model import edit
from itl.apps.model.generations import pending_lesson, saved_history
from itl.apps.server.added_pictures import PictureStore
from itl.apps.server.batched_prediction import Predictor
from itl.apps.server.limits import Limits
from itl.apps.teaching.options import PICTURES_FOLDER
from itl.atomic import make_folder
from itl.checkpoint import store
from itl.checkpoint.lock import lock
from itl.errors import UserError, unknown
from itl.locks import FileLock, acquire_lock, describe_holder, write_holder

FIRST_MODEL = "my-model"  # the model that the page offers if there is none yet
MODEL_NAME = re.compile(r"\w[\w .+-]{0,59}")
SERVER_LOCK = ".serve-lock"


class Session:
    """One model with its pictures and its predictor."""

    def __init__(self, folder: Path, device: str, limits: Limits) -> None:
        self.folder, self.name = folder, folder.resolve().name
        self.pictures = PictureStore(folder / PICTURES_FOLDER, limits)
        self.predictor = Predictor(folder, device, limits)
        self.review: tuple[Any, Any] | None = None  # a key of the state that it belongs to, and the review
        self.outside_files: dict[str, Path] = {}  # held-out pictures of other folders, by id

    @property
    def exists(self) -> bool:
        """Whether the folder contains a model (possibly with an unfinished first lesson)."""
        return (self.folder / store.CURRENT).exists()

    def unfinished(self) -> str | None:
        """Return the newest lesson that was started and is neither learned nor returned; None if there is none."""
        learned = {entry.get("folder") for entry in saved_history(self.folder)}
        open_lessons = [name for name in self.pictures.lessons() if f"{PICTURES_FOLDER}/{name}" not in learned]
        return open_lessons[-1] if open_lessons else None

    def is_pending(self, lesson: str) -> bool:
        """Return whether the saved state is in the middle of this lesson."""
        current = store.current_unchecked(self.folder)
        pending = pending_lesson(self.folder / current) if current is not None else None
        return pending is not None and pending.get("folder") == f"{PICTURES_FOLDER}/{lesson}"

    def discard(self, lesson: str) -> None:
        """Undo an unfinished lesson, and put its pictures back into the next one."""
        with lock(self.folder):
            if self.is_pending(lesson):
                edit.undo(self.folder)
        self.pictures.return_lesson(lesson)

    def undo(self) -> list[dict[str, Any]]:
        """Undo the last change; the pictures of an undone lesson go back into the next one."""
        with lock(self.folder):
            entries = edit.undo(self.folder)
        for entry in entries:
            lesson = str(entry.get("folder", "")).removeprefix(f"{PICTURES_FOLDER}/")
            if entry["what"] == "learn" and lesson in self.pictures.lessons():
                self.pictures.return_lesson(lesson)
        return entries


class Sessions:
    """The models in a folder, or one model.

    Args:
        path: A model folder, a path at which a new model is to be created, or a folder of models.
        device: `auto`, `cpu` or `cuda`.
        limits: Limits on uploads.
        several: Whether `path` is a folder of models; None to find out.
    """

    def __init__(self, path: Path, device: str, limits: Limits, several: bool | None = None) -> None:
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file; give a model folder, or a folder of models")
        self.path, self.device, self.limits = path, device, limits
        is_model = not path.exists() or (path / store.CURRENT).exists() or (path / PICTURES_FOLDER).exists()
        self.several = not is_model if several is None else several
        self._open: dict[str, Session] = {}

    def names(self) -> list[str]:
        """Return the names of all models, sorted; a first one is offered if there is none."""
        if not self.several:
            return [self.path.resolve().name]
        # The page cannot name a folder whose name is not text.
        folders = [path for path in self.path.glob("*") if path.name.isprintable() and path.is_dir()]
        found = [path.name for path in folders if (path / store.CURRENT).exists() or (path / PICTURES_FOLDER).is_dir()]
        return sorted({*found, *self._open}) or [FIRST_MODEL]

    def get(self, name: str | None = None) -> Session:
        """Return a model by name; without a name, the first one. Only names of `names` are accepted.

        Raises:
            UserError: If there is no model of this name.
        """
        names = self.names()
        name = name or names[0]
        if name not in names:
            raise unknown("model", name[:60], names)
        return self._session(name)

    def create(self, name: str) -> Session:
        """Create a new model.

        Raises:
            UserError: If the name is taken or not a plain file name, or only one model is served.
        """
        name = name.strip()
        if not self.several:
            raise UserError("this server serves one model; start itl serve with a folder of models")
        if not MODEL_NAME.fullmatch(name) or name.endswith((".", " ")):
            raise UserError("a model's name has 1 to 60 letters, digits, spaces or . _ + -; choose another one")
        if (self.path / name).exists() or name in self._open:
            raise UserError(f"there is already a model {name}; choose another name")
        return self._session(name)

    def _session(self, name: str) -> Session:
        if name not in self._open:
            folder = self.path / name if self.several else self.path
            self._open[name] = Session(folder, self.device, self.limits)
        return self._open[name]

    def lock(self) -> FileLock:
        """Take the lock that keeps a second server from changing the same pictures.

        Raises:
            UserError: If another server serves the path, a model in it, or the folder of models that contains it.
        """
        make_folder(self.path)
        held = acquire_lock(self.path / SERVER_LOCK)
        if held is None:
            raise _already_served(self.path)
        inside = [file.parent for file in self.path.glob(f"*/{SERVER_LOCK}")] if self.several else []
        for folder in (*inside, self.path.resolve().parent):
            if _is_served(folder):
                held.release()
                raise _already_served(folder)
        write_holder(self.path / SERVER_LOCK)
        return held

    def close(self) -> None:
        """End all predictors."""
        for session in self._open.values():
            session.predictor.close()


def _is_served(folder: Path) -> bool:
    """Return whether a server holds the lock of a folder, without creating a lock file."""
    if not (folder / SERVER_LOCK).exists():
        return False
    with suppress(OSError):  # a file that this user cannot open
        held = acquire_lock(folder / SERVER_LOCK)
        if held is not None:
            held.release()
        return held is None
    return False


def _already_served(folder: Path) -> UserError:
    holder = describe_holder(folder / SERVER_LOCK)
    return UserError(f"{folder} is already served by {holder}; use its page, or end it first")
