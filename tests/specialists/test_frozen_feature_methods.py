"""Nearest class mean, ridge regression, random projection and tangent ridge against scikit-learn and SciPy."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import itl
from itl.learner.inference import compute_outputs
from itl.settings import SpecialistSettings
from itl.specialists.ridge import DEFAULT_RIDGE, RIDGES, SHRINKAGE, Ridge, RidgeOptions

CLASSES = 4
OPTIONS = {"ranpac": {"specialist.options.width": 50}, "tangent-ridge": {"specialist.options.directions": 2}}


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), 15)
    images = rng.integers(0, 256, (len(labels), 8, 8, 3))
    for label in range(CLASSES):
        images[labels == label, label * 2 : label * 2 + 2] //= 3
    return images.astype(np.uint8), labels


def learned(method: str, order: tuple[tuple[int, ...], ...], **settings: object) -> itl.Learner:
    images, labels = data()
    learner = itl.Learner(
        method, classes=CLASSES, settings={"net.name": "resnet8", "net.width": 4, **settings}, device="cpu"
    )
    for classes in order:
        chosen = np.isin(labels, classes)
        task = itl.learner.inputs.task_from_arrays(
            images[chosen],
            labels[chosen],
            0,
            itl.streams.Traits((0.5,) * 3, (0.25,) * 3, flip=False, padding=0, policy=None, tasks=0),
        )
        learner.learn(task)
    return learner


def features(learner: itl.Learner) -> np.ndarray:
    images, _ = data()
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    learner.net.eval()
    with torch.no_grad():
        phi = learner.net.features(learner.normalize(pixels)).float()
        if learner.method == "ranpac":
            phi = learner.specialist.expand(phi)
        if learner.method == "tangent-ridge":
            return np.concatenate([phi.double().numpy(), *derivatives(learner, learner.normalize(pixels))], 1)
    return phi.double().numpy()


def derivatives(learner: itl.Learner, x: torch.Tensor, step: float = 1e-6) -> list[np.ndarray]:
    """Central differences of the features along the directions, in double precision."""
    directions, ends = learner.specialist.directions, {}
    for k in range(OPTIONS["tangent-ridge"]["specialist.options.directions"]):
        for sign in (-1, 1):
            net = copy.deepcopy(learner.net).double()
            for name, direction in directions.items():
                net.get_parameter(name).add_(sign * step * direction[k].double())
            ends[k, sign] = net.features(x.double()).numpy()
    return [(ends[k, 1] - ends[k, -1]) / (2 * step) for k, sign in ends if sign == 1]


def test_nearest_class_mean_is_that_of_scikit_learn():
    from sklearn.neighbors import NearestCentroid

    learner, (images, labels) = learned("ncm", ((0, 1), (2, 3))), data()
    expected = NearestCentroid().fit(features(learner), labels).predict(features(learner))
    assert (learner.predict(images) == expected).all()


@pytest.mark.parametrize("method", ["ridge", "ranpac", "tangent-ridge"])
def test_regression_on_all_tasks_is_that_of_scikit_learn(method):
    from sklearn.linear_model import Ridge

    options = {"specialist.options.ridge": 0.6, **OPTIONS.get(method, {})}
    learner, (_, labels) = learned(method, ((0, 1), (2, 3)), **options), data()
    phi = features(learner)
    centered = phi - phi.mean(0)
    alpha = 0.6 * np.square(centered).mean()
    expected = Ridge(alpha=alpha).fit(phi, np.eye(CLASSES)[labels])
    weight = learner.specialist.weight.double().numpy()
    scale = (weight * expected.coef_).sum() / np.square(expected.coef_).sum()
    np.testing.assert_allclose(weight, scale * expected.coef_, rtol=1e-3, atol=1e-4 * np.abs(weight).max())
    np.testing.assert_allclose(learner.specialist.bias, scale * expected.intercept_, rtol=1e-3, atol=1e-3)


def sums_of(features: np.ndarray, labels: np.ndarray) -> Ridge:
    """A method that has learned these features."""
    method = Ridge(SpecialistSettings())
    method.accumulate(torch.from_numpy(features), torch.from_numpy(np.eye(CLASSES)[labels]))
    return method


@pytest.mark.parametrize(("noise", "penalized"), [(0.3, False), (30.0, True)])
def test_regularization_is_that_of_generalized_cross_validation(noise, penalized):
    """The criterion is computed from the hat matrix, whose intercept is not regularized."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, 400)
    phi = rng.normal(size=(400, 40)) * np.geomspace(1, 0.01, 40)
    phi[:, :CLASSES] += np.eye(CLASSES)[labels] * 3
    phi += noise * rng.normal(size=phi.shape)
    x, y = phi - phi.mean(0), np.eye(CLASSES)[labels]
    criteria = []
    for ridge in RIDGES:
        hat = x @ np.linalg.solve(x.T @ x + ridge * np.square(x).mean() * np.eye(40), x.T) + 1 / 400
        criteria.append(np.square(y - hat @ y).sum() / 400 / (1 - np.trace(hat) / 400) ** 2)
    best = RIDGES[int(np.argmin(criteria))]
    assert (best > 1000) == penalized
    expected = sums_of(phi, labels)
    expected.options = RidgeOptions(ridge=best)
    chosen, given = sums_of(phi, labels).solve(), expected.solve()
    torch.testing.assert_close(chosen, given)


