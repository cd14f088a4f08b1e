"""The command line, thin: parse, call, print."""

from itl.cli.app import main

__all__ = ["main"]
