"""The front door: a learner is taught one task after another."""

from itl.learner.learner import CANDIDATES, STAGES, Learner

__all__ = ["CANDIDATES", "STAGES", "Learner"]
