"""Augmented images match their draws, for any chunk size, and draws have the policy's frequencies."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from itl.augment import Augment, Draws, policies
from itl.augment import draws as draws_module
from itl.augment.policy import OPERATION_NAMES, POLICIES, SIGNED
from itl.errors import UserError
from support.pillow_reference import photo_crops, pillow_views, sample_images

ALL = [Augment(), Augment(policy="cifar10"), Augment(policy="imagenet", padding=0, fill=128)]


def crop_and_flip_draws(shift: list[tuple[int, int]], flip: list[bool]) -> Draws:
    none = torch.zeros(len(flip), 0, dtype=torch.int64)
    return Draws(torch.tensor(shift), torch.tensor(flip), none, none)


@pytest.mark.parametrize(("height", "width", "padding"), [(8, 11, 3), (11, 8, 4), (9, 9, 1)])
def test_crop_and_flip_equal_slices_of_the_padded_image(height: int, width: int, padding: int) -> None:
    places = list(itertools.product(range(2 * padding + 1), range(2 * padding + 1), (False, True)))
    for channels in (1, 3, 4):
        images = torch.randint(1, 256, (len(places), channels, height, width), dtype=torch.uint8)
        padded = torch.nn.functional.pad(images, (padding,) * 4)
        expected = []
        for image, (top, left, flip) in zip(padded, places, strict=True):
            crop = image[:, top : top + height, left : left + width]
            expected.append(crop.flip(-1) if flip else crop)
        draws = crop_and_flip_draws([(top, left) for top, left, _ in places], [flip for _, _, flip in places])
        assert torch.equal(Augment(padding=padding)(images, draws), torch.stack(expected))


@pytest.mark.parametrize("policy", policies())
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 19, 33)], ids=str)
def test_complete_view_equals_pillow_for_the_same_draw(policy: str, shape: tuple[int, int, int]) -> None:
    images = torch.cat([photo_crops(300, *shape), sample_images(*shape)])
    augment = Augment(policy=policy, fill=77)
    draws = augment.draw(np.random.default_rng(3), len(images))
    assert torch.equal(augment(images, draws), pillow_views(augment, images, draws))


@pytest.mark.parametrize("augment", ALL, ids=lambda a: str(a.policy))
def test_chunk_size_does_not_change_the_result(augment: Augment, monkeypatch: pytest.MonkeyPatch) -> None:
    images = photo_crops(100, 3, 16, 16)
    draws = augment.draw(np.random.default_rng(0), 100)
    whole = augment(images, draws)
    assert torch.equal(torch.cat([augment(images[i : i + 1], draws[i : i + 1]) for i in range(100)]), whole)
    for size in (7, 32):
        parts = [augment(images[i : i + size], draws[i : i + size]) for i in range(0, 100, size)]
        assert torch.equal(torch.cat(parts), whole)
    monkeypatch.setitem(draws_module.CROP_CHUNK, "cpu", 5000)
    monkeypatch.setitem(draws_module.POLICY_CHUNK, "cpu", 9000)
    assert torch.equal(augment(images, draws), whole)


def test_view_does_not_depend_on_other_samples() -> None:
    augment, images = Augment(policy="cifar10"), photo_crops(60, 3, 16, 16)
    draws, order = augment.draw(np.random.default_rng(1), 60), torch.randperm(60)
    mixed = Draws(draws.shift[order], draws.flip[order], draws.ops[order], draws.levels[order])
    assert torch.equal(augment(images[order], mixed), augment(images, draws)[order])


@pytest.mark.parametrize("augment", [*ALL, Augment(padding=0, flip=False)], ids=str)
def test_output_is_uint8_and_input_is_unchanged(augment: Augment) -> None:
    images = photo_crops(20, 3, 12, 16)
    before = images.clone()
    out = augment(images, augment.draw(np.random.default_rng(0), 20))
    assert (out.dtype, out.shape, out.device) == (images.dtype, images.shape, images.device)
    assert out.data_ptr() != images.data_ptr()
    assert torch.equal(images, before)
    assert augment(images[:0], augment.draw(np.random.default_rng(0), 0)).shape == (0, 3, 12, 16)


def test_strided_images_give_the_same_views() -> None:
    augment, images = Augment(policy="cifar10", padding=0, flip=False), photo_crops(20, 3, 12, 16)
    draws = augment.draw(np.random.default_rng(0), 20)
    channels_last = images.to(memory_format=torch.channels_last)
    assert torch.equal(augment(channels_last, draws), augment(images, draws))


def test_draws_depend_on_the_generator_and_can_be_sliced_and_joined() -> None:
    augment = Augment(policy="imagenet")
    one, two = (augment.draw(np.random.default_rng(5), 50) for _ in range(2))
    joined = Draws.cat([one[:13], one[13:14], one[14:]])
    assert len(one) == len(joined) == 50
    for name in ("shift", "flip", "ops", "levels"):
        assert torch.equal(getattr(one, name), getattr(two, name))
        assert torch.equal(getattr(one, name), getattr(joined, name))
        assert getattr(one, name).device.type == "cpu"


def within(count: float, n: int, p: float) -> bool:
    """Whether a binomial count is within five standard deviations of its mean."""
    return abs(count - n * p) <= 5 * np.sqrt(n * p * (1 - p)) + 1e-9


def test_crops_and_flips_are_uniform() -> None:
    n, augment = 80_000, Augment(padding=2)
    draws = augment.draw(np.random.default_rng(0), n)
    cells = np.bincount((draws.shift[:, 0] * 5 + draws.shift[:, 1]).numpy(), minlength=25)
    assert ((cells - n / 25) ** 2 / (n / 25)).sum() < 52.6  # chi-square, 24 degrees of freedom, p = 0.0006
    assert within(int(draws.flip.sum()), n, 0.5)


@pytest.mark.parametrize("policy", policies())
def test_draw_frequencies_match_the_policy(policy: str) -> None:
    n, table = 200_000, POLICIES[policy]
    draws = Augment(policy=policy).draw(np.random.default_rng(0), n)
    for slot in range(2):
        expected: dict[tuple[str, int], float] = {}
        for name, chance, level in (steps[slot] for steps in table):
            for sign in (1, -1) if name in SIGNED and level else (1,):
                key = (name, sign * level)
                expected[key] = expected.get(key, 0) + chance / len(table) / (2 if name in SIGNED and level else 1)
        expected["Identity", 0] = 1 - sum(chance for _, chance, _ in (steps[slot] for steps in table)) / len(table)
        pairs = zip(draws.ops[:, slot].tolist(), draws.levels[:, slot].tolist(), strict=True)
        counts: dict[tuple[str, int], int] = {}
        for op, level in pairs:
            counts[OPERATION_NAMES[op], level] = counts.get((OPERATION_NAMES[op], level), 0) + 1
        assert set(counts) == {key for key, p in expected.items() if p > 0}
        assert all(within(counts.get(key, 0), n, p) for key, p in expected.items())


def test_both_steps_come_from_one_sub_policy_and_are_independent() -> None:
    # Only one sub-policy of cifar10 has Rotate, with TranslateX after it at 0.3; no other pair may follow Rotate.
    draws = Augment(policy="cifar10").draw(np.random.default_rng(0), 100_000)
    rotated = draws.ops[:, 0] == OPERATION_NAMES.index("Rotate")
    then = draws.ops[rotated, 1]
    assert set(then.tolist()) == {0, OPERATION_NAMES.index("TranslateX")}
    assert within(int((then > 0).sum()), int(rotated.sum()), 0.3)


def test_unknown_policy_suggests_known_ones() -> None:
    with pytest.raises(UserError, match=r"Unknown AutoAugment policy 'cifar'. Did you mean 'cifar10"):
        Augment(policy="cifar")


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (torch.zeros(2, 3, 8, 8), "uint8 images"),
        (torch.zeros(2, 8, 8, dtype=torch.uint8), "uint8 images"),
        (torch.zeros(2, 4, 8, 8, dtype=torch.uint8), "1 or 3 channels, not 4"),
        (torch.zeros(3, 3, 8, 8, dtype=torch.uint8), "3 images but draws for 2"),
    ],
)
def test_invalid_images_are_rejected_in_one_line(images: torch.Tensor, says: str) -> None:
    augment = Augment(policy="cifar10")
    with pytest.raises(UserError, match=says) as caught:
        augment(images, augment.draw(np.random.default_rng(0), 2))
    assert "\n" not in str(caught.value)


def test_out_of_range_settings_are_rejected() -> None:
    with pytest.raises(UserError, match="Padding"):
        Augment(padding=-1)
    with pytest.raises(UserError, match="Fill"):
        Augment(fill=256)
    with pytest.raises(UserError, match="no AutoAugment steps"):
        Augment(policy="cifar10")(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), crop_and_flip_draws([(4, 4)], [False]))
