"""Per-sample gradients and virtual updates."""

from itl.gradients.grad_sample import PerSampleGradients, gradient_gram, per_sample_gradients
from itl.gradients.virtual_update import gradient_step, logits_at, loss_and_gradient, virtual_step

__all__ = [
    "PerSampleGradients",
    "gradient_gram",
    "gradient_step",
    "logits_at",
    "loss_and_gradient",
    "per_sample_gradients",
    "virtual_step",
]
