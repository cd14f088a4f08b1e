"""`ModuleAdapter`: a small ViT, a transformer encoder and a convolutional backbone train as networks."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import itl
from itl import Learner, UserError, nets
from itl.generalists.tangent_model import TangentModel
from itl.nets import ModuleAdapter, split_frozen, thread_safe_jvp, with_new_classifier
from support.tiny import TINY, LambdaCallback, differing_keys, learner_snapshot, tiny_images, tiny_net, tiny_stream


class Block(nn.Module):
    """A transformer block with fused attention, which has no forward-mode derivative."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, tokens, width)
        x = x + self.out(seen)
        return x + self.mlp(self.norm2(x))


class TinyViT(nn.Module):
    def __init__(self, channels: int = 1, width: int = 16, classes: int = 1000) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, 4, 4)
        self.token, self.position = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.randn(1, 5, width) * 0.1)
        self.blocks = nn.Sequential(Block(width, 2), Block(width, 2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


class Encoder(nn.Module):
    """The same block from torch's modules, whose fast path has no derivative."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=False)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x.flatten(1).view(len(x), 4, 16)).mean(1))


class Backbone(nn.Module):
    """A typical pre-trained network: batch norm, pooling, dropout, and a classifier `fc` for other classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.body = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.drop, self.fc = nn.Dropout(0.2), nn.Linear(16, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(self.body(self.stem(x)).flatten(1)))


def vit() -> ModuleAdapter:
    torch.manual_seed(3)
    return ModuleAdapter(TinyViT(), "head", ("blocks.1", "norm", "head"))


def backbone() -> ModuleAdapter:
    torch.manual_seed(3)
    return ModuleAdapter(Backbone(), "fc", ("body", "fc"))


ADAPTERS = {"vit": vit, "backbone": backbone}
OWN = {"specialist.lr": 0.05, "specialist.momentum": 0.9, "specialist.batch": 20}


def learner(name: str, method: str = "itl", **options: Any) -> Learner:
    settings = {**TINY, **OWN, **options.pop("settings", {})}
    return Learner(method, 20, 0, 4, settings=settings, device="cpu", net=ADAPTERS[name](), **options)


@pytest.mark.parametrize("name", ADAPTERS)
def test_itl_trains_the_module_and_remembers_the_first_task(name: str) -> None:
    longer = {"specialist.epochs": 30, "tangent.epochs": 10, "projection.epochs": 20}
    rates = {"tangent.lr": 0.05, "projection.lr": 0.05, "tangent.batch": 20, "projection.batch": 20}
    stream = tiny_stream(each=12, padding=0)
    mine = learner(name, settings={**longer, **rates})
    for task in stream:
        mine.learn(task)
    assert mine.evaluate(stream).class_il > 75
    assert mine.settings.generalist == "tangent"


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize("method", ["er", "derpp", "b+hp+lf", "b+hp+ff+pd"])
def test_every_kind_of_stage_trains_the_module(name: str, method: str) -> None:
    mine = learner(name, method)
    for task in tiny_stream():
        mine.learn(task)
    assert np.isfinite(mine.predict_proba(tiny_images()[0])).all()


def test_batches_of_one_image_use_the_running_statistics() -> None:
    mine = learner("backbone", "sgd", settings={"specialist.batch": 1})
    mine.learn(tiny_stream().tasks[0])
    before, after = backbone().state_dict(), mine.net.state_dict()
    assert all(torch.equal(after[name], t) for name, t in before.items() if "running" in name)
    assert not torch.equal(after["module.stem.0.weight"], before["module.stem.0.weight"])


@pytest.mark.parametrize("name", ADAPTERS)
def test_training_without_projection_ends_with_the_specialists_classifier(name: str) -> None:
    kept: dict[str, Tensor] = {}

    def take(event: str, learner: Learner, at: str | None, done: int) -> None:
        if event == "on_memory_update":
            kept.update({n: t.clone() for n, t in learner.net.state_dict().items()})

    mine = learner(name, settings={"project": False}, callback=LambdaCallback(take))
    mine.learn(tiny_stream().tasks[0])
    assert [n for n, t in mine.net.state_dict().items() if not torch.equal(t, kept[n])] == []


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize("stage", ["specialist", "tangent", "projection"])
def test_interrupted_training_with_dropout_resumes_to_the_same_bits(name: str, stage: str, tmp_path: Path) -> None:
    def stop(event: str, learner: Learner, at: str | None, done: int) -> None:
        if (event, at, done) == ("on_round_end", stage, 1):
            learner.save(tmp_path)
            raise KeyboardInterrupt

    first, second = tiny_stream().tasks
    whole, stopped = learner(name), learner(name)
    for task in (first, second):
        whole.learn(task)
    stopped.learn(first)
    stopped.callback = LambdaCallback(stop)
    with pytest.raises(KeyboardInterrupt):
        stopped.learn(second)
    torch.manual_seed(99)  # the global random state must not matter
    again = itl.load(tmp_path, device="cpu", net=type(ADAPTERS[name]().module)())
    wrapped = itl.load(tmp_path, device="cpu", net=ADAPTERS[name]())  # as an adapter, as the learner got it
    assert not differing_keys(learner_snapshot(wrapped), learner_snapshot(again))
    again.learn(second)
    assert differing_keys(learner_snapshot(again), learner_snapshot(whole)) == set()


@pytest.mark.parametrize("module", [TinyViT, Encoder, Backbone])
@pytest.mark.parametrize("layers", [1, None])
def test_tangent_model_is_the_derivative(module: type[nn.Module], layers: int | None) -> None:
    place = "fc" if module is Backbone else "head"
    net = ModuleAdapter(module(), place).double().eval()
    model = TangentModel(net, layers)
    x = torch.randn(3, 1, 8, 8, dtype=torch.float64)
    w = {name: torch.randn_like(p) for name, p in model.params.items()}
    assert (len(w) == 2) == (layers == 1)
    step = 1e-6
    moved = [{n: p + sign * step * w[n] for n, p in model.params.items()} for sign in (1, -1)]
    with torch.no_grad():
        slope = (model.head_logits(moved[0], x) - model.head_logits(moved[1], x)) / (2 * step)
        torch.testing.assert_close(model(w, x), net(x) + slope, rtol=1e-5, atol=1e-7)


def test_resnet_in_an_adapter_has_the_same_tangent_model() -> None:
    net = tiny_net()
    ours, theirs = TangentModel(net, 2), TangentModel(ModuleAdapter(net, "classifier", ("layer3", "classifier")), 2)
    w = {name: torch.randn_like(p) for name, p in ours.params.items()}
    x = torch.randn(5, 1, 8, 8)
    torch.testing.assert_close(theirs({f"module.{n}": t for n, t in w.items()}, x), ours(w, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ADAPTERS)
def test_classifier_grows_with_the_classes(name: str, tmp_path: Path) -> None:
    images, labels = tiny_images()
    mine = Learner("itl", 8, settings={**TINY, **OWN}, device="cpu", net=ADAPTERS[name]())
    mine.learn(images[labels < 2], labels[labels < 2])
    mine.learn(images[labels >= 2], labels[labels >= 2])
    assert mine.predict_proba(images).shape == (40, 4)
    mine.save(tmp_path)
    again = itl.load(tmp_path, device="cpu", net=type(mine.net.module)())  # type: ignore[operator]
    assert (again.predict_proba(images) == mine.predict_proba(images)).all()


def test_original_module_and_frozen_layers_do_not_change() -> None:
    module = Backbone()
    module.stem.requires_grad_(False)
    before = copy.deepcopy(module.state_dict())
    mine = Learner("itl", 8, 0, 4, settings=TINY, device="cpu", net=ModuleAdapter(module, "fc", ("body", "fc")))
    mine.learn(tiny_stream().tasks[0])
    assert all(torch.equal(t, before[n]) for n, t in module.state_dict().items())
    learned = mine.net.state_dict()
    assert torch.equal(learned["module.stem.0.weight"], before["stem.0.weight"])
    assert not torch.equal(learned["module.body.0.weight"], before["body.0.weight"])


def test_training_starts_from_the_modules_weights() -> None:
    net = backbone()
    assert with_new_classifier(net, 4, torch.Generator()).classifier.out_features == 4
    mine = learner("backbone")
    mine.prepare(tiny_stream().tasks[0])
    assert torch.equal(mine.net.state_dict()["module.stem.0.weight"], net.module.stem[0].weight)  # type: ignore


def test_unsuitable_modules_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Unknown layer 'fcc'. Did you mean 'fc"):
        ModuleAdapter(Backbone(), "fcc")
    with pytest.raises(UserError, match="is a Sequential"):
        ModuleAdapter(Backbone(), "body")
    with pytest.raises(UserError, match="cannot classify images"):
        learner("vit").learn(tiny_stream(channels=3).tasks[0])
    with pytest.raises(UserError, match=r"names 2 last layers \(body, fc\)"):
        learner("backbone", settings={"tangent.layers": 3}).learn(tiny_stream().tasks[0])
    idle = Backbone()
    idle.more = nn.Linear(3, 3)
    with pytest.raises(UserError, match=r"does not use its parameter module\.more\.weight"):
        Learner("itl", 8, settings=TINY, device="cpu", net=ModuleAdapter(idle, "fc")).learn(tiny_stream().tasks[0])
    mine = learner("backbone")
    mine.learn(tiny_stream().tasks[0])
    mine.save(tmp_path)
    with pytest.raises(UserError, match=r"your own network, a \S+Backbone; load it with net="):
        itl.load(tmp_path, device="cpu")
    other = Backbone()
    other.body[0] = nn.Conv2d(8, 16, 5, 2, 2)
    with pytest.raises(UserError, match=r"the weights do not fit a \S+Backbone with 4 outputs"):
        itl.load(tmp_path, device="cpu", net=other)


def test_layers_of_a_vision_transformer_are_its_blocks() -> None:
    net = ModuleAdapter(TinyViT())
    assert net.layer_modules == (("patches",), ("blocks.0",), ("blocks.1", "norm"), ("head",))
    assert net.in_last_layers("module.norm.weight", 2)
    assert not net.in_last_layers("module.blocks.0.qkv.weight", 2)
    assert ModuleAdapter(Backbone()).layers == ("stem", "body", "fc")


@pytest.mark.parametrize("made", [TinyViT, Backbone])
def test_module_is_cut_before_its_last_layers(made: type[nn.Module]) -> None:
    torch.manual_seed(0)
    net, x = ModuleAdapter(made()).eval(), torch.randn(3, 1, 8, 8)
    expected = net(x)
    trunk, head = split_frozen(net, 2, (1, 8, 8))
    features = trunk(x)
    torch.testing.assert_close(head.eval()(features), expected)
    assert not any(p.requires_grad for p in trunk.parameters())
    trained = {name for name, p in head.named_parameters() if p.requires_grad}
    assert trained == {name for name in trained if head.in_last_layers(name, 2)}
    head.train()
    assert not any(layer.training for layer in head.modules() if isinstance(layer, nn.BatchNorm2d))
    grads = torch.autograd.grad(head(features).sum(), [p for p in head.parameters() if p.requires_grad])
    assert all(bool(torch.isfinite(grad).all()) for grad in grads)


@pytest.mark.parametrize("trained", [1, 2])
def test_steps_of_layers_after_a_trunk_can_be_captured_if_they_are_known(trained: int) -> None:
    ours = nets.build("resnet8", 3, channels=1, generator=torch.Generator())
    assert split_frozen(ours, trained, (1, 8, 8))[1].capturable
    module = split_frozen(ModuleAdapter(TinyViT()), trained, (1, 8, 8))[1]
    assert module.capturable is (trained == 1)  # a user's layers may draw random numbers


class SkipsTheBlock(nn.Module):
    """The classifier sees the first layer's output too, past the second layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.fc = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        early = self.first(x.flatten(1))
        return self.fc(self.second(early) + early)


def test_module_that_cannot_be_cut_is_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(UserError, match=r"cannot be cut before second: later layers need more than its input; set"):
        split_frozen(ModuleAdapter(SkipsTheBlock()), 2, (1, 8, 8))
    with pytest.raises(UserError, match=r"freezes none of them; set net.trained=null"):
        split_frozen(ModuleAdapter(SkipsTheBlock()), 3, (1, 8, 8))


class HidesItsClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.other = nn.Linear(64, 2), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1)) + 0 * self.other.weight.sum()


def test_plain_module_is_a_network_and_its_classifier_is_found() -> None:
    settings = {**TINY, **OWN, "tangent.layers": 2}
    torch.manual_seed(3)
    plain = Learner("itl", 20, 0, 4, settings=settings, device="cpu", net=Backbone())
    named = Learner("itl", 20, 0, 4, settings=settings, device="cpu", net=backbone())
    for one in (plain, named):
        one.learn(tiny_stream().tasks[0])
    assert differing_keys(plain.net.state_dict(), named.net.state_dict()) == set()
    hidden = Learner("er", 20, 0, settings=TINY, device="cpu", net=HidesItsClassifier())
    with pytest.raises(UserError, match=r"other, does not return the network's logits; name the layer that does"):
        hidden.learn(tiny_stream().tasks[0])
    with pytest.raises(UserError, match=r"a Flatten has no torch.nn.Linear"):
        Learner("er", net=nn.Flatten())


def test_derivatives_of_overlapping_threads() -> None:
    """Without a lock, the second thread would get zeros, because the first one ends while it computes."""
    first_started, second_started, first_ended = Event(), Event(), Event()
    x = torch.tensor([2.0, 3.0])

    def first(x: Tensor) -> Tensor:
        first_started.set()
        second_started.wait(0.2)
        return x * x

    def second(x: Tensor) -> Tensor:
        y = x * x
        second_started.set()
        assert first_ended.wait(20)
        return y * x

    def first_thread() -> Tensor:
        derivative = thread_safe_jvp(first, (x,), (torch.ones(2),))[1]
        first_ended.set()
        return derivative

    def second_thread() -> Tensor:
        assert first_started.wait(20)
        return thread_safe_jvp(second, (x,), (torch.ones(2),))[1]

    with ThreadPoolExecutor(2) as threads:
        derivatives = [job.result() for job in (threads.submit(first_thread), threads.submit(second_thread))]
    torch.testing.assert_close(derivatives, [2 * x, 3 * x**2])
