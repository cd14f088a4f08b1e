"""Continual learning that people can use: Integral Tangent Learning, its baselines and its benchmark."""

from itl import streams
from itl.errors import UserError
from itl.learner import Learner
from itl.saving import load

__all__ = ["Learner", "UserError", "load", "streams"]
__version__ = "0.1.0"
