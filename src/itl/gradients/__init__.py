"""Per-sample gradients and virtual updates."""
