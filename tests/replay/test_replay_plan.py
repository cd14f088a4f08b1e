"""A planned epoch equals a plain loop: draw a batch, replay from the current memory, step, offer the batch to it."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from itl import Learner
from itl.engine.image_pool import ImagePool
from itl.engine.keyed_random import generator, sample_without_replacement
from itl.learner.builder import build_augment
from itl.streams import Task
from support.tiny import differing_keys, learner_snapshot, tiny_learner, tiny_stream

CASES: dict[str, dict[str, Any]] = {
    "er": {"specialist__momentum": 0.9},
    "derpp": {"specialist__alpha": 0.4, "specialist__beta": 0.6, "specialist__weight_decay": 1e-3},
    "derpp, one draw": {"specialist__draws": 1, "specialist__alpha": 0.4, "specialist__schedule": "cosine"},
    "er, fewer steps than epochs": {"specialist__steps": 4},
    "er, replay batches smaller than the task's": {"specialist__replay": 5},
    "sgd": {},
}


class PlainLoop:
    """A specialist's training as a plain loop, without planning.

    It shares the learner's keys (and so its draws) but neither its planning nor its stepping: the memory is a set of
    arrays that every batch reads and then writes.
    """

    def __init__(self, learner: Learner) -> None:
        self.of, memory = learner, learner.memory
        self.net = copy.deepcopy(learner.net)
        self.pixels = memory.pixels[: memory.size].clone()
        self.labels = memory.slots.label.copy()
        self.logits = None if memory.logits is None else memory.logits[: memory.size].clone()
        self.held, self.seen = memory.slots.count, memory.slots.seen

    def train(self, task: Task, number: int) -> None:
        s = self.of.settings.specialist
        lr = torch.tensor(s.lr)
        sgd = torch.optim.SGD(
            self.net.parameters(), lr=lr, momentum=s.momentum, weight_decay=s.weight_decay, fused=True
        )
        per_epoch = len(self.batches(torch.arange(len(task.train))))
        total = min(per_epoch * s.epochs, s.steps or per_epoch * s.epochs)
        self.net.train()
        done = 0
        for epoch in range(s.epochs):
            key = (self.of.seed, number, "specialist", epoch)
            order = torch.from_numpy(generator(*key, "order").permutation(len(task.train)))
            batches = self.batches(order)[: total - done]
            if not batches:
                break
            self.epoch(task, key, batches, sgd, done, total)
            done += len(batches)

    def batches(self, order: Tensor) -> list[Tensor]:
        """Consecutive batches; up to three remaining samples join the last one."""
        out = list(order.split(self.of.settings.specialist.batch))
        if len(out) > 1 and len(out[-1]) < 4:
            out[-2:] = [torch.cat(out[-2:])]
        return out

    def epoch(self, task: Task, key: Any, batches: list[Tensor], sgd: Any, done: int, total: int) -> None:
        s, count = self.of.settings, sum(map(len, batches))
        online = s.memory.policy == "reservoir"
        augment_task = build_augment(s.augment, task.traits, s.augment.task)
        augment_memory = build_augment(s.augment, task.traits, s.augment.memory)
        task_draws = augment_task.draw(generator(*key, "views"), count)
        chances = generator(*key, "reservoir").random(count)
        picks = self.picks(key, [len(b) for b in batches], online)
        replayed = [sum(len(p) for p in one) for one in picks]
        replay_draws = [augment_memory.draw(generator(*key, "replayed views", d), n) for d, n in enumerate(replayed)]
        at, replay_position = 0, 0
        for k, rows in enumerate(batches):
            x = augment_task(task.train.gather(rows), task_draws[at : at + len(rows)])
            y = task.train.labels[rows]
            replay_batches = []
            for d, one in enumerate(picks):
                slots = one[k]
                if len(slots):
                    views = augment_memory(
                        self.pixels[slots], replay_draws[d][replay_position : replay_position + len(slots)]
                    )
                    stored = None if self.logits is None else self.logits[slots]
                    replay_batches.append((self.of.normalize(views), torch.from_numpy(self.labels[slots]), stored))
            if s.specialist.schedule == "cosine":
                sgd.param_groups[0]["lr"].fill_(s.specialist.lr * 0.5 * (1 + np.cos(np.pi * (done + k) / total)))
            sgd.zero_grad()
            loss, logits = self.loss(self.of.normalize(x), y, replay_batches)
            loss.backward()
            sgd.step()
            if online:
                self.offer(task, rows, logits, chances[at : at + len(rows)])
            at += len(rows)
            replay_position += len(picks[0][k]) if picks else 0

    def picks(self, key: Any, sizes: list[int], online: bool) -> list[list[np.ndarray]]:
        """The slots replayed, for every draw and step; steps with equally many stored images share one draw."""
        if not self.of.memory.size or not self.of.specialist.num_replay_batches:
            return []
        before = np.cumsum([0, *sizes[:-1]])
        held = [min(len(self.labels), self.seen + int(b)) if online else self.held for b in before]
        out = []
        for d in range(self.of.specialist.num_replay_batches):
            rng, one = generator(*key, "replay", d), []
            for size, steps in groupby(held):
                many = len(list(steps))
                one += list(sample_without_replacement(rng, many, size, min(self.of.settings.specialist.replay, size)))
            out.append(one)
        return out

    def loss(self, x: Tensor, y: Tensor, replay_batches: list[Any]) -> tuple[Tensor, Tensor]:
        s = self.of.settings.specialist
        if s.name in ("er", "sgd"):
            logits = self.net(torch.cat([x, *(p[0] for p in replay_batches)]) if replay_batches else x)
            return F.cross_entropy(logits, torch.cat([y, *(p[1] for p in replay_batches)])), logits
        logits = self.net(x)
        loss = F.cross_entropy(logits, y)
        if s.name == "er-separate":
            return loss + sum(F.cross_entropy(self.net(p[0]), p[1]) for p in replay_batches), logits
        if replay_batches:
            first = self.net(replay_batches[0][0])
            loss = loss + s.alpha * F.mse_loss(first, replay_batches[0][2])
            last = first if len(replay_batches) == 1 else self.net(replay_batches[1][0])
            loss = loss + s.beta * F.cross_entropy(last, replay_batches[-1][1])
        return loss, logits

    def offer(self, task: Task, rows: Tensor, logits: Tensor, chances: np.ndarray) -> None:
        """The textbook reservoir, one sample at a time."""
        for k, row in enumerate(rows.tolist()):
            if self.seen < len(self.labels):
                slot = self.seen
            else:
                slot = int(chances[k] * (self.seen + 1))
            self.seen += 1
            if slot < len(self.labels):
                self.pixels[slot] = task.train.gather(torch.tensor([row]))[0]
                self.labels[slot] = int(task.train.labels[row])
                if self.logits is not None:
                    self.logits[slot] = logits[k].detach()
                self.held = max(self.held, slot + 1)

    def assert_equals_learner(self) -> None:
        """Compare weights and memory with those of the learner, bit for bit."""
        memory = self.of.memory
        theirs = self.of.net.state_dict()
        assert [n for n, t in self.net.state_dict().items() if not torch.equal(t, theirs[n])] == []
        assert torch.equal(self.pixels, memory.pixels[: memory.size])
        assert np.array_equal(self.labels, memory.slots.label)
        assert self.held == len(memory)
        if self.logits is not None:
            assert memory.logits is not None
            assert torch.equal(self.logits, memory.logits[: memory.size])


@pytest.mark.parametrize("each", [11, 9])
@pytest.mark.parametrize("case", list(CASES))
def test_planned_epoch_is_bit_equal_to_a_plain_loop(case: str, each: int) -> None:
    """The memory of 12 fills over two batches of 8; the last batch has 6 samples, or 8 and 2."""
    stream = tiny_stream(channels=3, policy="cifar10", flip=True, each=each)
    method = case.partition(",")[0]
    more = {"augment__memory": "stream"} if method != "sgd" else {}
    learner = tiny_learner(method, buffer=12, **CASES[case], **more)
    learner.prepare(stream.tasks[0])
    loop = PlainLoop(learner)
    for number, task in enumerate(stream, 1):
        learner.learn(task)
        loop.train(task, number)
        loop.assert_equals_learner()


@pytest.mark.parametrize("specialist", ["er", "er-separate"])
def test_offline_er_is_bit_equal_to_a_plain_loop_over_a_frozen_memory(specialist: str) -> None:
    stream = tiny_stream(each=11)
    learner = tiny_learner("b", buffer=10, specialist__name=specialist)
    learner.learn(stream.tasks[0])
    loop = PlainLoop(learner)
    before = learner_snapshot(learner)["pixels"]
    held: list[Tensor] = []
    learner.callback.on_round_end = lambda trained, *_: held.append(trained.memory.pixels[:10].clone())  # type: ignore[method-assign]
    learner.learn(stream.tasks[1])
    loop.train(stream.tasks[1], 2)
    theirs = learner.net.state_dict()
    assert all(torch.equal(t, theirs[n]) for n, t in loop.net.state_dict().items())
    assert all(torch.equal(pixels, before) for pixels in held)
    assert not torch.equal(learner.memory.pixels[:10], before)  # selected again at the task's end


@pytest.mark.parametrize(("method", "buffer"), [("er", 8), ("itl-l", 8), ("itl-l", 18), ("b+ff", 17), ("b+lf", 8)])
def test_chunk_size_does_not_change_results(method: str, buffer: int) -> None:
    stream, snapshots = tiny_stream(), []
    for budget, resident in ((256 << 20, None), (1, None), (1200, 0), (5000, 1 << 30)):
        learner = tiny_learner(method, buffer)
        learner.prepare(stream.tasks[0])
        learner.engine = replace(learner.engine, input_bytes=budget, resident_bytes=resident)
        for task in stream:
            learner.learn(task)
        snapshots.append(learner_snapshot(learner))
    assert [differing_keys(snapshots[0], other) for other in snapshots[1:]] == [set()] * 3


def test_epoch_contains_every_image_once() -> None:
    stream, shown = tiny_stream(each=11), []
    learner = tiny_learner("sgd", specialist__epochs=1, augment__padding=0)
    learner.prepare(stream.tasks[0])
    loss = learner.specialist.loss
    learner.specialist.loss = lambda net, batch, replay_batches: shown.append(batch) or loss(net, batch, replay_batches)  # type: ignore[method-assign, func-returns-value]
    learner.learn(stream.tasks[0])
    assert [len(batch.y) for batch in shown] == [8, 8, 6]
    seen = torch.cat([batch.x for batch in shown])
    given = learner.normalize(stream.tasks[0].train.pixels)
    key = seen.flatten(1).sum(1).sort()[0]
    torch.testing.assert_close(key, given.flatten(1).sum(1).sort()[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("resident", [None, 0, 1 << 30])
def test_pool_returns_equal_images_from_host_and_device(resident: int | None) -> None:
    stream, learner = tiny_stream(), tiny_learner()
    learner.prepare(stream.tasks[0])
    images = stream.tasks[1].train
    pool = ImagePool(images, len(images), replace(learner.engine, resident_bytes=resident))
    assert (pool.pixels is not None) == (resident == 1 << 30)
    rows = torch.tensor([3, 0, 3, 7])
    assert torch.equal(pool.gather(rows), images.pixels[rows])
