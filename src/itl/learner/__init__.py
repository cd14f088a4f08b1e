"""The learner, its stages, and loading it from a model folder. `Learner.learn` is Algorithm 1 of the paper."""

from itl.learner.learner import Learner
from itl.learner.loading import learner_from_state, load_learner, max_tensor_bytes, use_saved_threads
from itl.learner.stage_state import STAGES, StageState

__all__ = [
    "STAGES",
    "Learner",
    "StageState",
    "learner_from_state",
    "load_learner",
    "max_tensor_bytes",
    "use_saved_threads",
]
