"""How a pass over samples is cut into batches: what plans an epoch and what foretells its length count alike."""

from __future__ import annotations

import numpy as np

LEAST = 4  # samples of a last batch: over fewer, batch norm goes astray, and nothing in the pass comes after to mend it


def num_batches(samples: int, batch: int) -> int:
    """How many batches a pass has: what is left over is the last one or, if under `LEAST`, joins the one before."""
    whole, rest = divmod(samples, batch)
    return whole + 1 if rest >= LEAST or (rest and not whole) else whole


def batch_sizes(samples: int, batch: int) -> np.ndarray:
    """The sizes of a pass's batches, in order: int64 `[steps]`."""
    sizes = np.full(num_batches(samples, batch), batch)
    sizes[-1:] += samples - sizes.sum()
    return sizes


def num_samples(samples: int, batch: int, steps: int) -> int:
    """How many samples the first `steps` batches of a pass take."""
    return samples if steps >= num_batches(samples, batch) else steps * batch
