"""Green contexts: the driver calls, and the fallback when the driver refuses."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from itl.engine import concurrency, green_context

NAMES = (
    "cuDeviceGetDevResource",
    "cuDevSmResourceSplitByCount",
    "cuDevResourceGenerateDesc",
    "cuGreenCtxCreate",
    "cuGreenCtxStreamCreate",
)


class Driver:
    """A fake CUDA driver: `without` is missing, `failing` returns an error."""

    def __init__(self, without: str = "", failing: str = "") -> None:
        self.failing, self.called, self.wanted = failing, [], 0
        for name in NAMES:
            if name != without:
                setattr(self, name, lambda *args, name=name: self.answer(name, args))

    def answer(self, name: str, args: tuple[Any, ...]) -> int:
        self.called.append(name)
        if name == self.failing:
            return 801
        if name == "cuDevSmResourceSplitByCount":
            self.wanted = args[5].value
        if name == "cuGreenCtxStreamCreate":
            args[0]._obj.value = 4711
        return 0


def test_green_context_requests_a_partition_and_a_stream() -> None:
    driver = Driver()
    assert green_context._create(driver, 0, 32) == 4711
    assert driver.called == list(NAMES)
    assert driver.wanted == 32


@pytest.mark.parametrize("name", NAMES)
def test_missing_or_failing_driver_functions_are_reported_as_unavailable(name: str) -> None:
    for driver in (Driver(without=name), Driver(failing=name)):
        with pytest.raises(green_context._Unavailable, match=name):
            green_context._create(driver, 0, 32)


def test_green_context_is_unavailable_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(green_context._Unavailable):
        green_context._driver()


def test_prefetching_falls_back_to_an_ordinary_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain:
        def __init__(self, device: torch.device, priority: int = 0) -> None:
            self.priority = priority

    asked = []
    monkeypatch.setattr(concurrency, "_streams", {})
    monkeypatch.setattr(torch.cuda, "Stream", Plain)
    monkeypatch.setattr(green_context, "stream_on", lambda device, share: asked.append(share))
    own = concurrency.engine_streams(torch.device("cuda", 0))
    assert asked == [concurrency.PREFETCH_SHARE]
    assert isinstance(own.prefetch, Plain)
    assert [own.capture.priority, own.side.priority, own.prefetch.priority] == [-1, -1, 0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_green_context_kernels_compute_the_same_values() -> None:
    device = torch.device("cuda", 0)
    stream = green_context.stream_on(device, 0.25)
    if stream is None:
        pytest.skip("this driver has no green contexts")
    x = torch.randn(512, 512, device=device)
    kernel = torch.randn(8, 512, 3, 3, device=device)

    def work() -> tuple[torch.Tensor, torch.Tensor]:
        return x @ x, torch.nn.functional.conv2d(x.view(1, 512, 32, 16), kernel, padding=1)

    expected = work()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = work()
    torch.cuda.current_stream().wait_stream(stream)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-2, atol=0.1)
