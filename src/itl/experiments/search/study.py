"""Hyperparameter search on validation images. Only the chosen settings are evaluated on the test images, once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itl.atomic import make_folder
from itl.errors import UserError
from itl.experiments.config import Config
from itl.experiments.search.space import Space
from itl.presets import settings_for
from itl.results import RunFolder, read_config
from itl.settings import flatten

if TYPE_CHECKING:
    from itl.experiments.search.trials import TrialJobs

SAMPLERS = ("tpe", "random", "grid")
# Fields that must be equal in all runs whose specialists one search uses.
SHARED_FIELDS = ("stream", "method", "buffer", "tasks", "order", "order_seed", "variant")


@dataclass(frozen=True)
class SearchPlan:
    """Everything that defines a search.

    Args:
        config: Configuration of the runs; its split must be "validation".
        space: Settings to search.
        trials: Number of trials.
        seeds: Seeds of each trial, which is scored by its mean.
        sampler: "tpe", "random" or "grid".
        prune: Whether to stop trials that fall behind.
        seed: Seed of the sampler.
        specialist_runs: Folders of runs with saved specialists. If given, trials repeat only their generalist steps.
    """

    config: Config
    space: Space
    trials: int
    seeds: tuple[int, ...] = (0,)
    sampler: str = "tpe"
    prune: bool = True
    seed: int = 0
    specialist_runs: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """Contents of search.json, where `specialist_runs` is called "kept"."""
        values = asdict(self)
        values["space"] = [asdict(dimension) for dimension in self.space.dimensions]
        values["kept"] = values.pop("specialist_runs")
        return json.loads(json.dumps(values))  # type: ignore[no-any-return]


def check_plan(plan: SearchPlan) -> None:
    """Check a plan before anything is written.

    Raises:
        UserError: If a setting is invalid, if a run or the plan uses test images, or if `specialist_runs` differ in
            more than their seed.
    """
    from itl.specialists import resolve_options

    config = plan.config
    if plan.sampler not in SAMPLERS:
        raise UserError(f"--sampler takes {', '.join(SAMPLERS)}, not '{plan.sampler}'.")
    for dimension in plan.space.dimensions:
        for value in dimension.boundary_values():
            settings = {**config.settings, dimension.key: value}
            resolve_options(settings_for(config.method, config.stream, config.buffer, settings))
    if plan.specialist_runs:
        _check_specialist_runs(plan)
    if config.split != "validation":
        raise UserError(
            "A search uses validation images only. Use --final to run the best settings on the test images."
        )
    if plan.sampler == "grid":
        list(plan.space.points())


def _check_specialist_runs(plan: SearchPlan) -> None:
    from itl.experiments import refine

    refine.check_settings(dict.fromkeys(dimension.key for dimension in plan.space.dimensions))
    for run in plan.specialist_runs:
        refine.saved_specialists(RunFolder(run))
        if Config.from_dict(read_config(run)).split != "validation":
            raise UserError(
                f"{run} was trained on the validation images too. Repeat it with --split validation "
                "--keep-specialists, and search from that run."
            )
    for other in plan.specialist_runs[1:]:
        _check_equal_options(plan.specialist_runs[0], other)


def _check_equal_options(run: str, other: str) -> None:
    """Check that two runs differ only in their seed, so that the mean over them is meaningful."""
    first, second = (Config.from_dict(read_config(folder)) for folder in (run, other))
    fields = ({name: getattr(config, name) for name in SHARED_FIELDS} for config in (first, second))
    difference = _describe_difference(*fields) or _describe_difference(_all_settings(first), _all_settings(second))
    if difference:
        raise UserError(f"{run} and {other} differ in {difference}. The runs of --from may differ only in their seed.")


def _describe_difference(first: dict[str, Any], second: dict[str, Any]) -> str:
    """Differing entries with both values, such as `buffer (20, 50), tasks (2, null)`."""
    keys = [key for key in {**first, **second} if first.get(key) != second.get(key)]
    return ", ".join(f"{key} ({json.dumps(first.get(key))}, {json.dumps(second.get(key))})" for key in keys)


def _all_settings(config: Config) -> dict[str, Any]:
    """All settings of a run by their dotted names, including the method's defaults."""
    return flatten(settings_for(config.method, config.stream, config.buffer, config.settings).model_dump())


