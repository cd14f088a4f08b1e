"""The cost of recording a run, as percentages of its total time.

python benchmarks/recording.py [--method itl] [--stream seq-digits] [--epochs N] [--data data] [--device cpu]

Counts the seconds spent on writing the record (`record`), TensorBoard's event files (`tensorboard`), the display
(`display`), evaluations within stages (`curves`) and evaluations at the ends of stages (`stages' ends`).
"""

import argparse
import io
import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from rich.console import Console

from itl.callbacks.tensorboard import TensorBoardCallback
from itl.cli.display.progress import RunDisplay
from itl.experiments.config import Config
from itl.experiments.recorder import Recorder
from itl.experiments.run import run
from itl.results import RunFolder

SECONDS: dict[str, float] = defaultdict(float)  # by section


def count_seconds(owner: type, name: str, section: str) -> None:
    """Count the seconds of a method towards `section`; counted methods that it calls count towards their own."""
    method = getattr(owner, name)

    def counted(*args, **options):
        start = time.perf_counter()
        before = sum(SECONDS.values())
        try:
            return method(*args, **options)
        finally:
            inner = sum(SECONDS.values()) - before
            SECONDS[section] += time.perf_counter() - start - inner

    setattr(owner, name, counted)


def timed_evaluation(recorder: Recorder, learner, images=None):
    """`Recorder._evaluate`, counted towards curves (on given images) or ends of stages (on all test images)."""
    start = time.perf_counter()
    try:
        return EVALUATE(recorder, learner, images)
    finally:
        SECONDS["curves" if images is not None else "stages' ends"] += time.perf_counter() - start


EVALUATE = Recorder._evaluate


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, default in (("method", "itl"), ("stream", "seq-digits"), ("data", "data"), ("device", "cpu")):
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--epochs", type=int, help="epochs of the specialist; default: the method's")
    args = parser.parse_args()
    Recorder._evaluate = timed_evaluation
    for name in ("append", "write", "write_arrays"):
        count_seconds(RunFolder, name, "record")
    for name in ("_write", "_write_pictures"):
        count_seconds(Recorder, name, "record")
    count_seconds(TensorBoardCallback, "on_record", "tensorboard")
    for name in ("on_record", "on_round_end", "on_stage_start"):
        count_seconds(RunDisplay, name, "display")
    settings = {} if args.epochs is None else {"specialist.epochs": args.epochs}
    config = Config(stream=args.stream, method=args.method, settings=settings)
    stream = config.load_stream(args.data)
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=40)
    with (
        tempfile.TemporaryDirectory() as folder,
        TensorBoardCallback(folder) as tensorboard,
        RunDisplay(console, config) as display,
    ):
        display.set_stream(stream)
        start = time.perf_counter()
        run(config, stream, Path(folder) / "run", device=args.device, callbacks=[tensorboard, display], save=False)
        total = time.perf_counter() - start
    percent = {name: round(100 * seconds / total, 2) for name, seconds in SECONDS.items()}
    print(json.dumps({"seconds": round(total, 2), "percent": percent}, indent=1))


if __name__ == "__main__":
    main()
