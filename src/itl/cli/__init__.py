"""The `itl` command line: parse the options, call the library, print the result."""

from itl.cli.app import main

__all__ = ["main"]
