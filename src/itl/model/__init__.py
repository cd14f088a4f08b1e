"""A model folder for people: a learner with class names, its memory as pictures, a history, and a lock."""

from __future__ import annotations

from itl.model.folder import Model, load
from itl.model.lock import lock

__all__ = ["Model", "load", "lock"]
