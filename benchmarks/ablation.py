"""The ablation with a search of equal size for every rung, from the same kept specialists.

python benchmarks/ablation.py --out runs/ablation --data data --runs-per-gpu 4          on a GPU, Seq-CIFAR-10
python benchmarks/ablation.py --out runs/ablation --data data --until 1500              start no trial later
python benchmarks/ablation.py --out runs/ablation --data data --test --seeds 0,1,2,3,4  the chosen settings, test split
python benchmarks/ablation.py --out runs/ablation --report                              the tables of what is recorded
python benchmarks/ablation.py --out runs/itl-l --method itl-l --seeds 0                 settings of itl-l
python benchmarks/ablation.py --out /tmp/a --stream seq-digits --buffer 20 --device cpu --tasks 1,5 --quick   dry run

One run per seed trains and keeps its specialists, with the first candidate of `itl`. Every candidate of every rung is
then learned again from the specialists after some tasks (`itl refine`), on validation images. Each rung has
`CANDIDATES_PER_RUNG` candidates, which include batch-norm mode and statistics, AutoAugment on the memory and the rate
of the projection. For each rung, the candidate with the highest mean of Class-IL + Task-IL / 2 over seeds and tasks is
chosen. Then the chosen candidate of the method is repeated with twice the iterations and a tenth of the tolerance. All
differences between two rungs are reported, paired by seed, with 95 % confidence intervals, for the experts and before
projection. The same images are used to choose and to compare, so the best of several candidates is slightly optimistic;
`--choose-on 0` chooses on some seeds and compares on the others.

`--test` then trains on all images with the candidate that was chosen for the method, and learns the chosen candidate of
every rung from these specialists, evaluated on the test images.

An interrupted search continues where it stopped: each trial is one file in OUT/trials or OUT/test-trials.
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
from benchmarks.paired import gain_text, paired_values  # noqa: E402
from benchmarks.runs import run_all  # noqa: E402
from itl.experiments.config import Config  # noqa: E402
from itl.experiments.search.local_backend import LocalBackend  # noqa: E402
from itl.presets import settings_for  # noqa: E402
from itl.results import RunFolder  # noqa: E402
from itl.results.seed_groups import MeanStd  # noqa: E402
from itl.settings import flatten  # noqa: E402

CANDIDATES_PER_RUNG = 8
PLAIN = {"augment.generalist": None}  # no AutoAugment on the memory
BALANCED = {"tangent.statistics": "memory"}
KL = {"projection.loss": "kl", "projection.teacher_rms": 3.0, "projection.monitor": True, "projection.lr": 0.1}
FAST = {**KL, "projection.lr": 0.2}
SOLVED = {"tangent.solver": "lbfgs", "tangent.views": 16}
LINEAR: tuple[SettingValues, ...] = tuple(
    {**SOLVED, "generalist": "linear", "project": False, "half_pipe_scale": 1.0, **settings}
    for settings in (
        *({"tangent.l2": l2, **statistics} for l2 in (1e-2, 1e-3, 1e-4) for statistics in ({}, BALANCED)),
        {"tangent.l2": 1e-2, **PLAIN},
        {"tangent.l2": 1e-2, **PLAIN, **BALANCED},
    )
)


def _full(mode: str, lr: float, **others: Any) -> SettingValues:
    """Full fine-tuning."""
    fixed = {"tangent.solver": "sgd", "tangent.momentum": 0.0, "tangent.l2": 1e-5, "half_pipe_scale": 1.0}
    return {"generalist": "full", **fixed, "tangent.batch_norm": mode, "tangent.lr": lr, **others}


def _tangent(projection: SettingValues, *others: SettingValues, scale: float = 10.0) -> SettingValues:
    """Tangent learning by L-BFGS, then the projection with settings `projection`."""
    first = {**SOLVED, **projection, "generalist": "tangent", "tangent.l2": 1e-3, "half_pipe_scale": scale}
    return {**first, **{name: value for values in others for name, value in values.items()}}


COSINE = {"tangent.schedule": "cosine"}
LONG = {"tangent.epochs": 120}
FULL = (
    _full("train", 0.05),
    _full("train", 0.05, **PLAIN),
    _full("train", 0.05, **LONG),
    _full("train", 0.02, **COSINE, **LONG),
    _full("train", 0.1, **COSINE),
    _full("train", 0.1, **COSINE, **PLAIN),
    _full("eval", 0.01, **COSINE),
    _full("eval", 0.01, **COSINE, **PLAIN),
)
PROJECTED = (
    {**_full("train", 0.05), **KL},
    {**_full("train", 0.05), **FAST},
    {**_full("train", 0.05, **PLAIN), **KL},
    {**_full("train", 0.05, **LONG), **FAST},
    {**_full("train", 0.1, **COSINE), **KL},
    {**_full("train", 0.1, **COSINE), **FAST},
    {**_full("eval", 0.01, **COSINE), **KL},
    {**_full("eval", 0.01, **COSINE, **PLAIN), **FAST},
)
OWN_CLASSIFIER = {"half_pipe": False, "project": True}
VIEWS_32 = {"tangent.views": 32}
TANGENT = (
    _tangent(KL),
    _tangent(KL, BALANCED),
    _tangent(FAST, VIEWS_32),
    _tangent(FAST, VIEWS_32, BALANCED),
    _tangent(KL, BALANCED, OWN_CLASSIFIER, scale=1.0),
    _tangent(KL, BALANCED, {"tangent.layers": 3}),
    _tangent(FAST, BALANCED, scale=3.0),
    _tangent(KL, BALANCED, {"tangent.l2": 1e-4}),
)
STORED_LOGITS = (
    _tangent(KL),
    _tangent(KL, BALANCED),
    _tangent(KL, BALANCED, {"tangent.alpha": 0.3}),
    _tangent(KL, BALANCED, {"tangent.alpha": 0.0}),
    _tangent(KL, BALANCED, OWN_CLASSIFIER, scale=1.0),
    _tangent(FAST, VIEWS_32, BALANCED),
    _tangent(FAST, BALANCED, scale=3.0),
    {},  # the method's defaults
)

# The candidates of each rung; `b` is the specialist itself.
LADDERS: dict[str, dict[str, Sequence[SettingValues]]] = {
    "itl": {
        "b+lf": tuple({**settings, "half_pipe": False} for settings in LINEAR),
        "b+hp+lf": tuple({**settings, "half_pipe": True} for settings in LINEAR),
        "b+ff": tuple({**settings, "half_pipe": False, "project": False} for settings in FULL),
        "b+hp+ff+pd": tuple({**settings, "half_pipe": True, "project": True} for settings in PROJECTED),
        "itl": TANGENT,
    },
    "itl-l": {"itl-l": STORED_LOGITS},
}
DOUBLED = {"tangent.iterations": 200, "tangent.tolerance": 3e-5}
QUICK = {"tangent.views": 2, "tangent.epochs": 3, "projection.epochs": 3, "tangent.iterations": 20}
QUICK_RUN = {"net.width": 8, "specialist.epochs": 2, "tangent.epochs": 2, "projection.epochs": 2}
Values = dict[int, float]  # accuracy by seed


class Ablation:
    """The search in one folder: runs in OUT/runs, trials in OUT/trials; those on test images in OUT/test-…

    Args:
        args: Options of the command line.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.out, self.rungs = args, Path(args.out), LADDERS[args.method]
        self.split = "test" if args.test else "validation"
        self.seeds, self.tasks = _numbers(args.seeds), _numbers(args.tasks)
        self.choose_on = _numbers(args.choose_on) if args.choose_on else [0, 1, 2] if args.test else self.seeds

    @property
    def runs(self) -> Path:
        """Folder of the runs that keep specialists."""
        return self.out / ("test-runs" if self.split == "test" else "runs")

    def config(self, seed: int) -> Config:
        """The run that trains and keeps the specialists of a seed."""
        candidate = self.chosen()[self.args.method] if self.split == "test" else 0
        return Config(
            self.args.stream,
            self.args.method,
            self.args.buffer,
            seed,
            settings={**self.rungs[self.args.method][candidate], **(QUICK_RUN if self.args.quick else {})},
            split=self.split,
            keep_specialists=True,
        )

    # ------------------------------------------------------------------ work

    def run(self) -> None:
        """Train the specialists, then try the candidates; what is recorded is not repeated."""
        started = time.monotonic()
        configs = [self.config(seed) for seed in self.seeds]
        missing = [c for c in configs if not (self.runs / c.name / "result.json").exists()]
        if missing:
            backend = LocalBackend(runs_per_gpu=self.args.runs_per_gpu, device=self.args.device)
            run_all(missing, self.runs, self.args.data, backend)
        if self.split == "test":
            self.try_all([(rung, index) for rung, index in self.chosen().items()], started)
            return
        self.try_all(list(itertools.product(self.rungs, range(CANDIDATES_PER_RUNG))), started)
        chosen = self.chosen().get(self.args.method)
        if chosen is not None:
            self.try_all([(f"{self.args.method}-doubled", chosen)], started)

    def try_all(self, candidates: Iterable[tuple[str, int]], started: float) -> None:
        """Try candidates from the specialists of all seeds, several at once."""
        from itl.engine.concurrency import run_concurrently
        from itl.engine.device import choose_engine

        trials = [
            (rung, index, seed, task)
            for task in self.tasks
            for (rung, index), seed in itertools.product(candidates, self.seeds)
            if not self.path(rung, index, seed, task).exists()
        ]

        def attempt(trial: tuple[str, int, int, int]) -> None:
            if time.monotonic() - started < self.args.until:
                rung, index, seed, task = trial
                print(f"{rung} candidate {index}, seed {seed}, task {task}: {self.try_candidate(*trial)}", flush=True)

        device = choose_engine(self.args.device).device
        run_concurrently([partial(attempt, trial) for trial in trials], self.args.trials_per_gpu, device)

    def try_candidate(self, rung: str, index: int, seed: int, task: int) -> str:
        """Train the generalist of one candidate from a kept specialist."""
        from itl.experiments.refine import refine_or_error

        config = self.config(seed)
        settings = {**self.settings(rung, index), **(QUICK if self.args.quick else {})}
        run, stream = self.runs / config.name, config.load_stream(self.args.data)
        trial = refine_or_error(run, stream, task, settings, device=self.args.device)
        path = self.path(rung, index, seed, task)
        path.parent.mkdir(parents=True, exist_ok=True)
        RunFolder(path.parent).write(path.name, {"rung": rung, "candidate": index, "seed": seed, **trial})
        return str(trial.get("error") or f"{trial['stages']['expert']['class_il']:.1f}")

    def settings(self, rung: str, index: int) -> SettingValues:
        """The settings of a candidate, which replace all of those that the run was given for its generalist."""
        doubled = rung.endswith("-doubled")
        own = {**self.rungs[rung.removesuffix("-doubled")][index], **(DOUBLED if doubled else {})}
        method = flatten(settings_for(self.args.method, self.args.stream, self.args.buffer).model_dump())
        replaced = {name for settings in self.rungs[self.args.method] for name in settings}
        return {**{name: method[name] for name in sorted(replaced)}, **own}

    def path(self, rung: str, index: int, seed: int, task: int, split: str | None = None) -> Path:
        """File of a trial."""
        folder = "test-trials" if (split or self.split) == "test" else "trials"
        return self.out / folder / f"{rung}-{index}-seed{seed}-task{task}.json"

    # ------------------------------------------------------------------ report

    def trial(self, rung: str, index: int, seed: int, task: int, split: str | None = None) -> Trial | None:
        """A recorded trial that did not diverge."""
        path = self.path(rung, index, seed, task, split)
        trial = json.loads(path.read_text()) if path.exists() else {}
        return trial if "stages" in trial else None

    def mean_score(self, rung: str, index: int) -> float | None:
        """Mean of Class-IL + Task-IL / 2 over seeds and tasks; None unless all are recorded and finite."""
        trials = [self.trial(rung, index, seed, task, "validation") for seed in self.choose_on for task in self.tasks]
        values = [score(trial) for trial in trials if trial is not None]
        return sum(values) / len(values) if len(values) == len(trials) else None

    def chosen(self) -> dict[str, int]:
        """The chosen candidate of each rung that has one."""
        out = {}
        for rung in self.rungs:
            scores = {index: self.mean_score(rung, index) for index in range(CANDIDATES_PER_RUNG)}
            known = {index: value for index, value in scores.items() if value is not None}
            if known:
                out[rung] = max(known, key=lambda index: known[index])
        return out

    def values(self, rung: str, index: int, task: int, stage: str, measure: str) -> Values:
        """Accuracy of a stage after a task, by seed, on the seeds to compare."""
        fresh = [seed for seed in self.seeds if seed not in self.choose_on] if self.split == "validation" else []
        out = {}
        for seed in fresh or self.seeds:
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
        lines = [f"| rung | chosen of {CANDIDATES_PER_RUNG} | score | settings |", "|---|---|---|---|"]
        for rung, index in chosen.items():
            settings = " ".join(f"{name}={value}" for name, value in self.rungs[rung][index].items())
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
        doubled = f"{self.args.method}-doubled"
        if self.split == "validation" and self.args.method in chosen:
            by_rung[doubled] = self.values(doubled, chosen[self.args.method], task, stage, measure)
        rows = [f"| | mean | {' | '.join(f'− `{rung}`' for rung in by_rung)} |", "|---|---|" + "---|" * len(by_rung)]
        for rung, values in by_rung.items():
            cells = ["" if rung == other else gain_text(paired_values(values, by_rung[other]), 2) for other in by_rung]
            rows.append(f"| `{rung}` | {MeanStd.of(list(values.values())).text()} | {' | '.join(cells)} |")
        return rows


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def options(arguments: Iterable[str] | None = None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", required=True, help="folder of runs and trials")
    parser.add_argument("--stream", default="seq-cifar10")
    parser.add_argument("--method", default="itl", choices=LADDERS)
    parser.add_argument("--test", action="store_true", help="the chosen candidates on the test split")
    parser.add_argument("--buffer", type=int, default=200)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--tasks", default="5,1,3", help="tasks after which generalists are learned")
    parser.add_argument("--choose-on", default="", help="seeds to choose on; the others are compared (default: all)")
    parser.add_argument("--data", default="data")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs-per-gpu", type=int, default=4)
    parser.add_argument("--trials-per-gpu", type=int, default=6)
    parser.add_argument("--until", type=float, default=float("inf"), help="seconds after which no trial is started")
    parser.add_argument("--quick", action="store_true", help="few epochs and a narrow network, to check the script")
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
