"""What recording costs: the seconds a run spends on writing its record, TensorBoard's events and its display, and on
evaluations, as shares of the whole run.

python benchmarks/recording.py [--method itl] [--stream seq-digits] [--epochs N] [--data data] [--device cpu]
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

SPENT: dict[str, float] = defaultdict(float)
INSIDE: list[str] = []


def timed(owner: type, name: str, section: str) -> None:
    """Count the seconds of a method towards `section`, those of timed methods inside it towards theirs."""
    method = getattr(owner, name)

    def counted(*args, **options):
        began = time.perf_counter()
        INSIDE.append(section)
        before = sum(SPENT.values())
        try:
            return method(*args, **options)
        finally:
            INSIDE.pop()
            SPENT[section] += time.perf_counter() - began - (sum(SPENT.values()) - before)

    setattr(owner, name, counted)


def evaluation(recorder: Recorder, learner, images=None):
    """`Recorder._evaluate`, counted as a curve's or as that of a stage's end."""
    began = time.perf_counter()
    try:
        return EVALUATE(recorder, learner, images)
    finally:
        SPENT["curves" if images is not None else "stages' ends"] += time.perf_counter() - began


EVALUATE = Recorder._evaluate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("method", "itl"), ("stream", "seq-digits"), ("data", "data"), ("device", "cpu")):
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--epochs", type=int)
    given = parser.parse_args()
    Recorder._evaluate = evaluation
    timed(RunFolder, "append", "record")
    timed(RunFolder, "write", "record")
    timed(RunFolder, "put_arrays", "record")
    timed(Recorder, "_write", "record")
    timed(Recorder, "_pictures", "record")
    timed(TensorBoardCallback, "on_record", "tensorboard")
    for name in ("on_record", "on_round_end", "on_stage_start"):
        timed(RunDisplay, name, "display")
    settings = {} if given.epochs is None else {"specialist.epochs": given.epochs}
    config = Config(stream=given.stream, method=given.method, settings=settings)
    stream = config.load_stream(given.data)
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=40)
    with (
        tempfile.TemporaryDirectory() as place,
        TensorBoardCallback(place) as events,
        RunDisplay(console, config) as display,
    ):
        display.set_stream(stream)
        began = time.perf_counter()
        run(config, stream, Path(place) / "run", device=given.device, callbacks=[events, display], save=False)
        whole = time.perf_counter() - began
    shares = {name: round(100 * seconds / whole, 2) for name, seconds in SPENT.items()}
    print(json.dumps({"seconds": round(whole, 2), "percent": shares}, indent=1))


if __name__ == "__main__":
    main()
