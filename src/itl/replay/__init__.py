"""Training with replay: epoch planning, step inputs, and the step itself."""

from itl.replay.round_planner import LabeledSource, ReplayRoundPlanner, phase_data
from itl.replay.specialist_stage import specialist_stage

__all__ = ["LabeledSource", "ReplayRoundPlanner", "phase_data", "specialist_stage"]
