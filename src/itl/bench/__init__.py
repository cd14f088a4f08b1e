"""Speed measured as ratios within one run on one machine: engine, baseline loop, memory sizes, concurrent runs."""

from itl.bench.measurements import measure
from itl.bench.workload import Workload

__all__ = ["Workload", "measure"]
