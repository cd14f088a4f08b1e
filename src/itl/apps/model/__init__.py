"""The model folder: a learner with class names, memory images, a history, undo and a lock."""

from __future__ import annotations

from itl.apps.model.evaluation import EvaluationResult, evaluate_predictions
from itl.apps.model.folder import Model
from itl.apps.model.loading import load
from itl.checkpoint.lock import lock

__all__ = ["EvaluationResult", "Model", "evaluate_predictions", "load", "lock"]
