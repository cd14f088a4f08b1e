"""Learning at the end of a task: tangent learning, projection, and the fine-tuning of the ablation."""

from itl.generalists.batch_norm import estimate_statistics, statistics_layers
from itl.generalists.context import MemoryContext
from itl.generalists.learning import FineTuning, Generalist, TangentLearning, build, half_pipe, prepare, restore
from itl.generalists.linearized_specialist import TangentSpecialist
from itl.generalists.projection import exact_projection_stage, projection_stage, teacher_scale
from itl.generalists.tangent_model import TangentModel

__all__ = [
    "FineTuning",
    "Generalist",
    "MemoryContext",
    "TangentLearning",
    "TangentModel",
    "TangentSpecialist",
    "build",
    "estimate_statistics",
    "exact_projection_stage",
    "half_pipe",
    "prepare",
    "projection_stage",
    "restore",
    "statistics_layers",
    "teacher_scale",
]
