"""`python -m itl.cli` is `itl`."""

from itl.cli import main

main()
