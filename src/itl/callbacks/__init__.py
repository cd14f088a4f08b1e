"""Callbacks that a learner calls while it trains: the base class, checkpointing and TensorBoard."""

from itl.callbacks.base import Callback, CallbackList
from itl.callbacks.checkpointing import CheckpointCallback
from itl.callbacks.tensorboard import TensorBoardCallback

__all__ = ["Callback", "CallbackList", "CheckpointCallback", "TensorBoardCallback"]
