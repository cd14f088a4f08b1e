"""Epoch planning with replay, and the training stage that the engine runs."""
