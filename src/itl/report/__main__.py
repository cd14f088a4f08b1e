"""`python -m itl.report RUN FILE` draws the accuracy through the stages of a run into FILE."""

import sys

from itl.report import draw_stages

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m itl.report RUN FILE")
    draw_stages(sys.argv[1], sys.argv[2])
