"""The pictures of a model that were added in the browser: the next lesson, earlier lessons, and tried pictures.

Layout of the folder `pictures` in a model folder:

    files/<digest>.<suffix>          image files, named after a digest of their content
    draft/itl-pictures.json          classes and files of the next lesson
    lesson-0001/itl-pictures.json    a lesson that was started: training and test files by class
    tried.json                       tried pictures, oldest first

Class names are text in lists and never part of a path.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from itl.apps.images import UnreadableImage, printable_path, split_held_out
from itl.apps.images.picture_list import (
    FILES_FOLDER,
    PictureList,
    check_class_name,
    read_list,
    write_list,
)
from itl.apps.images.read import ignore_warnings, open_bytes, upright
from itl.apps.server.limits import Limits
from itl.atomic import atomic_write, make_folder, write_text_atomic
from itl.errors import UserError
from itl.regular_files import read_regular
from itl.strict_json import read_json

DRAFT, LESSON, TRIED = "draft", "lesson-", "tried.json"
LESSON_NAME = re.compile(r"lesson-[0-9]{4,}")
PICTURE_ID = re.compile(r"[0-9a-f]{32}")
MAX_STORED_SIDE = 512  # pixels: the shorter side of larger pictures is reduced to this
MAX_THUMBNAIL_SIDE = 512
SUFFIXES = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "BMP": "bmp", "GIF": "gif", "TIFF": "tiff", "PPM": "ppm"}


class PictureStore:
    """Pictures of one model. All changes are atomic replacements of small files; methods may be called by any thread.

    Args:
        folder: The folder `pictures` in the model folder. It is created when the first picture is added.
        limits: Limits on uploads.

    Raises:
        UserError: If the folder, or something in it, is a link.
    """

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.folder, self.limits = folder, limits
        for path in (folder, *folder.glob("*")):
            if path.is_symlink():  # pictures would be written to another folder, and unused ones removed there
                raise UserError(f"{printable_path(path)} is a link; replace it with the folder or file itself")
        self._lock = threading.RLock()

    # ------------------------------------------------------------------ files

    def path(self, picture: str) -> Path | None:
        """Return the file of a picture; None if there is none."""
        if not PICTURE_ID.fullmatch(picture):
            return None
        files = (self.folder / FILES_FOLDER / f"{picture}.{suffix}" for suffix in SUFFIXES.values())
        return next((file for file in files if file.is_file() and not file.is_symlink()), None)

    def save(self, data: bytes) -> str:
        """Store an image file and return its id; large pictures are reduced.

        Raises:
            UnreadableImage: If the file is damaged, too large or not an image.
            UserError: If it cannot be written.
        """
        content, suffix = _checked_content(data, self.limits)
        picture = hashlib.sha256(content).hexdigest()[:32]
        target = self.folder / FILES_FOLDER / f"{picture}.{suffix}"
        if not target.exists():
            with _write_errors(target):
                make_folder(target.parent)
                with atomic_write(target) as file:
                    file.write(content)
        return picture

    def remove_unused(self) -> None:
        """Remove image files that no list names."""
        with self._lock:
            used = set().union(*(self.read(name).files() for name in [DRAFT, *self.lessons()]))
            stems = {Path(file).stem for file in used} | set(self.tried())
            for path in (self.folder / FILES_FOLDER).glob("*"):
                if PICTURE_ID.fullmatch(path.stem) and path.stem not in stems:
                    path.unlink(missing_ok=True)

    # ------------------------------------------------------------------ lists

    def read(self, name: str) -> PictureList:
        """Return the list of the draft or of a lesson."""
        return read_list(self.folder / name)

    def lessons(self) -> list[str]:
        """Return the names of the lessons that were started, oldest first."""
        names = (path.name for path in self.folder.glob(f"{LESSON}*"))
        return sorted(name for name in names if LESSON_NAME.fullmatch(name))

    def draft(self) -> dict[str, list[str]]:
        """Return the picture ids of the next lesson by class."""
        return {name: [Path(file).stem for file in files] for name, files in self.read(DRAFT).train.items()}

    def add(self, pictures: Iterable[str], name: str) -> None:
        """Add stored pictures to a class of the next lesson; each picture is in one class only."""
        with self._lock:
            name, draft = check_class_name(name), self.read(DRAFT)
            files = [self._file_name(picture) for picture in dict.fromkeys(pictures)]
            for other in draft.train.values():
                other[:] = [file for file in other if file not in files]
            draft.train.setdefault(name, []).extend(files)
            if len(draft.files()) > self.limits.pictures:
                raise UserError(f"a lesson has at most {self.limits.pictures} pictures; teach these first")
            write_list(self.folder / DRAFT, draft)

    def remove(self, pictures: Iterable[str]) -> None:
        """Remove pictures from the next lesson."""
        with self._lock:
            draft, removed = self.read(DRAFT), set(pictures)
            for files in draft.train.values():
                files[:] = [file for file in files if Path(file).stem not in removed]
            write_list(self.folder / DRAFT, draft)

    def remove_class(self, name: str) -> None:
        """Remove a class and its pictures from the next lesson."""
        with self._lock:
            draft = self.read(DRAFT)
            draft.train.pop(name, None)
            write_list(self.folder / DRAFT, draft)

    def rename_class(self, old: str, new: str) -> None:
        """Rename a class of the next lesson; pictures of a class that has the new name already are joined."""
        with self._lock:
            new, draft = check_class_name(new), self.read(DRAFT)
            if old not in draft.train or old == new:
                return
            files = draft.train.get(new, [])
            draft.train = {new if name == old else name: some for name, some in draft.train.items() if name != new}
            draft.train[new] = draft.train[new] + files
            write_list(self.folder / DRAFT, draft)

    # ------------------------------------------------------------------ lessons

    def start_lesson(self) -> str:
        """Turn the draft into a lesson, with about a fifth of each class held out, and return the lesson's name.

        Pictures that were trained on before stay training pictures, and pictures that are trained on now are removed
        from the held-out pictures of earlier lessons.

        Raises:
            UserError: If the draft has no picture.
        """
        with self._lock:
            draft = self.read(DRAFT)
            classes = {name: files for name, files in draft.train.items() if files}
            if not classes:
                raise UserError("there are no pictures to learn; add some first")
            earlier = {name: self.read(name) for name in self.lessons()}
            trained = {file for one in earlier.values() for files in one.train.values() for file in files}
            lesson = PictureList()
            for name, files in classes.items():
                new = [Path(file) for file in files if file not in trained]
                train, test = split_held_out(new, Path())
                lesson.train[name] = [file for file in files if file in trained] + [str(file) for file in train]
                lesson.test[name] = [str(file) for file in test]
            learned = {file for files in lesson.train.values() for file in files}
            for folder, one in earlier.items():
                if learned & one.files():
                    one.test = {label: [f for f in files if f not in learned] for label, files in one.test.items()}
                    write_list(self.folder / folder, one)
            number = max((int(name.removeprefix(LESSON)) for name in earlier), default=0) + 1
            name = f"{LESSON}{number:04d}"
            write_list(self.folder / name, lesson)
            self.finish_lesson(name)
            return name

    def finish_lesson(self, name: str) -> None:
        """Remove the pictures of a lesson from the draft."""
        with self._lock:
            draft, lesson = self.read(DRAFT), self.read(name)
            rest = {label: [f for f in files if f not in lesson.files()] for label, files in draft.train.items()}
            draft.train = {label: files for label, files in rest.items() if files}
            write_list(self.folder / DRAFT, draft)

    def return_lesson(self, name: str) -> None:
        """Put the pictures of a lesson back into the draft and remove the lesson."""
        with self._lock:
            draft, lesson = self.read(DRAFT), self.read(name)
            present = draft.files()
            for label in dict.fromkeys([*lesson.train, *lesson.test]):
                files = [*lesson.train.get(label, []), *lesson.test.get(label, [])]
                draft.train.setdefault(label, []).extend(file for file in files if file not in present)
            write_list(self.folder / DRAFT, draft)
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def forget_class(self, name: str, earlier_names: dict[str, set[str]]) -> None:
        """Remove all pictures of a class.

        Args:
            name: The class.
            earlier_names: By lesson, the names that the class had when the lesson was taught.
        """
        with self._lock:
            self.remove_class(name)
            for lesson in self.lessons():
                pictures = self.read(lesson)
                for label in earlier_names.get(lesson, {name}):
                    pictures.train.pop(label, None)
                    pictures.test.pop(label, None)
                write_list(self.folder / lesson, pictures)
            self.remove_unused()

    # ------------------------------------------------------------------ tried pictures

    def tried(self) -> list[str]:
        """Return the ids of the tried pictures, oldest first."""
        try:
            found = read_json(self.folder / TRIED)
        except (OSError, ValueError):
            return []
        is_list = isinstance(found, list) and all(isinstance(one, str) and PICTURE_ID.fullmatch(one) for one in found)
        return found if is_list else []

    def set_tried(self, pictures: list[str]) -> None:
        """Replace the list of tried pictures; only the newest are kept."""
        with self._lock:
            kept = list(dict.fromkeys(pictures))[-self.limits.tried :]
            with _write_errors(self.folder / TRIED):
                make_folder(self.folder)
                write_text_atomic(self.folder / TRIED, json.dumps(kept))

    def correct(self, picture: str, name: str) -> None:
        """Move a held-out or tried picture into a class of the next lesson."""
        with self._lock:
            self.add([picture], name)
            self.set_tried([one for one in self.tried() if one != picture])
            for lesson in self.lessons():
                pictures = self.read(lesson)
                kept = {label: [f for f in files if Path(f).stem != picture] for label, files in pictures.test.items()}
                if kept != pictures.test:
                    pictures.test = kept
                    write_list(self.folder / lesson, pictures)

    def _file_name(self, picture: str) -> str:
        path = self.path(picture)
        if path is None:
            raise UserError("this picture does not exist any more; reload the page")
        return path.name


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    """Turn errors of the disk into a `UserError`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None


