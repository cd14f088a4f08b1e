"""Packs run folders into a few files per experiment, and unpacks them.

python benchmarks/pack.py results/seq-cifar10/test                       pack the run folders in it, after a check
python benchmarks/pack.py results/seq-cifar10/test --unpack runs         write every packed run as a folder below runs/
python benchmarks/pack.py results/seq-cifar10/test --unpack runs --run seq-cifar10-er-200-seed0     this run alone
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HOME = Path(__file__).parents[1]
sys.path[:0] = [str(HOME), str(HOME / "src")]

from itl.errors import UserError  # noqa: E402
from itl.results import pack, unpack  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path, help="the folder of an experiment")
    parser.add_argument("--unpack", type=Path, metavar="FOLDER", help="write run folders there instead")
    parser.add_argument("--run", action="append", metavar="NAME", help="unpack this run alone; can be repeated")
    args = parser.parse_args()
    try:
        if args.unpack is not None:
            unpack(args.experiment, args.unpack, args.run)
        else:
            print(f"packed {len(pack(args.experiment))} runs into {args.experiment}")
    except UserError as error:
        sys.exit(f"pack.py: {error}")


if __name__ == "__main__":
    main()
