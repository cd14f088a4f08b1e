"""A scikit-learn classifier that is taught one batch of classes after another: `partial_fit` is a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin  # type: ignore[import-untyped]
from sklearn.utils.multiclass import check_classification_targets  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted, check_random_state  # type: ignore[import-untyped]
from torch import Tensor

from itl.checkpoint.learner_state import LearnerState
from itl.errors import UserError
from itl.learner import Learner, learner_from_state
from itl.streams import Images, Task, Traits
from itl.streams.arrays import statistics

Array = npt.NDArray[Any]


class ITLClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Integral Tangent Learning (or any method of itl) with scikit-learn's interface.

    Every `partial_fit(X, y)` is a task; it may bring new classes, known ones, or both. `fit` forgets everything first.
    X is `[n, features]`, or uint8 images `[n, h, w]` or `[n, h, w, c]`. Features are kept as 8 bits between the least
    and the largest value of each in the first batch; what lies outside is clipped. They have no neighbours unless
    `image_shape`, (h, w) or (h, w, c), says that they are the pixels of an image.

    `buffer` is how many samples are remembered, `epochs` how long a task is trained; `settings` are itl's own.
    """

    classes_: Array
    outputs_: list[Any]  # the classes in the order of the network's outputs

    def __init__(
        self,
        method: str = "itl",
        *,
        buffer: int = 200,
        epochs: int = 20,
        image_shape: Sequence[int] | None = None,
        settings: Mapping[str, Any] | None = None,
        random_state: Any = 0,
        device: str = "cpu",
    ) -> None:
        self.method = method
        self.buffer = buffer
        self.epochs = epochs
        self.image_shape = image_shape
        self.settings = settings
        self.random_state = random_state
        self.device = device

    # ------------------------------------------------------------------ learning

    def fit(self, X: Any, y: Any) -> ITLClassifier:
        """Learn one task, having learned nothing before."""
        for name in [name for name in vars(self) if name.endswith("_") and not name.startswith("_")]:
            delattr(self, name)
        return self.partial_fit(X, y)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> ITLClassifier:
        """Learn one more task. `classes` may name all that will come, as elsewhere, but need not."""
        first = not hasattr(self, "learner_")
        X, y = self._validated(X, y, reset=first)
        check_classification_targets(y)
        known: Array = np.array([], y.dtype) if first else self.classes_
        more = np.unique(y) if classes is None else np.union1d(np.unique(y), classes)
        if classes is not None and not np.isin(np.unique(y), classes).all():
            raise ValueError(f"y holds classes that are not in classes={classes}")
        try:
            if first:
                self._begin(X)
            outputs = [*self.outputs_, *(c for c in np.unique(y).tolist() if c not in self.outputs_)]
            place = {c: k for k, c in enumerate(outputs)}
            self.learner_.learn(self._task(self._pixels(X), torch.tensor([place[c] for c in y.tolist()])))
        except UserError as error:
            raise ValueError(str(error)) from error
        self.outputs_, self.classes_ = outputs, np.union1d(known, more)
        self.n_tasks_ = len(self.learner_.tasks)
        return self

    def _begin(self, X: Array) -> None:
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31 - 1)
        small = {"net.name": "resnet8", "net.width": 16, "memory.outgrown": "grow", "specialist.lr": 0.03}
        long = {f"{part}.epochs": self.epochs for part in ("specialist", "tangent", "projection")}
        own = {**small, **long, **(self.settings or {})}
        self.learner_ = Learner(self.method, self.buffer, int(seed), settings=own, device=self.device)
        self.outputs_ = []
        if X.dtype != np.uint8:
            self.least_, self.range_ = X.min(0), np.ptp(X, 0)

    def _task(self, pixels: Tensor, labels: Tensor) -> Task:
        """Images `[n, c, h, w]` and output columns `[n]` as the learner's next task."""
        data, learner = Images(pixels, labels), self.learner_
        if learner.is_built:
            traits = learner.traits
        else:
            padding = min(4, pixels.shape[-1] // 8)
            traits = Traits(*statistics(data, None, None), flip=False, padding=padding, policy=None, tasks=0)
        classes = tuple(sorted(set(labels.tolist())))
        return Task(len(learner.tasks), classes, data, data.take(torch.arange(0)), "", traits)

    # ------------------------------------------------------------------ using it

    def predict_proba(self, X: Any) -> Array:
        """The probability of each of `classes_`: `[n, classes]`; of one that has not come yet, 0."""
        check_is_fitted(self)
        X = self._validated(X, reset=False)
        pixels = self._pixels(X)
        said = self.learner_.logits(Images(pixels, torch.zeros(len(pixels), dtype=torch.int64))).double().softmax(1)
        out = np.zeros((len(X), len(self.classes_)))
        out[:, np.searchsorted(self.classes_, np.array(self.outputs_, self.classes_.dtype))] = said.numpy()
        return out

    def predict(self, X: Any) -> Array:
        """The likeliest class of each sample: `[n]`."""
        chosen = self.predict_proba(X).argmax(1)  # first: it says what is wrong with an estimator that is not fitted
        return np.asarray(self.classes_[chosen])

    # ------------------------------------------------------------------ data

    def _validated(self, X: Any, *y: Any, reset: bool) -> Any:
        """X (and y) as scikit-learn checks them; its name for the check has changed over the versions."""
        options: dict[str, Any] = {"reset": reset, "allow_nd": True, "dtype": [np.float64, np.float32, np.uint8]}
        given = (X, *y)
        try:
            from sklearn.utils.validation import validate_data
        except ImportError:
            return self._validate_data(*given, **options)
        return validate_data(self, *given, **options)

    def _flat(self, X: Array) -> bool:
        """Whether the features have no neighbours."""
        return X.ndim == 2 and self.image_shape is None

    def _pixels(self, X: Array) -> Tensor:
        """Samples as uint8 images `[n, c, h, w]`; features without neighbours are the channels of a single pixel."""
        if X.dtype != np.uint8:
            if not hasattr(self, "least_"):
                raise ValueError("X was uint8 when this was first fitted; it must be so again")
            share = (X - self.least_) / np.where(self.range_ > 0, self.range_, 1)
            X = np.rint(np.clip(share, 0, 1) * 255).astype(np.uint8)
        if self._flat(X):
            return torch.from_numpy(np.array(X[:, :, None, None]))
        if X.ndim == 2:
            shape = (len(X), *(self.image_shape or ()))
            if X.size != np.prod(shape):
                raise ValueError(f"X has {X.shape[1]} features, which image_shape={self.image_shape} has not")
            X = X.reshape(shape)
        if X.ndim not in (3, 4):
            raise ValueError(f"X must be [n, features], [n, h, w] or [n, h, w, c], not {list(X.shape)}")
        return torch.from_numpy(np.array(X[:, None] if X.ndim == 3 else X.transpose(0, 3, 1, 2), order="C"))

    # ------------------------------------------------------------------ copying

    def __getstate__(self) -> dict[str, Any]:
        """The learner as arrays: what it holds on to while it learns is not carried along."""
        state = dict(super().__getstate__())
        if "learner_" in state:
            saved = state["learner_"].get_state()
            arrays = {name: t.detach().cpu().numpy().copy() for name, t in saved.tensors.items()}
            state["learner_"] = (arrays, saved.metadata)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The learner again."""
        state = dict(state)
        if isinstance(state.get("learner_"), tuple):
            arrays, facts = state["learner_"]
            tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
            state["learner_"] = learner_from_state(LearnerState(tensors, facts), "a pickle", device=state["device"])
        super().__setstate__(state)