def test_regularization_is_the_default_with_fewer_images_than_features():
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(30, 40)), rng.integers(0, CLASSES, 30)
    expected = sums_of(features, labels)
    expected.options = RidgeOptions(ridge=DEFAULT_RIDGE)
    torch.testing.assert_close(sums_of(features, labels).solve(), expected.solve())


@pytest.mark.parametrize("method", ["ridge", "ranpac"])
def test_familiarity_is_the_relative_mahalanobis_distance(method):
    """SciPy's squared Mahalanobis distance to the nearest class mean, divided by the distance to the overall mean."""
    from scipy.spatial.distance import cdist

    options = OPTIONS.get(method, {})
    learner, (images, labels) = learned(method, ((0, 1), (2, 3)), **options), data()
    phi = features(learner)
    means = np.stack([phi[labels == label].mean(0) for label in range(CLASSES)])
    residuals = phi - means[labels]
    covariance = residuals.T @ residuals / len(residuals)
    covariance += SHRINKAGE * np.diag(covariance).mean() * np.eye(len(covariance))
    nearest = (cdist(phi, means, "mahalanobis", VI=np.linalg.inv(covariance)) ** 2).min(1)
    from_mean = cdist(phi, phi.mean(0)[None], "sqeuclidean")[:, 0]
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    _, familiarity = compute_outputs(learner, itl.streams.Images(pixels, torch.from_numpy(labels)))
    np.testing.assert_allclose(familiarity, -nearest / from_mean, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", ["ncm", "ridge", "ranpac", "tangent-ridge"])
def test_order_of_the_tasks_does_not_matter_and_no_image_is_kept(method):
    images, _ = data()
    options = OPTIONS.get(method, {})
    one, other = (learned(method, order, **options) for order in (((0, 1), (2, 3)), ((3,), (1, 2), (0,))))
    assert len(one.memory) == 0
    assert (one.predict(images) == other.predict(images)).all()


@pytest.mark.parametrize("method", ["ncm", "ranpac", "tangent-ridge"])
def test_saved_learner_continues_exactly(method, tmp_path):
    images, labels = data()
    whole = learned(method, ((0, 1), (2, 3)))
    part = learned(method, ((0, 1),))
    part.save(tmp_path / "model")
    loaded = itl.load(tmp_path / "model", device="cpu")
    chosen = labels >= 2
    loaded.learn(images[chosen], labels[chosen])
    np.testing.assert_array_equal(loaded.predict_proba(images), whole.predict_proba(images))


def test_state_has_half_of_the_gram_matrix_and_states_with_all_of_it_are_read():
    learner = learned("ridge", ((0, 1), (2, 3)))
    own, gram = learner.specialist.state_dict(), learner.specialist.sums["gram"]
    assert own["sum.gram_upper"].numel() == len(gram) * (len(gram) + 1) // 2
    assert "sum.gram" not in own
    former = {name: tensor for name, tensor in own.items() if name != "sum.gram_upper"} | {"sum.gram": gram}
    for state in (own, former):
        other = learned("ridge", ((0, 1),)).specialist
        other.load_state_dict(state, learner.net)
        assert torch.equal(other.sums["gram"], gram)


@pytest.mark.parametrize("method", ["ncm", "ridge"])
def test_class_can_be_forgotten_and_learned_again(method, tmp_path):
    from itl.apps.model.edit import forget

    images, labels = data()
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    network = {"net.name": "resnet8", "net.width": 4}
    model = itl.Model.create(tmp_path / "model", size=8, method=method, settings=network, device="cpu")
    model.teach(pixels, [f"class {label}" for label in labels])
    model.finish({})
    before = model.predict_proba(pixels)
    forget(model, classes=["class 1"])
    expected = before[:, [0, 2, 3]] / before[:, [0, 2, 3]].sum(1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(pixels), expected, atol=1e-5)
    model = itl.Model.open(tmp_path / "model", device="cpu")
    model.teach(pixels[labels == 1], ["class 1"] * 15)
    assert set(model.predict(pixels)) == {f"class {label}" for label in range(CLASSES)}


@pytest.mark.parametrize("method", ["ridge", "ranpac"])
def test_held_out_scores_are_those_of_a_regression_without_the_sample(method):
    learner, (_, labels) = learned(method, (tuple(range(CLASSES)),), **OPTIONS.get(method, {})), data()
    phi, y = features(learner), np.eye(CLASSES)[labels]
    ridge = fitted(phi, labels)  # on features that are expanded already
    found = ridge.held_out_scores(torch.from_numpy(phi).float(), torch.from_numpy(labels)).numpy()
    z, penalty = phi - phi.mean(0), DEFAULT_RIDGE * phi.var(0).mean()
    for row in (0, 17, 59):
        others = np.arange(len(labels)) != row
        gram = z[others].T @ z[others] + penalty * np.eye(z.shape[1])
        weight = np.linalg.solve(gram, z[others].T @ (y - y.mean(0))[others])
        np.testing.assert_allclose(found[row], y.mean(0) + z[row] @ weight, atol=1e-5)


def test_probabilities_of_few_images_are_about_right_without_calibration():
    rng, per_class = np.random.default_rng(0), 8
    means, labels = rng.normal(size=(5, 400)), np.repeat(np.arange(5), per_class + 200)
    phi, truth = means[labels] + 5.0 * rng.normal(size=(len(labels), 400)), torch.from_numpy(labels)
    rows = np.arange(len(labels)) % (per_class + 200) < per_class
    ridge = fitted(phi[rows], labels[rows])
    x = torch.from_numpy(phi).float()
    scale = ridge._best_scale(x[rows], truth[rows])
    probabilities = (scale * ridge._scores(x[~rows])).softmax(1)
    accuracy = (probabilities.argmax(1) == truth[~rows]).float().mean()
    assert abs(probabilities.max(1).values.mean() - accuracy) < 0.08  # 0.15 if the scale suits the images learned


def fitted(features: np.ndarray, labels: np.ndarray) -> Ridge:
    """A ridge regression that was solved, with unscaled logits."""
    ridge = Ridge(SpecialistSettings(name="ridge", options={"ridge": DEFAULT_RIDGE}))
    ridge.accumulate(torch.from_numpy(features).float(), torch.eye(labels.max() + 1)[labels])
    weight, bias = ridge.solve()
    ridge.weight, ridge.bias = weight.float(), bias.float()
    return ridge
