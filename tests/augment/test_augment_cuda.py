"""On a GPU: the same bits as on the CPU, few launches, and a host that never waits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from augment_pillow import pictures
from torch import Tensor

from itl.augment import OPS, Augment, Draws, fused, policies
from itl.augment.policy import BINS, NAMES, SIGNED, magnitudes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 17, 29), (3, 224, 160)], ids=str)
def test_an_operation_gives_the_same_bits(name: str, shape: tuple[int, int, int]) -> None:
    images = pictures(*shape)
    for strength in magnitudes(name, *shape[1:]).tolist():
        per_sample = torch.full((len(images),), strength, dtype=torch.float64)
        assert torch.equal(OPS[name](images.cuda(), per_sample).cpu(), OPS[name](images, per_sample))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("policy", [None, *policies()])
def test_views_have_the_same_bits_and_the_host_never_waits(policy: str | None) -> None:
    images = pictures(3, 32, 32).repeat(100, 1, 1, 1)
    augment = Augment(policy=policy)
    draws, there = augment.draw(np.random.default_rng(0), len(images)), images.cuda()
    augment(there, draws)  # the first call may load kernels, which waits
    try:
        torch.cuda.set_sync_debug_mode("error")
        views = augment(there, draws)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(views.cpu(), augment(images, draws))


@pytest.mark.usefixtures("deterministic")
def test_deterministic_kernels_give_the_same_bits() -> None:
    images = pictures(3, 32, 32).repeat(20, 1, 1, 1)
    augment = Augment(policy="imagenet")
    draws = augment.draw(np.random.default_rng(0), len(images))
    assert torch.equal(augment(images.cuda(), draws).cpu(), augment(images, draws))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (64, 64), (28, 28), (8, 8), (5, 2), (100, 90)])
def test_every_operation_at_every_level_in_both_steps(channels: int, height: int, width: int) -> None:
    """By one kernel where the image is small enough."""
    steps = every_step()
    some = pictures(channels, height, width)
    images = some[torch.arange(len(steps)) % len(some)]
    n = len(images)
    shift = torch.arange(2 * n).view(n, 2) % 9
    draws = Draws(shift, torch.arange(n) % 3 == 0, steps[:, :2], steps[:, 2:])
    for fill in (0, 200):
        augment = Augment(policy="cifar10", fill=fill)
        assert torch.equal(augment(images.cuda(), draws).cpu(), augment(images, draws))


def every_step() -> Tensor:
    """Operations of two steps and their levels, int64 [n, 4]: each at each level, first and second, beside another."""
    pairs = [(op, level) for op, name in enumerate(NAMES) for level in range(1 - BINS if name in SIGNED else 0, BINS)]
    alone = [(op, 0, level, 0) for op, level in pairs] + [(0, op, 0, level) for op, level in pairs]
    both = [(a, b, i, j) for (a, i), (b, j) in zip(pairs, pairs[::-1], strict=True)]
    return torch.tensor(alone + both)


def test_an_epoch_is_a_few_launches() -> None:
    images = torch.randint(0, 256, (20_000, 3, 32, 32), dtype=torch.uint8, device="cuda")
    augment = Augment(policy="cifar10")
    draws = augment.draw(np.random.default_rng(0), len(images))
    augment(images, draws)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        augment(images, draws)
        torch.cuda.synchronize()
    launched = sum(e.count for e in profile.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA)
    assert 0 < launched < (20 if fused.fits(images, 2) else 500), f"{launched} launches and copies"
