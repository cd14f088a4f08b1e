"""`itl undo`, `forget`, `rename`, `resize`: changing one's mind about a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from itl.cli.commands.info import told
from itl.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from itl.apps.model import Model

WEIGHTS = "The weights keep what they learned from it; only a model taught anew without it has not."


@click.command()
@click.argument("model", metavar="MODEL")
def undo(model: str) -> None:
    """Go back to before the last change: a learn (finished or not), a rename, a resize.

    Of a model whose present state is damaged, the newest state that is whole becomes the present one.
    """
    from itl.apps.model import edit
    from itl.checkpoint.lock import lock

    _must_exist(model)
    with lock(model):
        for entry in edit.undo(Path(model)):
            click.echo(f"undone: {told(entry)}")


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--image", "images", multiple=True, metavar="FILE", help="An image, as it was learned; may be repeated.")
@click.option("--class", "classes", multiple=True, metavar="NAME", help="A class with all its images; may be repeated.")
def forget(model: str, images: tuple[str, ...], classes: tuple[str, ...]) -> None:
    """Remove images or classes from a model's folder for good, older states included. It cannot be undone.

    An image is found in the memory by its pixels: give the file it was learned from, or the one in the memory's
    folder. The weights keep what they learned from it.
    """
    from itl.apps.model import Model, edit
    from itl.checkpoint.lock import lock

    if not images and not classes:
        raise UserError("say what to forget: --image FILE or --class NAME")
    _must_exist(model)
    with lock(model):
        opened = Model.open(model, device="cpu")
        count = edit.forget(opened, classes=classes, images=_pixels(opened, images) if images else None)
    _clear_cache()
    named = f" and {'the class ' if len(classes) == 1 else 'the classes '}{', '.join(classes)}" if classes else ""
    click.echo(f"forgotten: {count} image{'s' * (count != 1)} of the memory{named}, and every older state")
    click.echo(WEIGHTS)


def _pixels(model: Model, images: tuple[str, ...]) -> Tensor:
    import numpy as np
    import torch

    from itl.apps.images import read_image
    from itl.cli.commands.predict import in_channels

    return in_channels(torch.from_numpy(np.stack([read_image(path, model.image["size"]) for path in images])), model)


def _clear_cache() -> None:
    """Decoded images are kept outside the folder as well, to save time."""
    from itl.apps.images import clear_cache

    clear_cache()


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option("--merge", is_flag=True, help="NEW is another class: make them one.")
def rename(model: str, old: str, new: str, merge: bool) -> None:
    """Rename a class, or make two classes one."""
    from itl.apps.model import Model, edit
    from itl.checkpoint.lock import lock

    _must_exist(model)
    with lock(model):
        opened = Model.open(model, device="cpu")
        edit.rename(opened, old, new, merge=merge)
    click.echo(told(opened.history[-1]))


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("size", metavar="IMAGES", type=int)
def resize(model: str, size: int) -> None:
    """Change how many images the memory has room for; what must go is drawn, as many of every class."""
    from itl.apps.model import Model, edit
    from itl.checkpoint.lock import lock

    _must_exist(model)
    with lock(model):
        opened = Model.open(model, device="cpu")
        lost = edit.resize(opened, size)
    dropped = ", ".join(f"{count} of {name}" for name, count in lost.items())
    click.echo(told(opened.history[-1]) + (f"; dropped {dropped}" if dropped else ""))


def _must_exist(model: str) -> None:
    """A folder that is no model is said so before a lock is put into it; of a damaged one it is said afterwards."""
    from itl.checkpoint import store

    if not store.generations(model):
        store.current(model)