def open_search(plan: SearchPlan, out: Path) -> TrialJobs:
    """Start a search, or open the one in `out` if its plan is the same; the number of trials may change.

    Raises:
        UserError: If the plan is invalid, or `out` contains another search or cannot be written.
    """
    from itl.experiments.search.job_locks import acquire_job_lock
    from itl.experiments.search.optional_imports import import_optional

    check_plan(plan)
    import_optional("optuna")
    lock = acquire_job_lock(out, "study", wait=True)  # two processes must not create the study at the same time
    assert lock is not None
    with lock:
        return _open(plan, out)


def _open(plan: SearchPlan, out: Path) -> TrialJobs:
    record, folder = plan.record(), RunFolder(out)
    if (out / "search.json").exists():
        saved = folder.read("search.json")
        if not isinstance(saved, dict):
            raise UserError(f"{out / 'search.json'} is not the file of a search. Choose another --out.")
        differing = [key for key in record if key != "trials" and record[key] != saved.get(key)]
        if differing:
            raise UserError(f"{out} contains a search with different {', '.join(differing)}. Choose another --out.")
        if saved.get("trials") != record["trials"]:
            folder.write("search.json", {**saved, "trials": record["trials"]})
        return _open_trials(out)
    try:
        make_folder(out)
        folder.write("search.json", record)
    except OSError as error:
        raise UserError(f"Cannot write to {out}: {error.strerror or error}. Choose another --out.") from error
    return _open_trials(out)


def _open_trials(out: Path) -> TrialJobs:
    """Open the trials and enqueue the initial ones that are missing: a killed process may have enqueued only some."""
    from itl.experiments.search.trials import TrialJobs

    trials = TrialJobs(out)
    known = trials.study.get_trials(deepcopy=False)
    enqueued = {_point_key(trial.system_attrs.get("fixed_params", trial.params)) for trial in known}
    for point in _initial_points(trials):
        if _point_key(point) not in enqueued:
            trials.study.enqueue_trial(point)
    return trials


def _point_key(point: dict[str, Any]) -> str:
    """A point as JSON, which distinguishes 1, 1.0 and true."""
    return json.dumps(point, sort_keys=True)


def _initial_points(trials: TrialJobs) -> list[dict[str, Any]]:
    """All points of a grid; for other samplers the method's default settings, if the space contains them."""
    if trials.plan["sampler"] == "grid":
        return list(trials.space.points())
    settings = _all_settings(trials.base)
    defaults = {dimension.key: settings.get(dimension.key) for dimension in trials.space.dimensions}
    contained = all(dimension.contains(defaults[dimension.key]) for dimension in trials.space.dimensions)
    return [defaults] if contained else []


def best_trial(trials: TrialJobs) -> dict[str, Any] | None:
    """Number, value and settings of the best complete trial; None if there is none."""
    from optuna.trial import TrialState

    complete = trials.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if not complete:
        return None
    best = max(complete, key=lambda trial: (trial.value, -trial.number))
    return {"number": best.number, "value": best.value, "settings": dict(best.params)}


def describe_running_trials(trials: TrialJobs) -> str:
    """Number of trials that other processes are running, as the start of a sentence; empty if there are none."""
    from optuna.trial import TrialState

    count = len(trials.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)))
    return f"{count} trials are" if count > 1 else "1 trial is" if count else ""


def best_config(trials: TrialJobs) -> Config:
    """Configuration that runs the best settings on the test images.

    Raises:
        UserError: If no trial is complete.
    """
    best = best_trial(trials)
    if best is None and (running := describe_running_trials(trials)):
        raise UserError(f"No trial is complete yet. {running} being run by another process.")
    if best is None:
        raise UserError("No trial is complete, so there are no best settings. Check the errors or use more --trials.")
    return replace(
        trials.base, split="test", curves=Config.curves, settings={**trials.base.settings, **best["settings"]}
    )


def write_best(trials: TrialJobs) -> Path:
    """Write the best settings to best.json, for `itl run --config`; returns its path."""
    config = {key: value for key, value in asdict(best_config(trials)).items() if value is not None}
    RunFolder(trials.out).write("best.json", config)
    return trials.out / "best.json"


def final_configs(trials: TrialJobs, seeds: Sequence[int]) -> list[Config]:
    """Runs of the best settings on the test images, one per seed, for the folder `final`.

    Raises:
        UserError: If the test images were already used for other settings of this search.
    """
    config = best_config(trials)
    for path in sorted((trials.out / "final").glob("*/config.json")):
        if Config.from_dict(read_config(path.parent)).settings != config.settings:
            raise UserError(f"{path.parent} has already used the test images for other settings. Choose another --out.")
    return [replace(config, seed=seed) for seed in seeds]
