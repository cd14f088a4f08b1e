"""`itl undo`, `check`, `forget`, `rename` and `resize`: change a model without training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from itl.cli.commands.info import describe_change
from itl.cli.display.formatting import plural
from itl.cli.output import echo, warn_damaged_images
from itl.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from itl.apps.model import Model

WEIGHTS_NOTE = """\
The weights were trained with these images and have not changed.
To remove their influence, train a new model without them."""


@click.command()
@click.argument("model", metavar="MODEL")
def undo(model: str) -> None:
    """Undo the last change of a model.

    Undoes learn (finished or interrupted), rename or resize. If the current state is damaged, goes back to the newest
    undamaged one.
    """
    from itl.apps.model import edit
    from itl.checkpoint.lock import lock

    _check_exists(model)
    with lock(model):
        for entry in edit.undo(Path(model)):
            echo(f"undone: {describe_change(entry)}")


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--dry-run", is_flag=True, help="Only report what is damaged.")
def check(model: str, dry_run: bool) -> None:
    """Verify the files of a model and repair it.

    Damaged images are restored from an older state or dropped from the memory; predictions do not depend on them. If
    the weights are damaged, `itl undo` goes back to the newest undamaged state.
    """
    from itl.apps.model.check import check as check_folder

    _check_exists(model)
    result = check_folder(Path(model), repair=not dry_run)
    for problem in result.problems:
        echo(f"damaged: {problem}")
    for repair in result.repairs:
        echo(f"repaired: {repair}")
    if dry_run and result.problems:
        raise UserError(f"{model} is damaged. Repair it with: itl check {model}")
    if not result.problems:
        echo(f"{model} is intact ({plural(result.states, 'state')} checked)")


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--image", "images", multiple=True, metavar="FILE", help="Image that was learned. Repeatable.")
@click.option("--class", "classes", multiple=True, metavar="NAME", help="Class to remove with its images. Repeatable.")
def forget(model: str, images: tuple[str, ...], classes: tuple[str, ...]) -> None:
    """Delete images or classes from a model for good.

    Also deletes the earlier states of the model, so it cannot be undone. The weights do not change.

    Images are found in the memory by their pixels: give the file that was learned, or its copy in the memory's folder.
    """
    from itl.apps.images import clear_cache
    from itl.apps.model import edit
    from itl.checkpoint.lock import lock

    if not images and not classes:
        raise UserError("Nothing to forget. Use --image FILE or --class NAME.")
    _check_exists(model)
    with lock(model):
        opened = _open(model)
        count = edit.forget(opened, classes=classes, images=_read_pixels(opened, images) if images else None)
    clear_cache()  # decoded images and their features are also cached outside the folder
    named = f" and the {'class' if len(classes) == 1 else 'classes'} {', '.join(classes)}" if classes else ""
    echo(f"deleted: {plural(count, 'image')} of the memory{named}, and all earlier states of the model")
    echo(WEIGHTS_NOTE)


def _read_pixels(model: Model, paths: tuple[str, ...]) -> Tensor:
    from itl.apps.model.input_format import read_model_images
    from itl.errors import UserError

    images = read_model_images(model, paths)
    if images.skipped:
        raise UserError(str(images.skipped[0]))
    return images.pixels


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option("--merge", is_flag=True, help="NEW is an existing class: merge OLD into it.")
def rename(model: str, old: str, new: str, merge: bool) -> None:
    """Rename a class, or merge two classes."""
    from itl.apps.model import edit
    from itl.checkpoint.lock import lock

    _check_exists(model)
    with lock(model):
        opened = _open(model)
        edit.rename(opened, old, new, merge=merge)
    echo(describe_change(opened.history[-1]))


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("size", metavar="IMAGES", type=int)
def resize(model: str, size: int) -> None:
    """Change the memory size of a model.

    A smaller memory keeps randomly drawn images, equally many of each class.
    """
    from itl.apps.model import edit
    from itl.checkpoint.lock import lock

    _check_exists(model)
    with lock(model):
        opened = _open(model)
        removed = edit.resize(opened, size)
    dropped = ", ".join(f"{count} of {name}" for name, count in removed.items())
    echo(describe_change(opened.history[-1]) + (f"; dropped {dropped}" if dropped else ""))


def _open(model: str) -> Model:
    """Open a model to change it."""
    from itl.apps.model import Model

    opened = Model.open(model, device="cpu")
    warn_damaged_images(opened)
    return opened


def _check_exists(model: str) -> None:
    """Raise a `UserError` if `model` is no model folder, before a lock file is created in it."""
    from itl.checkpoint import store

    if not store.generations(model):
        store.current(model)
