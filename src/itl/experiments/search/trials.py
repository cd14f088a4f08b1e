"""Trials of a search as jobs. Optuna stores the study in SQLite, so it survives a kill and processes can share it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from itl.callbacks.base import Callback
from itl.checkpoint.store import error_summary
from itl.engine.keyed_random import generator
from itl.engine.stage import Diverged
from itl.errors import UserError
from itl.experiments.config import Config
from itl.experiments.search.job_locks import acquire_job_lock
from itl.experiments.search.jobs import Job, JobContext, JobEvent, ReportValue
from itl.experiments.search.space import Dimension, Space
from itl.locks import FileLock
from itl.results import RunFolder, read_config

MIN_COMPLETE_TRIALS = 5  # pruning compares with at least this many complete trials
FIRST_PRUNING_STEP = 2  # nothing can be forgotten after one task, so trials hardly differ there
FINISHED_STATES = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


class PrunedTrial(Exception):
    """The trial is worse than half of the complete trials were at this step."""


@dataclass(frozen=True)
class TrialJob:
    """One choice of settings, scored by the mean over its runs.

    Args:
        number: Number of the trial in the study.
        configs: One run per seed, or the runs of `specialist_runs`.
        settings: Settings that the trial has chosen.
        specialist_runs: Folders of runs with saved specialists. If given, only their generalist steps are repeated.
    """

    number: int
    configs: Sequence[Config]
    settings: Mapping[str, Any] = field(default_factory=dict)
    specialist_runs: Sequence[str] = ()

    @property
    def name(self) -> str:
        """Name of the trial, such as `trial-0007`."""
        return f"trial-{self.number:04d}"

    @property
    def folder(self) -> str:
        """Folder of the trial's runs."""
        return f"trials/{self.name}"

    @property
    def required_folders(self) -> Sequence[str]:
        """Runs whose specialists the trial reads."""
        return self.specialist_runs

    def relocate(self, root: Path) -> TrialJob:
        """Copy of the trial that reads the specialists from copies under `root`."""
        return replace(self, specialist_runs=[str(root / folder.lstrip("/")) for folder in self.specialist_runs])

    def run(self, context: JobContext) -> JobEvent:
        """Run the trial; returns its state and, if it is complete, its value. A trial has no time limit (`stop`)."""
        from itl.experiments.refine import GeneralistDiverged

        try:
            values = self._refine(context) if self.specialist_runs else self._run_seeds(context)
        except PrunedTrial:
            return {"state": "pruned"}
        except UserError as error:
            if isinstance(error, GeneralistDiverged) or isinstance(error.__cause__, Diverged):
                return {"state": "pruned", "error": str(error)}
            raise
        return {"state": "complete", "class_il": fmean(values), "values": values}

    def _run_seeds(self, context: JobContext) -> list[float]:
        """Class-IL accuracy of a run for each seed; only the first run can be pruned."""
        from itl.experiments.run import run

        values: list[float] = []
        for config in self.configs:
            used = context.callbacks if values else [*context.callbacks, PruningCallback(context.report)]
            out, stream = context.root / self.folder / f"seed{config.seed}", context.streams.load(config)
            result = run(config, stream, out, device=context.device, callbacks=used, resume=True)
            values.append(float(result["class_il"]))
        return values

    def _refine(self, context: JobContext) -> list[float]:
        """Class-IL accuracy of the expert after each task with a saved specialist."""
        from itl.experiments.refine import refine, saved_specialists

        values: list[float] = []
        for config, run in zip(self.configs, self.specialist_runs, strict=True):
            for task in saved_specialists(RunFolder(run)):
                stream, device = context.streams.load(config), context.device
                result = refine(run, stream, task, self.settings, device=device, callbacks=context.callbacks)
                values.append(float(result["stages"]["expert"]["class_il"]))
                if context.report(len(values), fmean(values)):
                    raise PrunedTrial
        return values


