"""Fused SGD equals PyTorch's SGD on the master weights and rounds the bf16 copies from them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from itl.engine.bf16_weights import BF16Weights
from itl.engine.fused_sgd import FusedSGD
from itl.triton_support import load_kernels


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fused_sgd_equals_pytorch_sgd_with_rounded_copies(momentum: float, device: torch.device) -> None:
    net = nn.Sequential(nn.Conv2d(3, 17, 3), nn.BatchNorm2d(17), nn.Conv2d(17, 40, 3), nn.Flatten(), nn.Linear(640, 10))
    net = net.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    leaves, weights = list(net.parameters()), BF16Weights(net)
    momenta = [torch.zeros_like(m) for m in weights.masters] if momentum else []
    bad = torch.zeros((), device=device)
    update = FusedSGD(weights, momenta, torch.tensor(0.1, device=device), bad, momentum, 2e-3)
    copies = [p.detach().clone().requires_grad_() for p in leaves]
    plain = torch.optim.SGD(copies, lr=0.1, momentum=momentum, weight_decay=2e-3)
    for _ in range(3):
        grads = [torch.randn_like(p).to(torch.bfloat16 if id(p) in weights.index else torch.float32) for p in leaves]
        rest = update(leaves, grads)
        for copy, grad in zip(copies, grads, strict=True):
            copy.grad = grad.float()
        plain.step()
    assert [grad is None for grad in rest] == [id(p) in weights.index for p in leaves]
    copy_of = {id(p): copy for p, copy in zip(leaves, copies, strict=True)}
    for master, copy in zip(weights.masters, weights.copies, strict=True):
        assert torch.allclose(master, copy_of[id(master)], rtol=1e-6, atol=1e-6)
        if device.type == "cuda":
            assert torch.equal(copy, master.to(torch.bfloat16))
        else:  # the interpreter truncates instead of rounding
            assert torch.equal(copy.view(torch.int16), (master.view(torch.int32) >> 16).to(torch.int16))
    bad.fill_(1)
    before = [m.detach().clone() for m in weights.masters]
    update(leaves, grads)
    assert all(torch.equal(a, b) for a, b in zip(before, weights.masters, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bookkeeping_kernel_updates_loss_rate_and_flag(dtype: torch.dtype, device: torch.device) -> None:
    lr, bad, total = (torch.zeros((), device=device) for _ in range(3))
    rates = torch.tensor([0.5, 0.25, 0.125, 0.0625], device=device)
    seen = []
    for loss, rate in zip((1.5, 0.25, float("inf"), 1.0), rates, strict=True):
        load_kernels("itl.engine.sgd_kernel").bookkeeping_kernel[(1,)](
            torch.tensor(loss, dtype=dtype, device=device), rate, lr, bad, total
        )
        seen.append((lr.item(), bad.item(), total.item()))
    assert seen[:2] == [(0.5, 0.0, 1.5), (0.25, 0.0, 1.75)]
    assert [(rate, flag) for rate, flag, _ in seen[2:]] == [(0.125, 1.0), (0.0625, 1.0)]  # it stays set
    load_kernels("itl.engine.sgd_kernel").bookkeeping_kernel[(1,)](
        torch.tensor(float("nan"), device=device), rates[0], lr, bad.zero_(), total
    )
    assert bad.item() == 1.0
