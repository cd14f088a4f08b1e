"""A search from its beginning to the chosen setting. It sees validation images only; test images, once, the choice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itl.errors import UserError
from itl.experiments.config import Config
from itl.experiments.search.space import Space
from itl.presets import settings_for
from itl.results import RunFolder, read_config
from itl.settings import flatten

if TYPE_CHECKING:
    from itl.experiments.search.trials import Trials

SAMPLERS = ("tpe", "random", "grid")
SAME = ("stream", "method", "buffer", "tasks", "order", "order_seed", "variant")  # of all runs that one search is from


@dataclass(frozen=True)
class Plan:
    """What is searched. `kept`: runs whose specialists are started from; `seed`: of the search itself."""

    config: Config
    space: Space
    trials: int
    seeds: tuple[int, ...] = (0,)
    sampler: str = "tpe"
    prune: bool = True
    seed: int = 0
    kept: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """As search.json holds it."""
        return json.loads(json.dumps({**asdict(self), "space": [asdict(one) for one in self.space.choices]}))  # type: ignore[no-any-return]


def check(plan: Plan) -> None:
    """Refuse what cannot be searched, before anything is begun."""
    from itl.specialists import resolve_options

    config = plan.config
    if plan.sampler not in SAMPLERS:
        raise UserError(f"--sampler takes {', '.join(SAMPLERS)}, not '{plan.sampler}'.")
    for choice in plan.space.choices:
        for value in choice.ends():
            resolve_options(
                settings_for(config.method, config.stream, config.buffer, {**config.settings, choice.key: value})
            )
    if plan.kept:
        from itl.experiments import refine

        refine.check(dict.fromkeys(choice.key for choice in plan.space.choices))
        for place in plan.kept:
            refine.kept(RunFolder(place))
            if Config.of(read_config(place)).split != "validation":
                raise UserError(
                    f"{place} was trained on the validation images too. Run it again with --split validation "
                    "--keep-specialists, and search from that run."
                )
        for other in plan.kept[1:]:
            _alike(plan.kept[0], other)
    if config.split != "validation":
        raise UserError("A search uses validation images only. --final runs the chosen settings on the test images.")
    if plan.sampler == "grid":
        list(plan.space.points())


def _alike(place: str, other: str) -> None:
    """Refuse two kept runs that differ in more than their seed: the mean over them would be no method's."""
    one, two = (Config.of(read_config(run)) for run in (place, other))
    differs = _differs(*({name: getattr(run, name) for name in SAME} for run in (one, two)))
    differs = differs or _differs(_settings(one), _settings(two))
    if differs:
        raise UserError(f"{place} and {other} differ in {differs}; --from takes runs that differ in their seed alone")


def _differs(one: dict[str, Any], two: dict[str, Any]) -> str:
    """`buffer (20, 50), tasks (2, null)`."""
    keys = [key for key in {**one, **two} if one.get(key) != two.get(key)]
    return ", ".join(f"{key} ({json.dumps(one.get(key))}, {json.dumps(two.get(key))})" for key in keys)


def _settings(config: Config) -> dict[str, Any]:
    """All settings of a run, the method's own and the user's, by their dotted names."""
    return flatten(settings_for(config.method, config.stream, config.buffer, config.settings).model_dump())


def begin(plan: Plan, out: Path) -> Trials:
    """The trials of a new search, or of the one in `out` if it is the same; more --trials may be asked of it."""
    from itl.experiments.search.job_locks import claim
    from itl.experiments.search.optional_imports import need

    check(plan)
    need("optuna")
    opening = claim(out, "study", wait=True)  # two that begin at the same instant would both make the study
    assert opening is not None
    with opening:
        return _begin(plan, out)


def _begin(plan: Plan, out: Path) -> Trials:
    record, folder = plan.record(), RunFolder(out)
    if (out / "search.json").exists():
        before = folder.read("search.json")
        differs = [key for key in record if key != "trials" and record[key] != before.get(key)]
        if differs:
            raise UserError(f"{out} contains a search with different {', '.join(differs)}. Choose another --out.")
        if before["trials"] != record["trials"]:
            folder.write("search.json", {**before, "trials": record["trials"]})
        return _trials(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        folder.write("search.json", record)
    except OSError as error:
        raise UserError(f"Cannot write to {out}: {error.strerror or error}. Choose another --out.") from error
    return _trials(out)


def _trials(out: Path) -> Trials:
    """Opened, its first trials queued: a grid's points, or the method's own settings where the space holds them.

    A process that was killed meanwhile has queued some; the rest follow now.
    """
    from itl.experiments.search.trials import Trials

    trials = Trials(out)
    known = trials.study.get_trials(deepcopy=False)
    there = {_text(trial.system_attrs.get("fixed_params", trial.params)) for trial in known}
    for point in _first(trials):
        if _text(point) not in there:
            trials.study.enqueue_trial(point)
    return trials


def _text(point: dict[str, Any]) -> str:
    """A point as the study keeps it; 1, 1.0 and true are three values."""
    return json.dumps(point, sort_keys=True)


def _first(trials: Trials) -> list[dict[str, Any]]:
    if trials.plan["sampler"] == "grid":
        return list(trials.space.points())
    settings = _settings(trials.base)
    own = {choice.key: settings.get(choice.key) for choice in trials.space.choices}
    return [own] if all(choice.holds(own[choice.key]) for choice in trials.space.choices) else []


def best(trials: Trials) -> dict[str, Any] | None:
    """The best trial so far: number, value, settings; None where none is complete."""
    from optuna.trial import TrialState

    done = trials.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if not done:
        return None
    first = max(done, key=lambda trial: (trial.value, -trial.number))
    return {"number": first.number, "value": first.value, "settings": dict(first.params)}


def elsewhere(trials: Trials) -> str:
    """The trials that another process is at work on, in words, once this one has nothing left to take up."""
    from optuna.trial import TrialState

    count = len(trials.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)))
    return f"{count} trials are" if count > 1 else "1 trial is" if count else ""


def chosen(trials: Trials) -> Config:
    """The best setting as a run on the test images: what best.json holds."""
    found = best(trials)
    if found is None and (others := elsewhere(trials)):
        raise UserError(f"No trial is complete yet. {others} being run by another process.")
    if found is None:
        raise UserError(
            "No trial is complete, so there are no best settings yet. See the errors, or use more --trials."
        )
    return replace(
        trials.base, split="test", curves=Config.curves, settings={**trials.base.settings, **found["settings"]}
    )


def write_best(trials: Trials) -> Path:
    """best.json, which `itl run --config` takes."""
    config = {key: value for key, value in asdict(chosen(trials)).items() if value is not None}
    RunFolder(trials.out).write("best.json", config)
    return trials.out / "best.json"


def final(trials: Trials, seeds: Sequence[int]) -> list[Config]:
    """The runs of the chosen setting on the test images, in `final/`. Another setting has no second chance there."""
    config = chosen(trials)
    for path in sorted((trials.out / "final").glob("*/config.json")):
        before = Config.of(read_config(path.parent))
        if before.settings != config.settings:
            raise UserError(f"{path.parent} has already used the test images for other settings. Choose another --out.")
    return [replace(config, seed=seed) for seed in seeds]
