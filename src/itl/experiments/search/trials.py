"""The trials of a search as work. Optuna keeps the study, in SQLite: it outlives a kill, and processes share it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from itl.callbacks.base import Callback
from itl.engine.keyed_random import generator
from itl.engine.stage import Diverged
from itl.errors import UserError
from itl.experiments.config import Config
from itl.experiments.search.job_locks import Claim, claim
from itl.experiments.search.jobs import Event, Report, Streams, Work
from itl.experiments.search.space import Choice, Space
from itl.results import RunFolder, read_config

STARTUP = 5  # trials that are never given up: there is nothing to hold them against yet
FIRST = 2  # the step from which on a trial may be given up
OVER = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


class Hopeless(Exception):
    """This trial is worse than half of the others were at this point."""


@dataclass(frozen=True)
class TrialWork:
    """One choice of settings: a run for each seed, or the generalist redone from each of `kept`; their mean counts."""

    number: int
    configs: Sequence[Config]
    settings: Mapping[str, Any] = field(default_factory=dict)  # the trial's own
    kept: Sequence[str] = ()

    @property
    def name(self) -> str:
        """`trial-0007`."""
        return f"trial-{self.number:04d}"

    @property
    def folder(self) -> str:
        """Of its runs."""
        return f"trials/{self.name}"

    @property
    def needs(self) -> Sequence[str]:
        """The runs whose specialists it starts from."""
        return self.kept

    def do(self, root: Path, streams: Streams, callbacks: Sequence[Callback], device: str, report: Report) -> Event:
        """The trial's value, or why it was given up."""
        try:
            values = self._redo(streams, callbacks, device, report) if self.kept else None
            if values is None:
                values = self._run(root / self.folder, streams, callbacks, device, report)
        except Hopeless:
            return {"state": "pruned"}
        except UserError as error:
            if isinstance(error, _failed()) or isinstance(error.__cause__, Diverged):
                return {"state": "pruned", "error": str(error)}
            raise
        return {"state": "complete", "class_il": fmean(values), "values": values}

    def _run(
        self, place: Path, streams: Streams, callbacks: Sequence[Callback], device: str, report: Report
    ) -> list[float]:
        from itl.experiments.run import run

        values: list[float] = []
        for config in self.configs:
            watch = [*callbacks, AfterTask(report)] if not values else callbacks
            folder = place / f"seed{config.seed}"
            result = run(config, streams.of(config), folder, device=device, callbacks=watch, resume=True)
            values.append(float(result["class_il"]))
        return values

    def _redo(self, streams: Streams, callbacks: Sequence[Callback], device: str, report: Report) -> list[float]:
        from itl.experiments.refine import kept, refine

        values: list[float] = []
        for config, place in zip(self.configs, self.kept, strict=True):
            for task in kept(RunFolder(place)):
                tried = refine(place, streams.of(config), task, self.settings, device=device, callbacks=callbacks)
                values.append(float(tried["stages"]["expert"]["class_il"]))
                if report(len(values), fmean(values)):
                    raise Hopeless
        return values


def _failed() -> type[UserError]:
    from itl.experiments.refine import Failed

    return Failed


class AfterTask(Callback):
    """Reports the Class-IL accuracy after each task, and gives the trial up when it is hopeless."""

    def __init__(self, report: Report) -> None:
        self.say = report

    def on_record(self, line: dict[str, Any]) -> None:
        """After a task; a resumed run first repeats its lines."""
        if line["kind"] == "expert":
            seen = line["class_il_tasks"][: line["task"]]
            if self.say(line["task"], fmean(seen)):
                raise Hopeless