def thumbnail(source: Path | bytes, side: int) -> bytes:
    """Return a picture as a JPEG file whose longer side is at most `side` pixels; small pictures are not enlarged."""
    side = max(16, min(side, MAX_THUMBNAIL_SIDE))
    data = source if isinstance(source, bytes) else read_regular(source)
    with ignore_warnings(), open_bytes(data) as image:
        image.draft(None, (2 * side, 2 * side))
        small = upright(image)
        small.thumbnail((side, side))
        out = io.BytesIO()
        small.save(out, format="JPEG", quality=85)
    return out.getvalue()


def _checked_content(data: bytes, limits: Limits) -> tuple[bytes, str]:
    """Return the bytes to store for an image file and their suffix. The image is decoded once to find damage."""
    if len(data) > limits.file_bytes:
        raise UnreadableImage("picture", f"the file is larger than {limits.file_bytes >> 20} MB; make it smaller")
    with ignore_warnings(), open_bytes(data, limits.pixels) as image:
        file_format, side = str(image.format), min(image.size)
        image.draft(None, (2 * MAX_STORED_SIDE, 2 * MAX_STORED_SIDE))
        small = upright(image)
    if side <= MAX_STORED_SIDE:
        return data, SUFFIXES[file_format]
    scale = MAX_STORED_SIDE / min(small.size)
    size = (max(1, round(small.width * scale)), max(1, round(small.height * scale)))
    reduced, out = small.resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0), io.BytesIO()
    reduced.save(out, format="JPEG", quality=92)
    return out.getvalue(), "jpg"
