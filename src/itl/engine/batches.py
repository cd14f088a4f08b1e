"""Split a pass over samples into batches; epoch planning and time estimates share these rules."""

from __future__ import annotations

import numpy as np

MIN_LAST_BATCH = 4  # batch-norm statistics over fewer samples are unreliable, and no later batch corrects them


def num_batches(samples: int, batch: int) -> int:
    """Number of batches in a pass. A remainder smaller than `MIN_LAST_BATCH` joins the batch before it."""
    full, rest = divmod(samples, batch)
    return full + 1 if rest >= MIN_LAST_BATCH or (rest and not full) else full


def batch_sizes(samples: int, batch: int) -> np.ndarray:
    """Sizes of the batches in a pass, in order: int64 `[steps]`."""
    sizes = np.full(num_batches(samples, batch), batch)
    sizes[-1:] += samples - sizes.sum()
    return sizes


def num_samples(samples: int, batch: int, steps: int) -> int:
    """Number of samples in the first `steps` batches of a pass."""
    return samples if steps >= num_batches(samples, batch) else steps * batch
