"""Callbacks of a learner: the base class, lists of callbacks, checkpointing and TensorBoard."""

from itl.callbacks.base import Callback, CallbackList
from itl.callbacks.checkpointing import CheckpointCallback
from itl.callbacks.tensorboard import TensorBoardCallback

__all__ = ["Callback", "CallbackList", "CheckpointCallback", "TensorBoardCallback"]
