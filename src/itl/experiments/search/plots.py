"""A search as two pictures: how the best value came about, and which settings mattered."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itl.engine.keyed_random import generator
from itl.experiments.search.optional_imports import need

if TYPE_CHECKING:
    from itl.experiments.search.trials import Trials


def draw(trials: Trials) -> list[Path]:
    """history.png, and importance.png where there are enough trials to tell."""
    need("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    out = []
    for name, fill in (("history", _history), ("importance", _importance)):
        figure = Figure(figsize=(6, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        if fill(trials, figure.add_subplot()):
            out.append(trials.out / f"{name}.png")
            figure.savefig(out[-1], dpi=150)
    return out


def _history(trials: Trials, axes: Any) -> bool:
    from optuna.trial import TrialState

    done = trials.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    cut = trials.study.get_trials(deepcopy=False, states=(TrialState.PRUNED,))
    if not done:
        return False
    values = [float(trial.value or 0.0) for trial in done]
    axes.scatter([t.number for t in done], values, s=16, label="a trial")
    told = [(t.number, t.intermediate_values[max(t.intermediate_values)]) for t in cut if t.intermediate_values]
    if told:
        axes.scatter(*zip(*told, strict=True), s=16, marker="x", color="grey", label="given up, accuracy then")
    axes.step([t.number for t in done], list(accumulate(values, max)), where="post", color="black", label="best so far")
    axes.set(xlabel="trial", ylabel="Class-IL, validation images (%)")
    axes.legend(frameon=False)
    return True


def importances(trials: Trials) -> dict[str, float]:
    """How much of the trials' variance each setting explains (fANOVA); empty where it cannot be told."""
    import optuna
    from optuna.trial import TrialState

    done = trials.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(done) < 4 or len({trial.value for trial in done}) < 2:
        return {}
    judge = optuna.importance.FanovaImportanceEvaluator(seed=int(generator("search", "importance").integers(2**31)))
    try:
        return dict(optuna.importance.get_param_importances(trials.study, evaluator=judge))
    except (RuntimeError, ValueError):  # every trial had the same settings
        return {}


def _importance(trials: Trials, axes: Any) -> bool:
    found = importances(trials)
    names = list(reversed(found))
    axes.barh(names, [found[name] for name in names], color="#4878a8")
    axes.set(xlabel="share of the variance between trials (fANOVA)", xlim=(0, 1))
    return bool(found)
