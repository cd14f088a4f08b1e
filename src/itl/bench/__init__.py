"""How fast it is, as ratios within one run on the machine it is on: our engine, the usual loop, memory size, lanes."""

from itl.bench.measure import measure
from itl.bench.workload import Scale

__all__ = ["Scale", "measure"]
