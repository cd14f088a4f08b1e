"""Run the command line as `python -m itl.cli`."""

from itl.cli import main

main()