class BelowMedian(optuna.pruners.BasePruner):
    """Gives up a trial whose latest value is below the median of the others' at the same step.

    From the second on: after one task nothing can have been forgotten, and trials lie an image or two apart.
    Optuna's own median pruner takes a trial's best value so far: accuracy falls with every task, so that would for
    ever be the one after the first.
    """

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Whether to give up."""
        step = trial.last_step
        if step is None or step < FIRST:
            return False
        others = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        there = [other.intermediate_values[step] for other in others if step in other.intermediate_values]
        return len(there) >= STARTUP and trial.intermediate_values[step] < median(there)


class Trials:
    """The trials of a study, taken up one by one: first those that a dead process left, then new ones."""

    ahead = False

    def __init__(self, out: Path) -> None:
        self.out = out
        self.plan = RunFolder(out).read("search.json")
        self.base = Config.of(self.plan["config"])
        self.space = Space([Choice(**one) for one in self.plan["space"]])
        self.study = study(out, self.plan["prune"])

    @classmethod
    def of(cls, spec: dict[str, Any]) -> Trials:
        """In another process."""
        return cls(Path(spec["out"]))

    @property
    def spec(self) -> dict[str, Any]:
        """What another process needs to take part."""
        return {"source": "trials", "out": str(self.out)}

    def claim(self) -> tuple[Work, Claim] | None:
        """A trial that was running when its process died, else a new one; None when there have been enough."""
        asking = claim(self.out, "study", wait=True)
        assert asking is not None
        with asking:
            trials = self.study.get_trials(deepcopy=False)
            for trial in trials:
                if trial.state is TrialState.RUNNING and (mine := claim(self.out, f"trial-{trial.number:04d}")):
                    return self._work(Trial(self.study, trial._trial_id)), mine
            begun = sum(trial.state is not TrialState.WAITING for trial in trials)
            if begun >= RunFolder(self.out).read("search.json")["trials"] or not self._more(trials):
                return None
            self.study.sampler = sampler(self.plan["sampler"], self.plan["seed"], begun)
            asked = self.study.ask()
            mine = claim(self.out, f"trial-{asked.number:04d}")
            assert mine is not None
            return self._work(asked), mine

    def _more(self, trials: Sequence[FrozenTrial]) -> bool:
        """A grid ends; the other samplers do not."""
        return self.plan["sampler"] != "grid" or any(trial.state is TrialState.WAITING for trial in trials)

    def _work(self, trial: Trial) -> TrialWork:
        chosen = self.space.suggest(trial)  # a trial taken up again has the values it had
        if self.plan["kept"]:
            configs = [Config.of(read_config(place)) for place in self.plan["kept"]]
            return TrialWork(trial.number, configs, chosen, self.plan["kept"])
        settings = {**self.base.settings, **chosen}
        configs = [replace(self.base, seed=seed, settings=settings) for seed in self.plan["seeds"]]
        return TrialWork(trial.number, configs, chosen)

    def _trial(self, number: int) -> Trial:
        return Trial(self.study, self.study.get_trials(deepcopy=False)[number]._trial_id)

    def report(self, work: Work) -> Report:
        """Kept in the study; what was reported before a kill is not reported twice."""
        assert isinstance(work, TrialWork)
        number = work.number

        def report(step: int, value: float) -> bool:
            trial = self._trial(number)
            known = self.study.get_trials(deepcopy=False)[number].intermediate_values
            if step not in known:
                trial.report(value, step)
            return bool(step >= max(known, default=0) and self.plan["prune"] and trial.should_prune())

        return report

    def finish(self, work: Work, details: Event) -> None:
        """Tell the study, and free the disk of models that nobody will go on with."""
        assert isinstance(work, TrialWork)
        trial = self._trial(work.number)
        if details.get("error"):
            trial.set_user_attr("error", details["error"])
        if details["state"] == "complete":
            trial.set_user_attr("values", details["values"])
            self.study.tell(trial, details["class_il"])
        else:
            self.study.tell(trial, state=TrialState.PRUNED)
        for model in (self.out / work.folder).glob("*/model"):
            shutil.rmtree(model, ignore_errors=True)

    def fail(self, name: str, message: str) -> None:
        """The trial counts as failed."""
        trial = self._trial(int(name.removeprefix("trial-")))
        trial.set_user_attr("error", message)
        self.study.tell(trial, state=TrialState.FAIL)


def study(out: Path, prune: bool = True) -> optuna.Study:
    """The study of a search's folder, made if it is not there."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = (out / "study.db").resolve()
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}", engine_kwargs={"connect_args": {"timeout": 60}})
    pruner = BelowMedian() if prune else optuna.pruners.NopPruner()
    return optuna.create_study(
        storage=storage, study_name="search", direction="maximize", pruner=pruner, load_if_exists=True
    )


def sampler(kind: str, seed: int, begun: int) -> optuna.samplers.BaseSampler:
    """What draws trial number `begun`: keyed, so that a continued search draws what an undisturbed one would."""
    drawn = int(generator("search", seed, begun).integers(2**31))
    return optuna.samplers.TPESampler(seed=drawn) if kind == "tpe" else optuna.samplers.RandomSampler(seed=drawn)
