"""`python -m itl`: the command line, where the script `itl` is not on the path."""

from itl.cli import main

if __name__ == "__main__":
    main()
