"""The `itl` program: its commands, its error messages and its exit codes."""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn, TextIO

import click

from itl import __version__
from itl.cli.commands.bench import bench
from itl.cli.commands.doctor import doctor
from itl.cli.commands.edit import check, forget, rename, resize, undo
from itl.cli.commands.evaluate import evaluate
from itl.cli.commands.export import export
from itl.cli.commands.info import info
from itl.cli.commands.learn import learn
from itl.cli.commands.listing import backbones, methods, streams
from itl.cli.commands.predict import predict
from itl.cli.commands.refine import refine
from itl.cli.commands.report import report
from itl.cli.commands.run import run
from itl.cli.commands.search import search
from itl.cli.commands.serve import serve
from itl.cli.commands.sweep import sweep
from itl.cli.commands.table import table
from itl.cli.output import warn
from itl.errors import UserError, unknown

EXIT_INTERNAL_ERROR, EXIT_USER_ERROR, EXIT_INTERRUPTED = 1, 2, 130
# Conditions of the operating system, not bugs: they are reported in one line.
SYSTEM_ERRORS = {
    getattr(errno, name)
    for name in ("EACCES", "EPERM", "ENAMETOOLONG", "ELOOP", "ENOTDIR", "EROFS", "ENOSPC", "EDQUOT", "EIO", "EMFILE")
    if hasattr(errno, name)
}
_REPEAT = "and repeat the command; --resume continues a run."
_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), f" Free some space {_REPEAT}"),
    errno.EIO: f" Check the disk {_REPEAT}",
}
HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
HELP_SECTIONS = {
    "Experiments": (run, refine, sweep, search, table, report, bench),
    "Lists and checks": (methods, streams, backbones, doctor),
    "Models of your own images": (serve, learn, predict, evaluate, info, export, check, undo, forget, rename, resize),
}


class SectionedGroup(click.Group):
    """A command group that lists its commands by section and suggests the closest command for an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command named by `args[0]`."""
        if args[0] not in self.commands and not args[0].startswith("-"):
            raise unknown("command", args[0], self.commands)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; report Ctrl-C in one line, where click would print an empty one."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            _print_error(str(stop) or "Interrupted.")
            raise click.exceptions.Exit(EXIT_INTERRUPTED) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands of each section."""
        limit = formatter.width - 6 - max(map(len, self.commands))
        for title, commands in HELP_SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(str(command.name), command.get_short_help_str(limit)) for command in commands])


@click.group(cls=SectionedGroup, invoke_without_command=True, context_settings=HELP_OPTIONS)
@click.version_option(__version__, prog_name="itl", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Continual learning with Integral Tangent Learning (ITL), its baselines and its benchmark.

    Try it: `itl run` trains ITL on a small stream, on any CPU, in about a minute.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


for section in HELP_SECTIONS.values():
    for command in section:
        # click caches a command's help option from its first context, and a context without a parent inherits no names.
        command.context_settings.update(HELP_OPTIONS)
        cli.add_command(command)


class _StandardStream(io.TextIOWrapper):
    """A standard stream that discards output after its reader (such as `head -1`) has exited: the command finishes.

    Args:
        stream: The stream to replace.
        ignored: Type of the errors after which everything is discarded.
    """

    def __init__(self, stream: io.TextIOWrapper, ignored: type[OSError]) -> None:
        super().__init__(
            stream.buffer,
            encoding=stream.encoding,
            errors="replace",  # a terminal that cannot show ± must not end a run
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        self._original = stream  # it would close the file when it is deleted
        self._ignored = ignored

    def write(self, text: str) -> int:
        """Write text, if there is a reader."""
        try:
            return super().write(text)
        except self._ignored:
            _discard(self)
            return len(text)

    def flush(self) -> None:
        """Flush, if there is a reader."""
        try:
            super().flush()
        except self._ignored:
            _discard(self)


def _prepare_standard_streams() -> None:
    """Let the command go on without a reader of its output, and without a place for its messages."""
    for name, ignored in (("stdout", BrokenPipeError), ("stderr", OSError)):
        stream = getattr(sys, name)
        if stream is None:  # the caller has closed it, as `>&-` does
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _StandardStream(stream, ignored))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 for success, 2 for the user's mistakes, 1 for bugs, 130 for Ctrl-C."""
    _prepare_standard_streams()
    try:
        code = cli.main(args, prog_name="itl", standalone_mode=False)
        sys.stdout.flush()
    except UserError as error:
        code = _print_error(str(error), EXIT_USER_ERROR)
    except click.Abort:
        code = _print_error("Interrupted.", EXIT_INTERRUPTED)
    except click.ClickException as error:
        code = _print_error(_click_message(error), EXIT_USER_ERROR)
    except Exception as error:
        message = _system_message(error)
        if message is None:
            _print_error(
                f"Internal error ({type(error).__name__}). This is a bug in itl; please report this traceback:"
            )
            traceback.print_exc()
        code = EXIT_INTERNAL_ERROR if message is None else _print_error(message, EXIT_USER_ERROR)
    sys.exit(code if isinstance(code, int) else 0)


def _print_error(message: str, code: int = EXIT_INTERNAL_ERROR) -> int:
    """Print `message` as one line on standard error and return `code`."""
    warn(" ".join(message.split()))
    return code


def _system_message(error: Exception) -> str | None:
    """One line about a lack of memory or a refusal by the operating system; None for any other error."""
    if type(error).__name__ == "OutOfMemoryError":  # torch's; importing torch here would slow down every command
        return "The GPU is out of memory. Use --device cpu, a smaller batch or a smaller network."
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error)):
        return "Out of memory. Use a smaller --buffer, batch or network."
    if not isinstance(error, OSError) or error.errno is None or error.errno not in SYSTEM_ERRORS:
        return None
    if error.filename is not None:
        advice = _ADVICE.get(error.errno, "")
        return f"Cannot use {str(error.filename)[:200]}: {error.strerror}.{advice}"
    _discard(sys.stdout)
    return f"Cannot write the output: {error.strerror}. Everything finished before is saved."


def _discard(stream: TextIO) -> None:
    """Redirect a standard stream to nowhere: Python would fail to flush it again at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _click_message(error: click.ClickException) -> str:
    """Click's error message in one line, without its usage lines."""
    ctx = getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption) and ctx is not None:
        options = [
            name
            for param in ctx.command.params
            for name in param.opts
            if name.startswith("--") and not getattr(param, "hidden", False)
        ]
        return str(unknown("option", error.option_name, [*options, "--help"]))
    message = error.format_message().rstrip(".")
    return f"{message}. See `{ctx.command_path} --help`." if ctx is not None else f"{message}."
