"""Callbacks of a learner: the base class, lists of callbacks, checkpointing, and loggers."""

from itl.callbacks.base import Callback, CallbackList
from itl.callbacks.checkpointing import CheckpointCallback
from itl.callbacks.mlflow import MLflowCallback
from itl.callbacks.tensorboard import TensorBoardCallback
from itl.callbacks.wandb import WandbCallback

__all__ = [
    "Callback",
    "CallbackList",
    "CheckpointCallback",
    "MLflowCallback",
    "TensorBoardCallback",
    "WandbCallback",
]
