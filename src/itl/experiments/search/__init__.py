"""Search and sweeps: many runs, on one machine or on a Ray cluster. Needs the extra `search`."""
