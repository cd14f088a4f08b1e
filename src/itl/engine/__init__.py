"""Training engine: planned rounds, eager or captured steps, precision, keyed randomness. It knows nothing of tasks."""
