"""Click options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from itl.errors import UserError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def combine(*decorators: Decorator) -> Decorator:
    """One decorator that applies several; `--help` lists their options in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def exclusive(**given: object) -> None:
    """Raise a `UserError` if more than one of these options is given.

    Args:
        **given: The value of each option by its name, without the dashes. None and False mean "not given".
    """
    names = [f"--{name}" for name, value in given.items() if value is not None and value is not False]
    if len(names) > 1:
        raise UserError(f"Use either {' or '.join(names)}, not both.")


def json_option(what: str = "the result") -> Decorator:
    """`--json`, passed to the command as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what} as JSON and nothing else.")


def quiet_option(what: str) -> Decorator:
    """`--quiet`."""
    return click.option("--quiet", is_flag=True, help=f"Print only {what}.")


device_option = click.option(
    "--device",
    metavar="NAME",
    default="auto",
    show_default=True,
    help="Where to compute: cpu, cuda, or auto (a GPU if there is one).",
)
data_option = click.option(
    "--data", metavar="DIR", default="data", show_default=True, help="Folder that holds the datasets."
)
download_option = click.option("--download", is_flag=True, help="Download a missing dataset from its official address.")
method_option = click.option(
    "--method", metavar="NAME", help="Method to train; `itl methods` lists them. [default: itl]"
)
lesson_epochs_option = click.option(
    "--epochs",
    type=int,
    metavar="N",
    help="Epochs of training on the new images. [default: until their accuracy stops improving]",
)
backbone_option = click.option(
    "--backbone",
    metavar="NAME",
    help="Network to train, pre-trained if there are weights for it: one that `itl backbones` lists, timm:NAME, "
    "torchvision:NAME, or MODULE:FUNCTION for your own.",
)
settings_option = click.option(
    "--set",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a setting; `itl methods NAME` lists them. Repeatable.",
)
seed_option = click.option("--seed", type=int, metavar="N", help="Seed of all random draws. [default: 0]")

stream_options = combine(
    click.option("--stream", metavar="NAME", help="Stream to learn; `itl streams` lists them. [default: seq-digits]"),
    method_option,
    click.option(
        "--buffer",
        type=int,
        metavar="N",
        help="Memory size in images. [default: 20 for seq-digits, 200 for other streams]",
    ),
)
class_order_options = combine(
    click.option(
        "--tasks", type=int, metavar="N", help="Number of tasks to split the classes into. [default: the stream's]"
    ),
    click.option("--order", metavar="N,N,…", help="Order in which the classes are learned."),
    click.option(
        "--order-seed", type=int, metavar="N", help="Learn the classes in a random order drawn from this seed."
    ),
)


def _remember_lanes(ctx: click.Context, param: click.Parameter, value: int | None) -> None:
    if value is not None:
        click.echo("itl: --lanes is deprecated. Use --runs-per-gpu instead.", err=True)
        ctx.meta["itl.lanes"] = value


def _or_lanes(ctx: click.Context, param: click.Parameter, value: int | None) -> int | None:
    return ctx.meta.get("itl.lanes") if value is None else value


# Click processes the options that are given before those that are not, so `--lanes` is known when the callback of an
# absent `--runs-per-gpu` runs.
runs_per_gpu_option = combine(
    click.option(
        "--runs-per-gpu",
        type=click.IntRange(1),
        metavar="N",
        callback=_or_lanes,
        help="Train up to N runs at the same time on each GPU. [default: 4]",
    ),
    click.option("--lanes", type=click.IntRange(1), hidden=True, expose_value=False, callback=_remember_lanes),
)
