"""Figures of a search: the best value over time, and the importance of each setting."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itl.atomic import atomic_write
from itl.engine.keyed_random import generator
from itl.experiments.search.optional_imports import import_optional

if TYPE_CHECKING:
    from itl.experiments.search.trials import TrialJobs


def draw(trials: TrialJobs) -> list[Path]:
    """Write history.png and, if there are enough trials, importance.png; returns their paths."""
    import_optional("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    paths = []
    for name, plot in (("history", _plot_history), ("importance", _plot_importance)):
        figure = Figure(figsize=(6, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        if plot(trials, figure.add_subplot()):
            paths.append(trials.out / f"{name}.png")
            with atomic_write(paths[-1]) as file:
                figure.savefig(file, format="png", dpi=150)
    return paths


def _plot_history(trials: TrialJobs, axes: Any) -> bool:
    """Plot the value of every trial and the best value so far; returns whether there was anything to plot."""
    from optuna.trial import TrialState

    complete = trials.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    pruned = trials.study.get_trials(deepcopy=False, states=(TrialState.PRUNED,))
    if not complete:
        return False
    numbers = [trial.number for trial in complete]
    values = [float(trial.value or 0.0) for trial in complete]
    axes.scatter(numbers, values, s=16, label="trial")
    last = [(t.number, t.intermediate_values[max(t.intermediate_values)]) for t in pruned if t.intermediate_values]
    if last:
        axes.scatter(*zip(*last, strict=True), s=16, marker="x", color="grey", label="pruned trial, last accuracy")
    axes.step(numbers, list(accumulate(values, max)), where="post", color="black", label="best so far")
    axes.set(xlabel="trial", ylabel="Class-IL, validation images (%)")
    axes.legend(frameon=False)
    return True


def importances(trials: TrialJobs) -> dict[str, float]:
    """Fraction of the variance between trials that each setting explains (fANOVA); empty if there are too few."""
    import optuna
    from optuna.trial import TrialState

    complete = trials.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(complete) < 4 or len({trial.value for trial in complete}) < 2:
        return {}
    seed = int(generator("search", "importance").integers(2**31))
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=seed)
    try:
        return dict(optuna.importance.get_param_importances(trials.study, evaluator=evaluator))
    except (RuntimeError, ValueError):  # all trials have the same settings
        return {}


def _plot_importance(trials: TrialJobs, axes: Any) -> bool:
    """Plot the importance of each setting; returns whether it is known."""
    found = importances(trials)
    names = list(reversed(found))
    axes.barh(names, [found[name] for name in names], color="#4878a8")
    axes.set(xlabel="fraction of the variance between trials (fANOVA)", xlim=(0, 1))
    return bool(found)
