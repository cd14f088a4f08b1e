"""Features of a frozen trunk, computed once per image and cached.

With a frozen trunk, the images in a learner's pool, memory and training steps are *references* to cached features. A
reference is a uint8 tensor of shape `REFERENCE_SHAPE`, so everything that draws, stores and replays images works on
references as it does on pixels. `FeatureExtractor` takes the place of `Normalize`: it turns references, or pixels, into
the inputs of the network's head.
"""

from itl.features.extractor import FeatureExtractor, MirrorAugment
from itl.features.feature_references import REFERENCE_SHAPE

__all__ = ["REFERENCE_SHAPE", "FeatureExtractor", "MirrorAugment"]