class PruningCallback(Callback):
    """Reports the Class-IL accuracy after each task and raises `PrunedTrial` if the trial should be pruned."""

    def __init__(self, report: ReportValue) -> None:
        self.report = report

    def on_record(self, line: dict[str, Any]) -> None:
        """Report the accuracy over the tasks seen; a resumed run repeats its earlier lines first."""
        if line["kind"] == "expert":
            accuracies = line["class_il_tasks"][: line["task"]]
            if self.report(line["task"], fmean(accuracies)):
                raise PrunedTrial


class LatestValueMedianPruner(optuna.pruners.BasePruner):
    """Prunes a trial whose latest value is below the median of the complete trials at the same step.

    Optuna's median pruner compares the best value so far. Accuracy falls with every task, so that would always be the
    value after the first task.
    """

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Whether to prune the trial."""
        step = trial.last_step
        if step is None or step < FIRST_PRUNING_STEP:
            return False
        complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        values = [other.intermediate_values[step] for other in complete if step in other.intermediate_values]
        return len(values) >= MIN_COMPLETE_TRIALS and trial.intermediate_values[step] < median(values)


class TrialJobs:
    """Trials of a study: first those whose process has died, then new ones.

    Args:
        out: Folder of the search.
    """

    claims_ahead = False

    def __init__(self, out: Path) -> None:
        self.out = out
        self.plan = RunFolder(out).read("search.json")
        self.base = Config.from_dict(self.plan["config"])
        self.space = Space([Dimension(**values) for values in self.plan["space"]])
        self.study = open_study(out, self.plan["prune"])

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> TrialJobs:
        """Open the source that `spec` describes."""
        return cls(Path(spec["out"]))

    @property
    def spec(self) -> dict[str, Any]:
        """Description from which another process can open these trials."""
        return {"source": "search", "out": str(self.out)}

    def claim(self) -> tuple[Job, FileLock] | None:
        """Lock and return a trial whose process has died, or else a new one; None once there are enough."""
        study_lock = acquire_job_lock(self.out, "study", wait=True)
        assert study_lock is not None
        with study_lock:
            trials = self.study.get_trials(deepcopy=False)
            for trial in trials:
                if trial.state is TrialState.RUNNING and (lock := self._lock(trial.number)):
                    return self._job(self._trial(trial.number)), lock
            started = sum(trial.state is not TrialState.WAITING for trial in trials)
            if started >= RunFolder(self.out).read("search.json")["trials"] or not self._has_more(trials):
                return None
            untried = self._untried(trials)
            if untried == [] and all(trial.state is not TrialState.WAITING for trial in trials):
                return None
            self.study.sampler = make_sampler(self.plan["sampler"], self.plan["seed"], started, untried)
            new_trial = self.study.ask()
            lock = self._lock(new_trial.number)
            assert lock is not None
            return self._job(new_trial), lock

    def _lock(self, number: int) -> FileLock | None:
        return acquire_job_lock(self.out, f"trial-{number:04d}")

    def _has_more(self, trials: Sequence[FrozenTrial]) -> bool:
        """Whether the sampler has another point; only a grid is finite."""
        return self.plan["sampler"] != "grid" or any(trial.state is TrialState.WAITING for trial in trials)

    def _untried(self, trials: Sequence[FrozenTrial]) -> list[dict[str, Any]] | None:
        """The points that no trial has; None if the space has a range or too many points to count."""
        if self.space.size is None:
            return None
        tried = [trial.system_attrs.get("fixed_params") or trial.params for trial in trials]
        return [point for point in self.space.points() if point not in tried]

    def _job(self, trial: Trial) -> TrialJob:
        chosen = self.space.suggest(trial)  # a resumed trial keeps its values
        if self.plan["kept"]:
            configs = [Config.from_dict(read_config(run)) for run in self.plan["kept"]]
            return TrialJob(trial.number, configs, chosen, self.plan["kept"])
        settings = {**self.base.settings, **chosen}
        configs = [replace(self.base, seed=seed, settings=settings) for seed in self.plan["seeds"]]
        return TrialJob(trial.number, configs, chosen)

    def _trial(self, number: int) -> Trial:
        return Trial(self.study, self.study.get_trials(deepcopy=False)[number]._trial_id)

    def reporter(self, job: Job) -> ReportValue:
        """Function that stores a value in the study, once per step, and returns whether to prune the trial."""
        assert isinstance(job, TrialJob)
        number = job.number

        def report(step: int, value: float) -> bool:
            trial = self._trial(number)
            reported = self.study.get_trials(deepcopy=False)[number].intermediate_values
            if step not in reported:
                trial.report(value, step)
            return bool(step >= max(reported, default=0) and self.plan["prune"] and trial.should_prune())

        return report

    def finish(self, job: Job, details: JobEvent) -> None:
        """Store the trial's result in the study, and delete its models to free the disk."""
        assert isinstance(job, TrialJob)
        trial = self._trial(job.number)
        if details.get("error"):
            trial.set_user_attr("error", details["error"])
        if details["state"] == "complete":
            trial.set_user_attr("values", details["values"])
            self.study.tell(trial, details["class_il"])
        else:
            self.study.tell(trial, state=TrialState.PRUNED)
        for model in (self.out / job.folder).glob("*/model"):
            shutil.rmtree(model, ignore_errors=True)

    def fail(self, name: str, message: str) -> None:
        """Store the trial as failed."""
        trial = self._trial(int(name.removeprefix("trial-")))
        trial.set_user_attr("error", message)
        self.study.tell(trial, state=TrialState.FAIL)


