"""Runs the command line with `python -m itl`, for environments in which the script `itl` is not on the path."""

from itl.cli import main

if __name__ == "__main__":
    main()
