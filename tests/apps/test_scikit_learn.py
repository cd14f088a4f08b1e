"""The scikit-learn classifier passes scikit-learn's estimator checks and learns task by task like a Learner."""

from __future__ import annotations

import pickle
import unittest
from typing import Any

import numpy as np
import pytest

from itl import Learner
from support.tiny import TINY, tiny_images

QUICK = {
    "net.width": 8,
    "specialist.momentum": 0.9,
    "specialist.lr": 0.05,
    "tangent.steps": 20,
    "projection.steps": 20,
    "projection.lr": 0.01,
}

# scikit-learn's checks that are expected to fail, with the reason: none.
EXPECTED_FAILURES: dict[str, str] = {}
CHECK_SHARES = 4


def classifier(*args: Any, **options: Any) -> Any:
    """An `ITLClassifier`. scikit-learn takes seconds to import, so no test imports it when it is collected."""
    from itl.apps.scikit_learn import ITLClassifier

    return ITLClassifier(*args, **options)


@pytest.mark.slow
@pytest.mark.parametrize("share", range(CHECK_SHARES))
def test_estimator_checks_pass(share: int) -> None:
    """The shares can run in different processes."""
    from sklearn.utils.estimator_checks import estimator_checks_generator

    estimator = classifier(epochs=4, buffer=60, settings=QUICK)
    checks = list(estimator_checks_generator(estimator, expected_failed_checks=EXPECTED_FAILURES))
    assert len(checks) > 40
    for copy, check in checks[share::CHECK_SHARES]:
        try:
            check(copy)
        except unittest.SkipTest as skipped:
            if "SCIPY_ARRAY_API" not in str(skipped):
                raise
        except BaseException as error:
            error.add_note(f"in {check}")
            raise


def digits() -> tuple[np.ndarray, ...]:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    X, y = load_digits(return_X_y=True)
    return tuple(train_test_split(X, y, test_size=0.8, random_state=0, stratify=y))


def test_partial_fit_learns_digits_class_by_class() -> None:
    X, X_test, y, y_test = digits()
    short = {"net.width": 8, "tangent.steps": 40, "projection.steps": 40}
    model = classifier(epochs=8, image_shape=(8, 8), buffer=100, settings=short)
    for group in ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9)):
        rows = np.isin(y, group)
        model.partial_fit(X[rows], y[rows])
    assert model.classes_.tolist() == list(range(10))
    assert model.n_tasks_ == 2
    assert model.score(X_test, y_test) > 0.7
    old = np.isin(y_test, (0, 1, 2, 3, 4))
    assert model.score(X_test[old], y_test[old]) > 0.5  # the first task is not forgotten


def test_probabilities_equal_those_of_a_learner() -> None:
    images, labels = tiny_images(channels=3)
    pixels = images.transpose(0, 2, 3, 1)
    names = np.array(["fox", "cat", "eel", "dog"])
    first = labels < 2
    model = classifier(buffer=8, settings=TINY, random_state=5)
    model.partial_fit(pixels[first], names[labels[first]]).partial_fit(pixels[~first], names[labels[~first]])
    learner = Learner("itl", 8, 5, settings={"memory.outgrown": "grow", **TINY}, device="cpu")
    order = [names.tolist().index(name) for name in ("cat", "fox", "dog", "eel")]  # sorted within a task
    place = np.argsort(order)
    learner.learn(images[first], place[labels[first]])
    learner.learn(images[~first], place[labels[~first]])
    assert model.classes_.tolist() == ["cat", "dog", "eel", "fox"]
    expected = learner.predict_proba(images)[:, [0, 2, 3, 1]]
    np.testing.assert_allclose(model.predict_proba(pixels), expected, atol=1e-6)


def test_announced_class_has_probability_zero() -> None:
    images, labels = tiny_images()
    X = images.reshape(len(images), -1)
    model = classifier(settings=TINY, buffer=8, image_shape=(8, 8))
    model.partial_fit(X[labels < 2], labels[labels < 2], classes=[0, 1, 2, 3])
    assert model.predict_proba(X).shape == (40, 4)
    assert (model.predict_proba(X)[:, 2:] == 0).all()
    with pytest.raises(ValueError, match="not in classes"):
        model.partial_fit(X, labels, classes=[0, 1])


def test_unpickled_classifier_continues_like_the_original() -> None:
    images, labels = tiny_images()
    images, first = images[:, 0], labels < 2
    model = classifier(settings=TINY, buffer=8).partial_fit(images[first], labels[first])
    again = pickle.loads(pickle.dumps(model))
    assert len(pickle.dumps(model)) < 400_000
    for trained in (model, again):
        trained.partial_fit(images[~first], labels[~first])
    assert (again.predict_proba(images) == model.predict_proba(images)).all()


def test_classifier_works_in_pipelines_and_cross_validation() -> None:
    from sklearn.base import clone
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, _, y, _ = digits()
    few = y < 3
    pipeline = make_pipeline(StandardScaler(), classifier(epochs=15, settings=QUICK))
    assert cross_val_score(pipeline, X[few], y[few], cv=2, error_score="raise").mean() > 0.9
    assert clone(pipeline).get_params()["itlclassifier__epochs"] == 15


def test_wrong_image_shape_and_method_are_refused() -> None:
    X, _, y, _ = digits()
    with pytest.raises(ValueError, match="64 features, which do not fit image_shape"):
        classifier(image_shape=(8, 9)).fit(X, y)
    with pytest.raises(ValueError, match="Unknown method"):
        classifier("itll").fit(X, y)
