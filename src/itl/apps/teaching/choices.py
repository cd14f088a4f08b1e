"""What was chosen for a model and its training, and why, in one line each."""

from __future__ import annotations

from itl import specialists
from itl.apps.teaching.default_settings import LessonSize, fixed_settings, user_settings
from itl.apps.teaching.options import INSTALL_BACKBONE
from itl.apps.teaching.teacher import Teacher
from itl.presets import settings_for
from itl.settings import Settings


def model_choice(teacher: Teacher) -> str | None:
    """Return one line about what was chosen for a new model and why; None if the user or the model says."""
    if not teacher.chooses_model:
        return None
    options, net = teacher.options, _settings(teacher).net
    method, pixels = options.method_or_default, f"{teacher.image_size} x {teacher.image_size} pixels"
    if options.backbone is not None and (net.pretrained or net.weights is not None or ":" in net.name):
        reason = ", pre-trained for photographs" if teacher.chooses_backbone else ""
        return f"new model: {method} on the backbone {options.backbone}{reason}, {pixels}"
    stem = "a strided stem for large images" if net.strided else "no strided stem for small images"
    advice = f"; pre-trained, for photographs: {INSTALL_BACKBONE}" if teacher.lacks_backbone else ""
    return f"new model: {method}, {net.name} trained from scratch, {stem}, {pixels}{advice}"


def training_choice(teacher: Teacher) -> str | None:
    """Return one line about how long a lesson is trained and why; None if its classifier is computed directly."""
    chosen = {**(user_settings(teacher.model) if teacher.model else {}), **teacher.options.settings}
    if not specialists.find(_settings(teacher).specialist.name).optimizes:
        return None
    if "specialist.epochs" in chosen:
        epochs = chosen["specialist.epochs"]
        return f"training for {epochs} epoch{'s' * (epochs != 1)}, as you chose"
    measure = "the accuracy on held-out images" if teacher.options.test else "the training loss"
    return f"training until {measure} stops improving, at most {teacher.minutes:g} min for each lesson"


def _settings(teacher: Teacher) -> Settings:
    """Return the model's settings, or those of a new model that do not depend on its lessons."""
    if teacher.model is not None:
        return teacher.model.learner.settings
    options, size = teacher.options, LessonSize(0, 0, teacher.buffer, teacher.image_size)
    return settings_for(options.method_or_default, None, size.buffer, fixed_settings(options, size))