def open_study(out: Path, prune: bool = True) -> optuna.Study:
    """Open the Optuna study in the folder of a search, or create it.

    Raises:
        UserError: If the file is damaged.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = (out / "study.db").resolve()
    pruner = LatestValueMedianPruner() if prune else optuna.pruners.NopPruner()
    try:
        storage = optuna.storages.RDBStorage(f"sqlite:///{path}", engine_kwargs={"connect_args": {"timeout": 60}})
        return optuna.create_study(
            storage=storage, study_name="search", direction="maximize", pruner=pruner, load_if_exists=True
        )
    except SQLAlchemyError as error:
        reason = error_summary(getattr(error, "orig", None) or error)
        raise UserError(f"{path} cannot be read: {reason}. Delete it to start over, or choose another --out.") from None


class WithoutRepetition:
    """Mixin for a sampler: draws a point of a finite space that no trial has."""

    untried: list[dict[str, Any]] | None = None

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The sampler's value, or another one if all points with that value were tried."""
        value = super().sample_independent(study, trial, param_name, param_distribution)  # type: ignore[misc]
        if not self.untried:
            return value
        chosen = trial.params.items()
        values = [point[param_name] for point in self.untried if all(point[key] == v for key, v in chosen)]
        return value if value in values or not values else values[trial.number % len(values)]


class UntriedTPESampler(WithoutRepetition, optuna.samplers.TPESampler):
    """TPE without repetition."""


class UntriedRandomSampler(WithoutRepetition, optuna.samplers.RandomSampler):
    """Random search without repetition."""


def make_sampler(
    kind: str, seed: int, number: int, untried: list[dict[str, Any]] | None = None
) -> optuna.samplers.BaseSampler:
    """Sampler of trial `number`, seeded by it, so that a resumed search draws the same trials.

    Args:
        kind: `tpe`; any other kind draws at random.
        seed: Seed of the search.
        number: Number of the trial.
        untried: For a small finite space, the points that are left.
    """
    sampler_seed = int(generator("search", seed, number).integers(2**31))
    sampler = (UntriedTPESampler if kind == "tpe" else UntriedRandomSampler)(seed=sampler_seed)
    sampler.untried = untried
    return sampler
