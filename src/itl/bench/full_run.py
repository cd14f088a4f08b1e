"""A complete `itl` run with the engine and with the baseline loop: the same epochs, batches and stages."""

from __future__ import annotations

import copy
import random
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

from itl import nets
from itl.bench.baseline_loop import Buffer, Samples, Transform, er, er_separate, tangent_logits
from itl.learner import Learner
from itl.settings import Settings
from itl.streams import Stream


def measure(stream: Stream, buffer: int, settings: dict[str, Any], repeats: int = 2) -> dict[str, Any]:
    """Seconds and accuracy of both, run `repeats` times, interleaved."""
    out: dict[str, Any] = {"stream": stream.name, "buffer": buffer, "ours": [], "usual": []}
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
        out["ours"].append({"seconds": middle - begin, "class_il": learner.evaluate(stream).class_il})
        out["usual"].append({"seconds": end - middle, "class_il": baseline.class_il()})
    spent = {side: sum(run["seconds"] for run in out[side]) for side in ("ours", "usual")}
    return {**out, "ratio": spent["usual"] / spent["ours"]}


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
        task = self.stream.tasks[index]
        samples = Samples(task.train, self.transform)
        self._specialist(samples)
        self._update_memory(samples)
        self.net.classifier.reset_parameters()
        anchor = copy.deepcopy(self.net).eval()
        w = self._tangent(anchor)
        self._project(anchor, w)

    def _specialist(self, samples: Samples) -> None:
        s = self.settings.specialist
        loss_function = er_separate if s.name == "er-separate" else er
        optimizer = torch.optim.SGD(self.net.parameters(), s.lr, s.momentum, weight_decay=s.weight_decay)
        self.net.train()
        for _ in range(s.epochs):
            for x, y, _raw in DataLoader(samples, s.batch, shuffle=True, num_workers=1):
                optimizer.zero_grad()
                loss, _ = loss_function(self.net, x, y, self.memory, s.replay)
                loss.backward()
                optimizer.step()
                loss.item()

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

    def _tangent(self, anchor: nets.Net) -> dict[str, Tensor]:
        s = self.settings.tangent
        trunk, head = anchor.split(s.layers)
        params = {name: p.detach() for name, p in head.named_parameters()}
        w = {name: torch.zeros_like(p).requires_grad_() for name, p in params.items()}
        optimizer = torch.optim.SGD(w.values(), s.lr, s.momentum, weight_decay=2 * s.l2)
        for x, y in self._epochs(s.epochs, s.batch):
            optimizer.zero_grad()
            with torch.no_grad():
                features = trunk(x)
            loss = F.cross_entropy(tangent_logits(head, params, w, features), y)
            loss.backward()
            optimizer.step()
            loss.item()
        return {name: t.detach() for name, t in w.items()}

    def _project(self, anchor: nets.Net, w: dict[str, Tensor]) -> None:
        s = self.settings.projection
        trunk, head = anchor.split(self.settings.tangent.layers)
        params = {name: p.detach() for name, p in head.named_parameters()}
        optimizer = torch.optim.SGD(self.net.parameters(), s.lr, s.momentum, weight_decay=2 * s.l2)
        self.net.train(s.batch_norm == "train")
        for x, _ in self._epochs(s.epochs, s.batch):
            optimizer.zero_grad()
            with torch.no_grad():
                target = tangent_logits(head, params, w, trunk(x))
            loss = F.mse_loss(self.net(x), target)
            loss.backward()
            optimizer.step()
            loss.item()

    @torch.no_grad()
    def class_il(self) -> float:
        """Mean over tasks of the accuracy among all classes, in percent."""
        self.net.eval()
        scores: list[float] = []
        for task in self.stream:
            x = (task.test.pixels.float().div(255) - self.transform.mean) / self.transform.std
            scores.append((self.net(x).argmax(1) == task.test.labels).float().mean().item())
        return 100 * sum(scores) / len(scores)
