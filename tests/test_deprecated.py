"""Old names keep working, each with a DeprecationWarning that names the new one."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings
from dataclasses import dataclass
from importlib import import_module
from pkgutil import resolve_name
from typing import Any

import pytest

from itl import _deprecated
from support.fresh_import import run_fresh


def with_warnings(action: Any) -> tuple[Any, list[str]]:
    """Result of `action()` and the texts of its deprecation warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = action()
    return result, [str(w.message) for w in caught if w.category is DeprecationWarning]


def resolve(path: str) -> Any:
    """The object of a dotted path, through the module that the path names."""
    owner, _, name = path.rpartition(".")
    return getattr(import_module(owner), name)


@pytest.mark.parametrize("old", _deprecated.MODULES)
def test_old_module_is_the_new_module(old: str) -> None:
    new = _deprecated.MODULES[old]
    expected = import_module(new)
    sys.modules.pop(old, None)
    module, messages = with_warnings(lambda: import_module(old))
    assert module is expected
    assert f"module {old} is deprecated, use {new}" in messages
    assert module.__name__ == module.__spec__.name == new


@pytest.mark.parametrize("old", _deprecated.NAMES)
def test_old_name_is_the_new_object(old: str) -> None:
    new = _deprecated.NAMES[old]
    owner, _, name = old.rpartition(".")
    found, messages = with_warnings(lambda: resolve(old))
    assert found == resolve_name(new)
    assert f"{_deprecated.new_module(owner)}.{name} is deprecated, use {new}" in messages


def test_old_submodule_does_not_hide_a_function_of_the_same_name() -> None:
    from itl.apps import model

    sys.modules.pop("itl.model.lock", None)
    with_warnings(lambda: import_module("itl.model.lock"))
    assert callable(model.lock)


def test_renamed_settings_map_to_existing_settings() -> None:
    from itl.settings import check_name

    for setting in (*_deprecated.SETTINGS.values(), *(name for name, _ in _deprecated.SETTING_VALUES)):
        check_name(setting)


PUBLIC_IMPORTS = {
    "from itl.sklearn import ITLClassifier": "itl.apps.scikit_learn",
    "import itl.sklearn": "itl.apps.scikit_learn",
    "from itl.nets import Foreign": "itl.nets.ModuleAdapter",
    "from itl.specialists.base import Here, Specialist, View": "itl.specialists.Batch",
    "from itl.observer import Observer": "itl.callbacks.Callback",
    "from itl import saving": "itl.checkpoint.learner_state",
    "import itl.model.folder": "itl.apps.model.folder",
    "from itl.model import change": "itl.apps.model.edit",
    "from itl.images import read_images, scan": "itl.apps.images.scan_folder",
    "from itl.teach import Options, Teacher; Teacher.due": "itl.apps.teaching.TeachingOptions",
}


@pytest.mark.parametrize("statement", PUBLIC_IMPORTS)
def test_old_public_import_works_in_a_new_process(statement: str) -> None:
    done = run_fresh(statement, on_warning="always")
    assert done.code == 0, done.err
    assert "<string>:1: DeprecationWarning" in done.err, "the warning points at the line that uses the old name"
    assert f"use {PUBLIC_IMPORTS[statement]}" in done.err


def test_current_names_do_not_warn() -> None:
    code = "import itl, itl.learner, itl.apps.model, itl.cli.app, itl.experiments.run, itl.callbacks.base"
    done = run_fresh(code, on_warning="error")
    assert done.code == 0, done.err


def test_import_itl_does_not_import_torch() -> None:
    subprocess.run([sys.executable, "-c", "import itl, sys; assert 'torch' not in sys.modules"], check=True)


def test_unknown_names_are_still_errors() -> None:
    with pytest.raises(ImportError):
        import_module("itl.model.no_such_module")
    with pytest.raises(AttributeError, match="no attribute 'NoSuchName'"):
        resolve("itl.nets.NoSuchName")


