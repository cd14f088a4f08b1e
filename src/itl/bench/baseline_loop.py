"""The same work in a conventional training loop: data loader with workers, Pillow transforms, eager steps.

The benchmark's code and most research code train like this: float32 images from a `DataLoader`, replayed images
transformed one by one in the main process, one kernel launch at a time, `loss.item()` at every step.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.utils.data import DataLoader, Dataset

from itl import nets
from itl.bench.workload import Workload
from itl.streams import Images, Stream


class Transform:
    """Random crop, flip and normalization of one Pillow image at a time."""

    def __init__(self, stream: Stream) -> None:
        self.mean = torch.tensor(stream.mean).view(-1, 1, 1)
        self.std = torch.tensor(stream.std).view(-1, 1, 1)
        self.padding, self.flip = stream.padding, stream.flip

    def __call__(self, raw: np.ndarray) -> Tensor:
        """Convert a uint8 image `[h, w, c]` to float32 `[c, h, w]`."""
        image = Image.fromarray(raw.squeeze(2) if raw.shape[2] == 1 else raw)
        side, margin = image.size[0], 2 * self.padding
        image = ImageOps.expand(image, border=self.padding)
        left, top = random.randint(0, margin), random.randint(0, margin)
        image = image.crop((left, top, left + side, top + side))
        if self.flip and random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        x = torch.from_numpy(np.array(image)).view(*raw.shape).permute(2, 0, 1).float().div(255)
        return (x - self.mean) / self.std


class Samples(Dataset[tuple[Tensor, int, Tensor]]):
    """Dataset of (augmented image, label, raw image for the memory)."""

    def __init__(self, images: Images, transform: Transform) -> None:
        self.pixels = images.pixels.permute(0, 2, 3, 1).numpy()
        self.labels = images.labels.tolist()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int, Tensor]:
        raw = self.pixels[index]
        return self.transform(raw), self.labels[index], torch.from_numpy(raw.copy())


class Buffer:
    """Reservoir that is written and read sample by sample."""

    def __init__(self, size: int, transform: Transform) -> None:
        self.size, self.transform, self.seen = size, transform, 0
        self.images: list[Tensor] = []
        self.labels: list[int] = []
        self.logits: list[Tensor] = []

    def add(self, raw: Tensor, labels: Tensor, logits: Tensor) -> None:
        """Add a batch by reservoir sampling."""
        for k in range(len(raw)):
            slot = len(self.images) if len(self.images) < self.size else random.randint(0, self.seen)
            self.seen += 1
            if slot < len(self.images):
                self.images[slot], self.labels[slot], self.logits[slot] = raw[k], int(labels[k]), logits[k]
            elif slot < self.size:
                self.images.append(raw[k])
                self.labels.append(int(labels[k]))
                self.logits.append(logits[k])

    def draw(self, count: int, device: str | torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Draw samples without replacement and transform them one by one."""
        picks = random.sample(range(len(self.images)), min(count, len(self.images)))
        views = torch.stack([self.transform(self.images[p].numpy()) for p in picks])
        labels = torch.tensor([self.labels[p] for p in picks])
        return views.to(device), labels.to(device), torch.stack([self.logits[p] for p in picks])


def er(net: nn.Module, x: Tensor, y: Tensor, buffer: Buffer, replay: int = 32) -> tuple[Tensor, Tensor]:
    """Loss of task and replay batch in one forward pass, and the task batch's logits."""
    own = len(x)
    if buffer.images:
        replay_x, replay_y, _ = buffer.draw(replay, x.device)
        x, y = torch.cat([x, replay_x]), torch.cat([y, replay_y])
    logits = net(x)
    return F.cross_entropy(logits, y), logits[:own]


def er_separate(net: nn.Module, x: Tensor, y: Tensor, buffer: Buffer, replay: int = 32) -> tuple[Tensor, Tensor]:
    """Loss of task and replay batch in separate forward passes, and the task batch's logits."""
    logits = net(x)
    loss = F.cross_entropy(logits, y)
    if buffer.images:
        replay_x, replay_y, _ = buffer.draw(replay, x.device)
        loss = loss + F.cross_entropy(net(replay_x), replay_y)
    return loss, logits


def derpp(net: nn.Module, x: Tensor, y: Tensor, buffer: Buffer, replay: int = 32) -> tuple[Tensor, Tensor]:
    """DER++ loss with three forward passes and two replay batches, and the task batch's logits."""
    logits = net(x)
    loss = F.cross_entropy(logits, y)
    if buffer.images:
        replay_x, _, stored = buffer.draw(replay, x.device)
        loss = loss + 0.1 * F.mse_loss(net(replay_x), stored)
        replay_x, replay_y, _ = buffer.draw(replay, x.device)
        loss = loss + 0.5 * F.cross_entropy(net(replay_x), replay_y)
    return loss, logits


