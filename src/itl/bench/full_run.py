"""A complete `itl` run with the engine and with the baseline loop: the same epochs, batches and stages."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from itl import nets
from itl.bench.baseline_loop import Buffer, Samples, Tangent, Transform, er, er_separate, train_steps
from itl.learner import Learner
from itl.settings import Settings
from itl.streams import Stream


def measure(stream: Stream, buffer: int, settings: dict[str, Any], repeats: int = 2) -> dict[str, Any]:
    """Seconds and accuracy of both, run `repeats` times, interleaved."""
    out: dict[str, Any] = {"stream": stream.name, "buffer": buffer, "engine": [], "baseline": []}
    for seed in range(repeats):
        begin = time.perf_counter()
        learner = Learner("itl", buffer, seed, stream.classes, settings=settings, device="cpu")
        for task in stream:
            learner.learn(task)
        middle = time.perf_counter()
        baseline = BaselineRun(stream, buffer, learner.settings, seed)
        for index in range(len(stream)):
            baseline.learn(index)
        end = time.perf_counter()
        out["engine"].append({"seconds": middle - begin, "class_il": learner.evaluate(stream).class_il})
        out["baseline"].append({"seconds": end - middle, "class_il": baseline.class_il()})
    spent = {side: sum(run["seconds"] for run in out[side]) for side in ("engine", "baseline")}
    return {**out, "ratio": spent["baseline"] / spent["engine"]}


class BaselineRun:
    """Algorithm 1 as a straightforward loop: data loader, Pillow, eager steps, `.item()` at each step."""

    def __init__(self, stream: Stream, buffer: int, settings: Settings, seed: int) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        self.stream, self.settings, self.size = stream, settings, buffer
        self.transform = Transform(stream)
        self.net = nets.build(settings.net.name, stream.classes, channels=stream.shape[0], width=settings.net.width)
        self.memory = Buffer(buffer, self.transform)

    def learn(self, index: int) -> None:
        """Learn a task: specialist, memory, half-pipe, tangent learning, projection."""
        samples = Samples(self.stream.tasks[index].train, self.transform)
        self._train_specialist(samples)
        self._update_memory(samples)
        self.net.classifier.reset_parameters()
        t, p = self.settings.tangent, self.settings.projection
        tangent = Tangent(copy.deepcopy(self.net), t.layers)
        optimizer = torch.optim.SGD(tangent.w.values(), t.lr, t.momentum, weight_decay=2 * t.l2)
        _run(train_steps(optimizer, self._epochs(t.epochs, t.batch), tangent.learning_loss))
        self.net.train(p.batch_norm == "train")
        optimizer = torch.optim.SGD(self.net.parameters(), p.lr, p.momentum, weight_decay=2 * p.l2)
        batches = self._epochs(p.epochs, p.batch)
        _run(train_steps(optimizer, batches, lambda x, _: tangent.projection_loss(self.net, x)))

    def _train_specialist(self, samples: Samples) -> None:
        s = self.settings.specialist
        loss = er_separate if s.name == "er-separate" else er
        optimizer = torch.optim.SGD(self.net.parameters(), s.lr, s.momentum, weight_decay=s.weight_decay)
        self.net.train()
        for _ in range(s.epochs):
            batches = DataLoader(samples, s.batch, shuffle=True, num_workers=1)
            _run(train_steps(optimizer, batches, lambda x, y, _: loss(self.net, x, y, self.memory, s.replay)[0]))

    def _update_memory(self, samples: Samples) -> None:
        """Keep equally many random images of every class seen."""
        images_by_class: dict[int, list[Tensor]] = {}
        for image, label in zip(self.memory.images, self.memory.labels, strict=True):
            images_by_class.setdefault(label, []).append(image)
        for row in random.sample(range(len(samples)), len(samples)):
            images_by_class.setdefault(samples.labels[row], []).append(torch.from_numpy(samples.pixels[row].copy()))
        per_class = self.size // len(images_by_class)
        self.memory.images = [image for images in images_by_class.values() for image in images[:per_class]]
        self.memory.labels = [label for label, images in images_by_class.items() for _ in images[:per_class]]
        self.memory.logits = [torch.zeros(1)] * len(self.memory.images)

    def _epochs(self, epochs: int, batch: int) -> Any:
        """Yield shuffled batches of the memory's images, transformed one by one."""
        for _ in range(epochs):
            order = random.sample(range(len(self.memory.images)), len(self.memory.images))
            for first in range(0, len(order), batch):
                part = order[first : first + batch]
                views = torch.stack([self.transform(self.memory.images[p].numpy()) for p in part])
                yield views, torch.tensor([self.memory.labels[p] for p in part])

    @torch.no_grad()
    def class_il(self) -> float:
        """Mean over tasks of the accuracy among all classes, in percent."""
        self.net.eval()
        scores: list[float] = []
        for task in self.stream:
            x = (task.test.pixels.float().div(255) - self.transform.mean) / self.transform.std
            scores.append((self.net(x).argmax(1) == task.test.labels).float().mean().item())
        return 100 * sum(scores) / len(scores)


def _run(steps: Iterator[None]) -> None:
    for _ in steps:
        pass