@pytest.mark.parametrize("path", _deprecated.MEMBERS)
def test_old_members_map_to_existing_members(path: str) -> None:
    cls = resolve(path)
    fields = getattr(cls, "__dataclass_fields__", {})
    source = inspect.getsource(cls)
    for old, new in _deprecated.MEMBERS[path].items():
        assert isinstance(vars(cls)[old], _deprecated._OldMember)
        assert new in fields or hasattr(cls, new) or f"self.{new}" in source or f" {new}:" in source, new


@pytest.mark.parametrize("path", _deprecated.PARAMETERS)
def test_old_parameters_map_to_existing_parameters(path: str) -> None:
    parameters = inspect.signature(resolve_name(path)).parameters
    assert set(_deprecated.PARAMETERS[path].values()) <= set(parameters)


def test_renamed_parameter_is_accepted_with_a_warning() -> None:
    def define(callback: int = 0) -> int:
        return callback

    learn = _deprecated.rename_parameters(define, {"observer": "callback"})
    with pytest.warns(DeprecationWarning, match=r"argument observer of .*define\(\) is deprecated, use callback"):
        assert learn(observer=3) == 3
    with pytest.raises(TypeError, match="both observer and callback"):
        learn(observer=3, callback=4)


def test_renamed_attribute_reads_and_writes_the_new_one() -> None:
    @dataclass
    class Thing:
        new: int = 1

    _deprecated.rename_members(Thing, {"old": "new"})
    thing: Any = Thing()
    for read in (lambda: thing.old, lambda: Thing(old=1).new, lambda: Thing.old):  # type: ignore[call-arg, attr-defined]
        with pytest.warns(DeprecationWarning, match=r"old.* is deprecated, use new"):
            assert read() == 1
    with pytest.warns(DeprecationWarning, match=r"Thing.old is deprecated, use new"):
        thing.old = 2
    assert thing.new == 2


def test_method_is_overridden_and_called_under_its_old_name() -> None:
    class Base:
        def on_stop(self) -> str:
            return "default"

    class Early(Base):
        def on_stop(self) -> str:
            return "early"

    _deprecated.rename_members(Base, {"stops": "on_stop"})
    with pytest.warns(DeprecationWarning, match=r"method Old.stops is deprecated, use on_stop"):

        class Old(Base):
            def stops(self) -> str:
                return f"overridden {super().stops()}"  # type: ignore[misc]

    class New(Old):
        def on_stop(self) -> str:
            return "new"

    with pytest.warns(DeprecationWarning, match=r"Base.stops is deprecated, use on_stop"):
        assert Old().on_stop() == "overridden default"
    for cls, expected in ((Base, "default"), (Early, "early"), (New, "new")):
        stopped: Any = cls()
        with pytest.warns(DeprecationWarning, match=rf"{cls.__name__}.stops is deprecated, use on_stop"):
            assert stopped.stops() == expected


def test_network_with_old_method_names_works() -> None:
    import torch

    from itl import nets

    with pytest.warns(DeprecationWarning, match=r"method Old.check is deprecated, use validate_input"):

        class Old(nets.Net):
            def check(self, shape: tuple[int, int, int]) -> None:
                raise ValueError(shape)

    with pytest.raises(ValueError, match="1, 2, 3"):
        Old().validate_input((1, 2, 3))
    net: Any = nets.build("resnet8", 4, width=4)
    before = net.classifier.weight.clone()
    with pytest.warns(DeprecationWarning, match=r"Net.redraw_classifier is deprecated, use reinitialize_classifier"):
        net.redraw_classifier(torch.Generator().manual_seed(1))
    assert not torch.equal(before, net.classifier.weight)
    with pytest.warns(DeprecationWarning, match=r"Net.place is deprecated, use classifier_name"):
        assert net.place == "classifier"


