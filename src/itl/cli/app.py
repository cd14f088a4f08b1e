"""`itl` itself: which commands there are, and what a mistake looks like (one line, exit code 2)."""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import click

from itl import __version__
from itl.cli.commands.bench import bench
from itl.cli.commands.edit import forget, rename, resize, undo
from itl.cli.commands.evaluate import evaluate
from itl.cli.commands.export import export
from itl.cli.commands.info import info
from itl.cli.commands.learn import learn
from itl.cli.commands.listing import methods, streams
from itl.cli.commands.predict import predict
from itl.cli.commands.refine import refine
from itl.cli.commands.report import report
from itl.cli.commands.run import run
from itl.cli.commands.search import search
from itl.cli.commands.sweep import sweep
from itl.cli.commands.table import table
from itl.errors import UserError, unknown

OURS, THEIRS, INTERRUPTED = 1, 2, 130
# What the system may refuse anybody at any path, or at any write: never an error of ours.
REFUSED = {
    getattr(errno, name)
    for name in ("EACCES", "EPERM", "ENAMETOOLONG", "ELOOP", "ENOTDIR", "EROFS", "ENOSPC", "EDQUOT", "EIO", "EMFILE")
    if hasattr(errno, name)
}


class Commands(click.Group):
    """A group that names the nearest commands for an unknown one, and turns Ctrl-C into a line."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` begin with."""
        if args[0] not in self.commands and not args[0].startswith("-"):
            raise unknown("command", args[0], self.commands)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; click would print an empty line of its own for Ctrl-C."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            _say(str(stop) or "interrupted")
            raise click.exceptions.Exit(INTERRUPTED) from None


@click.group(cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="itl", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Continual learning that people can use: Integral Tangent Learning, its baselines and its benchmark."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


EXPERIMENTS = (run, refine, search, sweep, methods, streams, table, report, bench)
MODELS = (learn, predict, evaluate, info, export, undo, forget, rename, resize)
for command in (*EXPERIMENTS, *MODELS):
    cli.add_command(command)


def main(args: Sequence[str] | None = None) -> NoReturn:
    """The entry point. Exit codes: 0 done, 2 the user's mistake, 1 ours, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ± must not end a run
    try:
        code = cli.main(args, prog_name="itl", standalone_mode=False)
        sys.stdout.flush()
    except UserError as error:
        code = _say(str(error), THEIRS)
    except click.Abort:
        code = _say("interrupted", INTERRUPTED)
    except click.ClickException as error:
        code = _say(_in_one_line(error), THEIRS)
    except Exception as error:
        why = _of_the_machine(error)
        if why is None:
            _say(f"an error of itl's own ({type(error).__name__}), not of yours; please report it with what follows")
            traceback.print_exc()
        code = OURS if why is None else _say(why, THEIRS)
    sys.exit(code if isinstance(code, int) else 0)


def _of_the_machine(error: Exception) -> str | None:
    """What the machine lacks or refuses, in a line; None for an error that is ours."""
    if type(error).__name__ == "OutOfMemoryError":  # torch's; importing it here would make every command slow
        return "the GPU has too little memory for this; use --device cpu, or a smaller batch or network"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error)):
        return "there is too little memory for this; choose a smaller --buffer, batch or network"
    if not isinstance(error, OSError) or error.errno not in REFUSED:
        return None
    if error.filename is not None:
        return f"cannot use {str(error.filename)[:200]}: {error.strerror}"
    _drop_output()
    return f"cannot write any further: {error.strerror}; what was finished before is kept"


def _drop_output() -> None:
    """Forget what standard output could not take: Python would try it again at the end, and complain."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(message: str, code: int = OURS) -> int:
    click.echo(f"itl: {' '.join(message.split())}", err=True)
    return code


def _in_one_line(error: click.ClickException) -> str:
    """What click found wrong, without its usage lines."""
    ctx = getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption) and ctx is not None:
        options = [name for param in ctx.command.params for name in param.opts if name.startswith("--")]
        return str(unknown("option", error.option_name, [*options, "--help"]))
    message = error.format_message().rstrip(".")
    where = f"; see {ctx.command_path} --help" if ctx is not None else ""
    return f"{message[:1].lower()}{message[1:]}{where}"
