"""The ablation with a search of equal size for every rung, from the same kept specialists, on validation images.

python benchmarks/ablation.py --out runs/ablation --data data --runs-per-gpu 4          on a GPU, Seq-CIFAR-10
python benchmarks/ablation.py --out runs/ablation --data data --until 1500              start no trial later
python benchmarks/ablation.py --out runs/ablation --report                              the tables of what is recorded
python benchmarks/ablation.py --out /tmp/a --stream seq-digits --buffer 20 --device cpu --tasks 1,5 --quick   rehearsal

One run of `itl` per seed trains and keeps its specialists. Every candidate of every rung is then learned again from the
specialists after some tasks (`itl refine`). Each rung has `CANDIDATES_PER_RUNG` candidates, which include the
batch-norm mode of full fine-tuning and AutoAugment on the memory. A rung's candidate with the highest mean of Class-IL
+ Task-IL / 2 over seeds and tasks is chosen. All differences between two rungs are then reported, paired by seed, with
95 % confidence intervals, for the experts and before projection. The same images choose and compare, so the best of
several candidates is slightly optimistic; `--choose-on 0` chooses on some seeds and compares on the others.

An interrupted search continues where it stopped: each trial is one file in OUT/trials. With 3 seeds and tasks 1, 3
and 5 there are 3 runs and 270 trials: on an H200 with four at once about 6 minutes for the runs and 10 for the trials,
if a trial takes 9 s as in earlier searches.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1]
sys.path[:0] = [str(HOME), str(HOME / "src")]

from benchmarks.choices import SettingValues, Trial, score  # noqa: E402
from benchmarks.runs import run_all  # noqa: E402
from itl.experiments.config import Config  # noqa: E402
from itl.experiments.search.local_backend import LocalBackend  # noqa: E402
from itl.results import RunFolder  # noqa: E402
from itl.results.seed_groups import MeanStd  # noqa: E402

CANDIDATES_PER_RUNG = 6
PLAIN = {"augment.generalist": None}  # no AutoAugment on the memory
KL = {"projection.loss": "kl", "projection.teacher_rms": 3.0, "projection.monitor": True}
SOLVED = {"tangent.solver": "lbfgs", "tangent.views": 16}
LINEAR: tuple[SettingValues, ...] = tuple(
    {**SOLVED, "generalist": "linear", "project": False, "tangent.l2": l2, **augment}
    for l2, augment in itertools.product((1e-2, 1e-3, 1e-4), ({}, PLAIN))
)
FULL: tuple[SettingValues, ...] = tuple(
    {"generalist": "full", "tangent.batch_norm": mode, "tangent.momentum": 0.0, **rate, **augment}
    for (mode, rate), augment in itertools.product(
        (
            ("train", {"tangent.lr": 0.05}),
            ("train", {"tangent.lr": 0.1, "tangent.schedule": "cosine"}),
            ("eval", {"tangent.lr": 0.01, "tangent.schedule": "cosine"}),
        ),
        ({}, PLAIN),
    )
)


def _tangent(l2: float, **others: Any) -> SettingValues:
    """Solved tangent learning with the safe projection."""
    return {**SOLVED, **KL, "generalist": "tangent", "tangent.l2": l2, **others}


# The candidates of each rung; `b` is the specialist itself.
RUNGS: dict[str, tuple[SettingValues, ...]] = {
    "b+lf": tuple({**settings, "half_pipe": False} for settings in LINEAR),
    "b+hp+lf": tuple({**settings, "half_pipe": True} for settings in LINEAR),
    "b+ff": tuple({**settings, "half_pipe": False, "project": False} for settings in FULL),
    "b+hp+ff+pd": tuple({**settings, **KL, "half_pipe": True, "project": True} for settings in FULL),
    "itl": (
        _tangent(1e-3, half_pipe_scale=3.0),
        _tangent(1e-3, half_pipe_scale=10.0),
        _tangent(1e-4, half_pipe_scale=10.0),
        _tangent(1e-3, half_pipe=False, project=True),
        _tangent(1e-3, half_pipe="linear"),
        {**_tangent(1e-3, half_pipe_scale=10.0), **PLAIN},
    ),
}
QUICK = {"tangent.views": 2, "tangent.epochs": 3, "projection.epochs": 3, "tangent.iterations": 20}
QUICK_RUN = {"net.width": 8, "specialist.epochs": 2, "tangent.epochs": 2, "projection.epochs": 2}
Values = dict[int, float]  # accuracy by seed


class Ablation:
    """The search in one folder: runs in OUT/runs, trials in OUT/trials.

    Args:
        args: Options of the command line.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.out = args, Path(args.out)
        self.seeds, self.tasks = _numbers(args.seeds), _numbers(args.tasks)
        self.choose_on = _numbers(args.choose_on) if args.choose_on else self.seeds
        self.configs = {
            seed: Config(
                args.stream,
                "itl",
                args.buffer,
                seed,
                settings=QUICK_RUN if args.quick else {},
                split="validation",
                keep_specialists=True,
            )
            for seed in self.seeds
        }

    # ------------------------------------------------------------------ work

    def run(self) -> None:
        """Train the specialists, then try every candidate; what is recorded is not repeated."""
        from itl.engine.concurrency import run_concurrently
        from itl.engine.device import choose_engine

        started, folder = time.monotonic(), self.out / "runs"
        missing = [c for c in self.configs.values() if not (folder / c.name / "result.json").exists()]
        if missing:
            backend = LocalBackend(runs_per_gpu=self.args.runs_per_gpu, device=self.args.device)
            run_all(missing, folder, self.args.data, backend)
        trials = [
            (rung, index, seed, task)
            for task in sorted(self.tasks, reverse=True)
            for rung, index, seed in itertools.product(RUNGS, range(CANDIDATES_PER_RUNG), self.seeds)
            if not self.path(rung, index, seed, task).exists()
        ]

        def attempt(trial: tuple[str, int, int, int]) -> None:
            if time.monotonic() - started < self.args.until:
                rung, index, seed, task = trial
                print(f"{rung} candidate {index}, seed {seed}, task {task}: {self.try_candidate(*trial)}", flush=True)

        device = choose_engine(self.args.device).device
        run_concurrently([partial(attempt, trial) for trial in trials], self.args.runs_per_gpu, device)

    def try_candidate(self, rung: str, index: int, seed: int, task: int) -> str:
        """Learn one candidate again from a kept specialist."""
        from itl.experiments.refine import refine_or_error

        config = self.configs[seed]
        settings = {**RUNGS[rung][index], **(QUICK if self.args.quick else {})}
        run, stream = self.out / "runs" / config.name, config.load_stream(self.args.data)
        trial = refine_or_error(run, stream, task, settings, device=self.args.device)
        path = self.path(rung, index, seed, task)
        path.parent.mkdir(parents=True, exist_ok=True)
        RunFolder(path.parent).write(path.name, {"rung": rung, "candidate": index, "seed": seed, **trial})
        return str(trial.get("error") or f"{trial['stages']['expert']['class_il']:.1f}")

    def path(self, rung: str, index: int, seed: int, task: int) -> Path:
        """File of a trial."""
        return self.out / "trials" / f"{rung}-{index}-seed{seed}-task{task}.json"

    # ------------------------------------------------------------------ report

    def trial(self, rung: str, index: int, seed: int, task: int) -> Trial | None:
        """A recorded trial that did not diverge."""
        path = self.path(rung, index, seed, task)
        trial = json.loads(path.read_text()) if path.exists() else {}
        return trial if "stages" in trial else None

    def mean_score(self, rung: str, index: int) -> float | None:
        """Mean of Class-IL + Task-IL / 2 over seeds and tasks; None unless all are recorded and finite."""
        trials = [self.trial(rung, index, seed, task) for seed in self.choose_on for task in self.tasks]
        values = [score(trial) for trial in trials if trial is not None]
        return sum(values) / len(values) if len(values) == len(trials) else None

    def chosen(self) -> dict[str, int]:
        """The chosen candidate of each rung that has one."""
        out = {}
        for rung in RUNGS:
            scores = {index: self.mean_score(rung, index) for index in range(CANDIDATES_PER_RUNG)}
            known = {index: value for index, value in scores.items() if value is not None}
            if known:
                out[rung] = max(known, key=lambda index: known[index])
        return out

    def values(self, rung: str, index: int, task: int, stage: str, measure: str) -> Values:
        """Accuracy of a stage after a task, by seed, on the seeds to compare."""
        compared = [seed for seed in self.seeds if seed not in self.choose_on] or self.seeds
        out = {}
        for seed in compared:
            trial = self.trial(rung, index, seed, task)
            if trial is not None:
                stages = trial["stages"]
                before = next(s for name, s in stages.items() if name not in ("specialist", "expert"))
                out[seed] = float((before if stage == "before" else stages[stage])[measure])
        return out

    def report(self) -> str:
        """The chosen candidates, and all differences between two rungs, in Markdown."""
        chosen = self.chosen()
        if not chosen:
            return "Nothing is recorded for all seeds and tasks yet."
        lines = ["| rung | chosen of 6 | score | settings |", "|---|---|---|---|"]
        for rung, index in chosen.items():
            settings = " ".join(f"{name}={value}" for name, value in RUNGS[rung][index].items())
            lines.append(f"| `{rung}` | {index} | {self.mean_score(rung, index):.2f} | {settings} |")
        for task, (stage, title) in itertools.product(
            self.tasks, (("expert", "experts"), ("before", "before projection"))
        ):
            lines += [
                "",
                f"After task {task}, {title}: Class-IL, and row minus column (95 % interval, paired by seed)",
                "",
            ]
            lines += self.differences(chosen, task, stage, "class_il")
        for task in self.tasks:
            lines += [
                "",
                f"After task {task}, experts: Task-IL",
                "",
                *self.differences(chosen, task, "expert", "task_il"),
            ]
        return "\n".join(lines)

    def differences(self, chosen: Mapping[str, int], task: int, stage: str, measure: str) -> list[str]:
        """A table of all rungs against all rungs."""
        first = next(iter(chosen))
        by_rung = {"b": self.values(first, chosen[first], task, "specialist", measure)}
        by_rung |= {rung: self.values(rung, index, task, stage, measure) for rung, index in chosen.items()}
        rows = [f"| | mean | {' | '.join(f'− `{rung}`' for rung in by_rung)} |", "|---|---|" + "---|" * len(by_rung)]
        for rung, values in by_rung.items():
            cells = ["" if rung == other else difference(values, by_rung[other]) for other in by_rung]
            rows.append(f"| `{rung}` | {MeanStd.of(list(values.values())).text()} | {' | '.join(cells)} |")
        return rows


