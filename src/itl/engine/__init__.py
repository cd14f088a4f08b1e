"""Plan an epoch, run a step fast (eager or captured), precision, saved state. Takes callables, knows no task."""