def test_configuration_and_recorder_work_under_their_old_names() -> None:
    from itl.experiments.config import Config
    from itl.experiments.recorder import Recorder
    from itl.specialists import Phase

    with pytest.warns(DeprecationWarning, match=r"Config.of is deprecated, use from_dict"):
        assert Config.of({"seed": 3}) == Config(seed=3)  # type: ignore[attr-defined]
    for old, new in (("opens", "start"), ("closes", "finish")):
        with pytest.warns(DeprecationWarning, match=rf"Recorder.{old} is deprecated, use {new}"):
            assert getattr(Recorder, old) is getattr(Recorder, new)
    common: dict[str, Any] = {"name": "closing", "epochs": 1, "loss": print, "parameters": {}}
    phase, messages = with_warnings(lambda: Phase(over="memory", batch=4, descent="sgd", **common))
    assert phase == Phase(data="memory", batch_size=4, optimizer="sgd", **common)  # type: ignore[arg-type]
    assert len(messages) == 3


def test_memory_policy_with_old_hook_names_is_called() -> None:
    from itl.memory import Candidates

    with pytest.warns(DeprecationWarning, match=r"method Old.(foresee|settle) is deprecated"):

        class Old(Candidates):
            def foresee(self, epoch: int, labels: Any, sight: Any) -> Any:
                return labels + epoch

            def settle(self, foreseen: Any) -> None:
                self.settled = foreseen

    candidates = Old.__new__(Old)
    candidates.commit_epoch(candidates.prepare_epoch(2, 3, None))  # type: ignore[arg-type]
    assert candidates.settled == 5


def test_specialist_with_old_hook_names_trains_as_before() -> None:
    import torch

    from itl.settings import SpecialistSettings
    from itl.specialists.losses import cross_entropy, squared_error
    from itl.specialists.sgd import SGD
    from support.tiny import tiny_learner, tiny_stream

    calls: list[str] = []

    def define() -> type[SGD]:
        class Old(SGD):
            name = "old"
            views = 2
            stores_logits = True

            @property
            def draws(self) -> int:
                return 1

            def task_starts(self) -> None:
                super().task_starts()  # type: ignore[misc]
                calls.append(f"task {self.context.task} after {self.context.past}")

            def loss(self, net: Any, now: Any, pasts: tuple[Any, ...]) -> Any:
                loss = super().loss(net, now, ())
                now.logits = now.said
                assert len(now.others) == 1
                for past in pasts:
                    loss = loss + squared_error(net(past.x), past.logits) + cross_entropy(net(past.x), past.y)
                return loss

        return Old

    old_class, messages = with_warnings(define)
    assert "method Old.task_starts is deprecated, use on_task_start" in messages
    stream = tiny_stream()
    learner = tiny_learner("derpp")
    learner.prepare(stream.tasks[0])
    learner.specialist = old_class(SpecialistSettings(name="old", epochs=1))
    _, messages = with_warnings(lambda: [learner.learn(task) for task in stream.tasks[:2]])
    assert calls == ["task 0 after ()", "task 1 after (0, 1)"]
    assert {"Batch.said is deprecated, use outputs", "Batch.logits is deprecated, use stored_logits"} <= set(messages)
    assert learner.memory.logits is not None
    assert torch.isfinite(learner.memory.logits).all()
    assert learner.memory.logits.any()


def test_setting_value_of_an_older_version_is_mapped() -> None:
    from itl.settings import build

    settings, messages = with_warnings(lambda: build({"specialist": {"name": "er-apart"}}))
    assert settings.specialist.name == "er-separate"
    assert "specialist.name=er-apart is deprecated, use specialist.name=er-separate" in messages


def test_callback_with_old_hook_names_is_called() -> None:
    from itl.callbacks import Callback
    from support.tiny import tiny_learner, tiny_stream

    rounds: list[int] = []
    with pytest.warns(DeprecationWarning, match=r"method Old.round_ends is deprecated, use on_round_end"):

        class Old(Callback):
            def round_ends(self, learner: Any, stage: Any, epoch: int, loss: float) -> None:
                rounds.append(epoch)

    tiny_learner("er", callback=Old()).learn(tiny_stream().tasks[0])
    assert rounds == [1, 2]
