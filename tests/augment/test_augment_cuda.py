"""Augmentation on a GPU: bit-equal to the CPU, few launches, no host synchronization."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from itl.augment import OPS, Augment, fused, policies
from itl.augment.policy import magnitudes
from support.pillow_reference import sample_images

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 17, 29), (3, 224, 160)], ids=str)
def test_operation_is_bit_equal_on_cuda(name: str, shape: tuple[int, int, int]) -> None:
    images = sample_images(*shape)
    for strength in magnitudes(name, *shape[1:]).tolist():
        per_sample = torch.full((len(images),), strength, dtype=torch.float64)
        assert torch.equal(OPS[name](images.cuda(), per_sample).cpu(), OPS[name](images, per_sample))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("policy", [None, *policies()])
def test_views_are_bit_equal_and_never_block_the_host(policy: str | None) -> None:
    images = sample_images(3, 32, 32).repeat(100, 1, 1, 1)
    augment = Augment(policy=policy)
    draws, device_images = augment.draw(np.random.default_rng(0), len(images)), images.cuda()
    augment(device_images, draws)  # the first call may load kernels, which waits
    try:
        torch.cuda.set_sync_debug_mode("error")
        views = augment(device_images, draws)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(views.cpu(), augment(images, draws))


@pytest.mark.usefixtures("deterministic")
def test_deterministic_mode_is_bit_equal() -> None:
    images = sample_images(3, 32, 32).repeat(20, 1, 1, 1)
    augment = Augment(policy="imagenet")
    draws = augment.draw(np.random.default_rng(0), len(images))
    assert torch.equal(augment(images.cuda(), draws).cpu(), augment(images, draws))


def test_epoch_needs_few_launches() -> None:
    images = torch.randint(0, 256, (20_000, 3, 32, 32), dtype=torch.uint8, device="cuda")
    augment = Augment(policy="cifar10")
    draws = augment.draw(np.random.default_rng(0), len(images))
    augment(images, draws)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        augment(images, draws)
        torch.cuda.synchronize()
    launched = sum(e.count for e in profile.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA)
    assert 0 < launched < (20 if fused.fits(images, 2) else 500), f"{launched} launches and copies"
