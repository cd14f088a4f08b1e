"""A scikit-learn classifier for continual learning: every `partial_fit` is a task."""

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
from itl.learner.inputs import next_task
from itl.streams import Images

Array = npt.NDArray[Any]
RENAMED_STATE = {"least_": "data_min_", "range_": "data_range_"}  # in pickles of earlier versions


class ITLClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A continual-learning classifier with scikit-learn's interface.

    Every `partial_fit(X, y)` learns one task, with new classes, known classes or both; `fit` starts from scratch.
    `X` is `[n, features]`, or uint8 images `[n, h, w]` or `[n, h, w, c]`. Features are stored as 8-bit values between
    each feature's minimum and maximum in the first task; values outside that range are clipped.

    Args:
        method: The method, as for `Learner`.
        buffer: Number of samples in memory.
        epochs: Number of training epochs of every stage of a task.
        image_shape: `(h, w)` or `(h, w, c)` if the features of a 2-D `X` are the pixels of images; otherwise features
            have no neighbors.
        backbone: Name of a backbone, as for `Learner`; `X` must then be images. Default: a small network.
        settings: Further settings by dotted name, as for `Learner`.
        random_state: Seed, NumPy random state, or None for a random seed.
        device: `auto`, `cpu` or `cuda`.

    Attributes:
        classes_: The class labels, sorted.
        outputs_: The class labels in the order of the network's outputs.
        n_tasks_: Number of tasks learned.
        learner_: The `Learner`.
    """

    classes_: Array
    outputs_: list[Any]

    def __init__(
        self,
        method: str = "itl",
        *,
        buffer: int = 200,
        epochs: int = 20,
        image_shape: Sequence[int] | None = None,
        backbone: str | None = None,
        settings: Mapping[str, Any] | None = None,
        random_state: int | np.random.RandomState | None = 0,
        device: str = "cpu",
    ) -> None:
        self.method = method
        self.buffer = buffer
        self.epochs = epochs
        self.image_shape = image_shape
        self.backbone = backbone
        self.settings = settings
        self.random_state = random_state
        self.device = device

    # ------------------------------------------------------------------ learning

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> ITLClassifier:
        """Learn one task from scratch.

        Args:
            X: Samples, `[n, features]`, `[n, h, w]` or `[n, h, w, c]`.
            y: Class labels, `[n]`.

        Returns:
            The classifier itself.

        Raises:
            ValueError: If the data or a parameter are invalid.
        """
        for name in [name for name in vars(self) if name.endswith("_") and not name.startswith("_")]:
            delattr(self, name)
        return self.partial_fit(X, y)

    def partial_fit(self, X: npt.ArrayLike, y: npt.ArrayLike, classes: npt.ArrayLike | None = None) -> ITLClassifier:
        """Learn one more task.

        Args:
            X: Samples, of the same form as in the first task.
            y: Class labels, `[n]`; new labels are new classes.
            classes: Optionally, all classes that may occur now or later.

        Returns:
            The classifier itself.

        Raises:
            ValueError: If the data or a parameter are invalid.
        """
        first = not hasattr(self, "learner_")
        samples, targets = self._validated(X, y, reset=first)
        check_classification_targets(targets)
        known: Array = np.array([], targets.dtype) if first else self.classes_
        labels = np.unique(targets)
        announced = labels if classes is None else np.union1d(labels, classes)
        if classes is not None and not np.isin(labels, classes).all():
            raise ValueError(f"y contains labels that are not in classes={classes}")
        try:
            if first:
                self._create_learner(samples)
            outputs = [*self.outputs_, *(c for c in labels.tolist() if c not in self.outputs_)]
            output_of = {c: k for k, c in enumerate(outputs)}
            images = Images(self._pixels(samples), torch.tensor([output_of[c] for c in targets.tolist()]))
            self.learner_.learn(next_task(self.learner_, images, flip=False, policy=None))
        except UserError as error:
            raise ValueError(str(error)) from error
        self.outputs_, self.classes_ = outputs, np.union1d(known, announced)
        self.n_tasks_ = len(self.learner_.tasks)
        return self

    def _create_learner(self, X: Array) -> None:
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31 - 1)
        network: dict[str, Any] = {"memory.outgrown": "grow"}
        if self.backbone is None:
            network |= {"net.name": "resnet8", "net.width": 16, "specialist.lr": 0.03}
        epochs = {f"{stage}.epochs": self.epochs for stage in ("specialist", "tangent", "projection")}
        settings = {**network, **epochs, **(self.settings or {})}
        arguments = (self.method, self.buffer, int(seed))
        self.learner_ = Learner(*arguments, settings=settings, device=self.device, backbone=self.backbone)
        self.outputs_ = []
        if X.dtype != np.uint8:
            self.data_min_, self.data_range_ = X.min(0), np.ptp(X, 0)

    # ------------------------------------------------------------------ prediction

    def predict_proba(self, X: npt.ArrayLike) -> Array:
        """Return the probability of each class.

        Args:
            X: Samples, of the same form as in the first task.

        Returns:
            Probabilities, `[n, classes]`, in the order of `classes_`; 0 for announced classes that were not learned.
        """
        check_is_fitted(self)
        pixels = self._pixels(self._validated(X, reset=False))
        learned = self.learner_.logits(Images(pixels, torch.zeros(len(pixels), dtype=torch.int64))).double().softmax(1)
        probabilities = np.zeros((len(pixels), len(self.classes_)))
        columns = np.searchsorted(self.classes_, np.array(self.outputs_, self.classes_.dtype))
        probabilities[:, columns] = learned.numpy()
        return probabilities

    def predict(self, X: npt.ArrayLike) -> Array:
        """Return the most probable class label of each sample.

        Args:
            X: Samples, of the same form as in the first task.

        Returns:
            Class labels, `[n]`.
        """
        columns = self.predict_proba(X).argmax(1)  # raises NotFittedError before `classes_` is accessed
        return np.asarray(self.classes_[columns])

    # ------------------------------------------------------------------ data

    def _validated(self, X: Any, *y: Any, reset: bool) -> Any:
        """Return `X`, or `X` and `y`, validated by scikit-learn, whose function for this depends on the version."""
        options: dict[str, Any] = {"reset": reset, "allow_nd": True, "dtype": [np.float64, np.float32, np.uint8]}
        data = (X, *y)
        try:
            from sklearn.utils.validation import validate_data
        except ImportError:
            return self._validate_data(*data, **options)
        return validate_data(self, *data, **options)

    def _is_tabular(self, X: Array) -> bool:
        """Return whether the features are not pixels."""
        return X.ndim == 2 and self.image_shape is None

    def _pixels(self, X: Array) -> Tensor:
        """Return samples as uint8 images `[n, c, h, w]`; tabular features become the channels of a single pixel."""
        if X.dtype != np.uint8:
            if not hasattr(self, "data_min_"):
                raise ValueError("X was uint8 in the first task; it must be uint8 again")
            scaled = (X - self.data_min_) / np.where(self.data_range_ > 0, self.data_range_, 1)
            X = np.rint(np.clip(scaled, 0, 1) * 255).astype(np.uint8)
        if self._is_tabular(X):
            return torch.from_numpy(np.array(X[:, :, None, None]))
        if X.ndim == 2:
            shape = (len(X), *(self.image_shape or ()))
            if X.size != np.prod(shape):
                raise ValueError(f"X has {X.shape[1]} features, which do not fit image_shape={self.image_shape}")
            X = X.reshape(shape)
        if X.ndim not in (3, 4):
            raise ValueError(f"X must be [n, features], [n, h, w] or [n, h, w, c], not {list(X.shape)}")
        return torch.from_numpy(np.array(X[:, None] if X.ndim == 3 else X.transpose(0, 3, 1, 2), order="C"))

    # ------------------------------------------------------------------ pickling and copying

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with the learner as arrays, without what it holds only while learning."""
        state = dict(super().__getstate__())
        if "learner_" in state:
            saved = state["learner_"].get_state()
            arrays = {name: t.detach().cpu().numpy().copy() for name, t in saved.tensors.items()}
            state["learner_"] = (arrays, saved.metadata)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the learner from arrays."""
        state = {RENAMED_STATE.get(name, name): value for name, value in state.items()}
        if isinstance(state.get("learner_"), tuple):
            arrays, facts = state["learner_"]
            tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
            state["learner_"] = learner_from_state(LearnerState(tensors, facts), "a pickle", device=state["device"])
        super().__setstate__(state)
