"""The step at the end of a task: half-pipe, tangent learning, projection; and the paper's ablations of it."""

from itl.generalists.learning import FineTuning, Generalist, MemoryContext, Tangent, build, restore
from itl.generalists.projection import projection_stage
from itl.generalists.reverse import TangentSpecialist
from itl.generalists.tangent_model import TangentModel

__all__ = [
    "FineTuning",
    "Generalist",
    "MemoryContext",
    "Tangent",
    "TangentModel",
    "TangentSpecialist",
    "build",
    "projection_stage",
    "restore",
]