def difference(above: Values, below: Values) -> str:
    """Mean difference over common seeds ± half its 95 % interval."""
    pairs = MeanStd.of([above[seed] - below[seed] for seed in above.keys() & below.keys()])
    if pairs.mean is None:
        return "–"
    return f"{pairs.mean:+.2f}" + ("" if pairs.interval is None else f" ± {pairs.interval:.2f}")


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def options(arguments: Iterable[str] | None = None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", required=True, help="folder of runs and trials")
    parser.add_argument("--stream", default="seq-cifar10")
    parser.add_argument("--buffer", type=int, default=200)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--tasks", default="1,3,5", help="tasks after which generalists are learned")
    parser.add_argument("--choose-on", default="", help="seeds to choose on; the others are compared (default: all)")
    parser.add_argument("--data", default="data")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs-per-gpu", type=int, default=4)
    parser.add_argument("--until", type=float, default=float("inf"), help="seconds after which no trial is started")
    parser.add_argument("--quick", action="store_true", help="few epochs and a narrow network: a rehearsal, no result")
    parser.add_argument("--report", action="store_true", help="print the tables of what is recorded, run nothing")
    return parser.parse_args(None if arguments is None else list(arguments))


def main(arguments: Sequence[str] | None = None) -> None:
    args = options(arguments)
    ablation = Ablation(args)
    if not args.report:
        ablation.run()
    print(ablation.report())


if __name__ == "__main__":
    main()