def measure(workload: Workload, stream: Stream) -> dict[str, float]:
    """Milliseconds per step of er, derpp and the three stages of itl: median after a warm-up."""
    random.seed(0)
    torch.manual_seed(0)
    bench = _BaselineBench(workload, stream)
    kinds: dict[str, Callable[[], Iterator[None]]] = {
        "er": lambda: bench.replay(er),
        "derpp": lambda: bench.replay(derpp),
        "itl specialist": lambda: bench.replay(er_separate, frozen=True),
        "itl tangent": bench.tangent,
        "itl projection": bench.projection,
    }
    return {name: _median_ms(steps(), workload.baseline_steps) for name, steps in kinds.items()}


def _median_ms(steps: Iterator[None], count: int) -> float:
    times = []
    for _ in range(5):
        next(steps)
    for _ in range(count):
        begin = time.perf_counter()
        next(steps)
        times.append(time.perf_counter() - begin)
    # Means over blocks of ten, because a loader delivers in bursts.
    blocks = [sum(times[k : k + 10]) / len(times[k : k + 10]) for k in range(0, len(times), 10)]
    return 1e3 * median(blocks)


def train_steps(
    optimizer: torch.optim.Optimizer, batches: Iterable[Any], loss: Callable[..., Tensor]
) -> Iterator[None]:
    """Run one training step per item; `loss` takes a batch's tensors."""
    for batch in batches:
        optimizer.zero_grad()
        value = loss(*batch)
        value.backward()
        optimizer.step()
        value.item()
        yield


class Tangent:
    """Tangent model p(x) + ∇p(x) w of a network's last layers, by forward-mode differentiation."""

    def __init__(self, net: nets.Net, layers: int | None) -> None:
        self.trunk, self.head = net.eval().split(layers)
        self.params = {name: p.detach() for name, p in self.head.named_parameters()}
        self.w = {name: torch.zeros_like(p).requires_grad_() for name, p in self.params.items()}

    def logits(self, x: Tensor) -> Tensor:
        """`[n, classes]`."""
        with torch.no_grad():
            features = self.trunk(x)
        value, derivative = jvp(lambda p: functional_call(self.head, p, (features,)), (self.params,), (self.w,))  # type: ignore[misc]
        return value + derivative  # type: ignore[no-any-return]

    def learning_loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy of the tangent model."""
        return F.cross_entropy(self.logits(x), y)

    def projection_loss(self, net: nn.Module, x: Tensor) -> Tensor:
        """Squared error of a network that the tangent model is distilled into."""
        with torch.no_grad():
            target = self.logits(x)
        return F.mse_loss(net(x), target)


class _BaselineBench:
    """Endless iterators that run one training step per item."""

    def __init__(self, workload: Workload, stream: Stream) -> None:
        self.workload, self.device = workload, workload.device
        self.transform = Transform(stream)
        self.samples = Samples(stream.tasks[0].train, self.transform)
        self.classes = stream.classes

    def _net(self) -> nets.Net:
        name, width = self.workload.net.get("net.name", "resnet18"), self.workload.net.get("net.width")
        return nets.build(name, self.classes, width=width).to(self.device)

    def _batches(self) -> Iterator[Any]:
        while True:
            for x, y, raw in DataLoader(self.samples, 32, shuffle=True, num_workers=self.workload.workers):
                yield x.to(self.device), y.to(self.device), raw

    def replay(self, loss: Callable[..., tuple[Tensor, Tensor]], frozen: bool = False) -> Iterator[None]:
        """Steps of a replay method. `frozen`: the memory is filled once and then not updated."""
        net, buffer = self._net(), Buffer(200, self.transform)

        def replay_loss(x: Tensor, y: Tensor, raw: Tensor) -> Tensor:
            value, logits = loss(net, x, y, buffer)
            if not frozen or len(buffer.images) < buffer.size:
                buffer.add(raw, y.cpu(), logits.detach())
            return value

        return train_steps(torch.optim.SGD(net.parameters(), lr=0.01), self._batches(), replay_loss)

    def tangent(self) -> Iterator[None]:
        """Steps of tangent learning over the last two layers."""
        tangent = Tangent(self._net(), 2)
        optimizer = torch.optim.SGD(tangent.w.values(), lr=1e-4, momentum=0.9, weight_decay=2e-5)
        return train_steps(optimizer, self._batches(), lambda x, y, _: tangent.learning_loss(x, y))

    def projection(self) -> Iterator[None]:
        """Steps of distilling a tangent model."""
        net, tangent = self._net(), Tangent(self._net(), 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-5, weight_decay=2e-5)
        return train_steps(optimizer, self._batches(), lambda x, *_: tangent.projection_loss(net, x))
