"""A model folder for people: a learner with class names, its memory as pictures, a history, and a lock."""

from __future__ import annotations

from itl.apps.model.folder import Model, load
from itl.checkpoint.lock import lock

__all__ = ["Model", "load", "lock"]
