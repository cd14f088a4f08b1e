"""Default settings for a folder's images, and the estimated cost of learning them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from itl import UserError
from itl.apps.teaching import Teacher, TeachingOptions, estimate, plan_lessons
from itl.apps.teaching.default_settings import (
    LessonSize,
    batch_size,
    default_network,
    fixed_settings,
    lesson_settings,
    steps_within,
)
from itl.presets import settings_for
from itl.settings import build, flatten
from support.image_folders import write_images
from support.small_backbone import register_small_backbone
from support.tiny_lessons import TINY_OPTIONS


def test_default_image_size_fits_the_images(tmp_path: Path) -> None:
    for side, size in ((8, 32), (32, 32), (40, 32), (50, 64), (90, 128), (500, 128)):
        folder = tmp_path / str(side) / "ant"
        folder.mkdir(parents=True)
        Image.new("RGB", (side + 9, side)).save(folder / "1.png")
        (folder / "0.png").write_bytes(b"none")
        options = TeachingOptions(device="cpu", method="itl")  # otherwise photographs get a pre-trained backbone
        assert Teacher(tmp_path / "m", [folder.parent], options).image_size == size


def test_default_epochs_and_network_depend_on_images_and_device() -> None:
    settings = settings_for("itl", None, 200)
    lessons = [LessonSize(count, 0, 200, 32) for count in (20, 960, 100_000)]
    chosen = [lesson_settings(lesson, settings) for lesson in lessons]
    assert [one["specialist.epochs"] for one in chosen] == [150, 60, 60]  # the maximum: training ends sooner
    assert [one["specialist.patience"] for one in chosen] == [30, 7, 4]
    assert not default_network(32, gpu=False, pretrained=False)["net.strided"]
    assert default_network(32, gpu=False, pretrained=False)["net.name"] == "resnet8"
    assert default_network(128, gpu=False, pretrained=False)["net.strided"]
    assert default_network(32, gpu=True, pretrained=False) == {"net.name": "resnet18", "net.strided": False}
    assert default_network(32, gpu=False, pretrained=True) == {"net.name": "resnet18", "net.strided": True}


def test_time_limit_counts_the_previous_network_of_a_lesson_without_new_classes() -> None:
    settings = settings_for("itl", None, 200, {"specialist.name": "er-balanced", "generalist": "none"})
    new = LessonSize(1000, 200, 200, 12)
    known = replace(new, has_new_classes=False)
    unchanged = build(flatten(settings.model_dump()), {"specialist.options.consistency": 0.0})
    steps = [steps_within(600.0, *pair, "cpu") for pair in ((settings, new), (settings, known), (unchanged, known))]
    assert steps[0] == steps[2] > 1
    assert steps[1] == pytest.approx(0.75 * steps[0], abs=1)


@pytest.mark.parametrize(("size", "strided"), [(32, False), (128, True)])
def test_backbone_without_weights_is_trained_like_the_default_network(size: int, strided: bool) -> None:
    """With a stem that suits the images, and without stages on the memory that the time limit does not shorten."""
    lesson = LessonSize(12, 0, 100, size)
    chosen = fixed_settings(TeachingOptions(backbone="resnet18", device="cpu"), lesson)
    assert (chosen["net.strided"], chosen["generalist"]) == (strided, "none")
    own = {"net.strided": not strided, "generalist": "tangent"}
    assert (
        own.items() <= fixed_settings(TeachingOptions(backbone="resnet18", settings=own, device="cpu"), lesson).items()
    )
    pretrained = TeachingOptions(backbone="efficientnet-lite0", method="itl", device="cpu")
    assert not {"net.strided", "generalist"} & set(fixed_settings(pretrained, lesson))


def test_last_batch_of_an_epoch_is_not_small() -> None:
    """Batch norm over very few images at the end of an epoch can ruin the network's running statistics."""
    assert [batch_size(count) for count in (5, 32, 33, 40, 64, 289, 10_000)] == [32, 32, 25, 32, 32, 31, 32]
    assert all(count % batch_size(count) == 0 or count % batch_size(count) >= 8 for count in range(8, 3000))
    settings = lesson_settings(LessonSize(289, 0, 65, 32), settings_for("itl", None, 65))
    assert (settings["specialist.batch"], settings["tangent.batch"], settings["projection.batch"]) == (31, 28, 28)


def test_plan_counts_images_and_learns_nothing(tmp_path: Path) -> None:
    first = write_images(tmp_path / "one", "ant", each=40)
    write_images(first, "bee", each=8)
    (first / "stray.png").write_bytes(b"x")
    plan = plan_lessons(Teacher(tmp_path / "m", [first, write_images(tmp_path / "two", "ant")], TINY_OPTIONS))
    assert not (tmp_path / "m").exists()
    first, second = plan["lessons"]
    assert [(row["class"], row["train"] + row["test"], row["known"]) for row in first["classes"]] == [
        ("ant", 40, False),
        ("bee", 8, False),
    ]
    assert first["imbalance"] == first["classes"][0]["train"] / first["classes"][1]["train"]
    assert "not in a class folder" in first["problems"][0]["why"]
    assert [row["known"] for row in second["classes"]] == [True]
    assert plan["estimate"]["seconds"] > 0
    assert plan["estimate"]["bytes"] > 200 << 20  # the least that a process with torch takes
    json.dumps(plan)


def test_plan_refuses_a_method_that_needs_more_trained_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register_small_backbone(monkeypatch, 16)
    images = write_images(tmp_path / "one", "ant", "bee")
    options = TeachingOptions(backbone="small", method="tangent-ridge", device="cpu")
    with pytest.raises(UserError, match=r"tangent-ridge needs weights .* set net\.trained=2 or more"):
        plan_lessons(Teacher(tmp_path / "m", [images], options))
    more = replace(options, settings={"net.trained": 2})
    assert plan_lessons(Teacher(tmp_path / "m", [images], more))["method"] == "tangent-ridge"


@pytest.mark.parametrize(
    ("method", "images", "before", "stages"),
    [
        (
            "itl",
            66,
            0,
            [(2, 32, 1.0), (2, 32, 0.5), (2, 32, 1.5)],
        ),  # batches of 32 and 34, and of 32 and 18 on the memory of 50
        ("itl", 68, 40, [(3, 64, 1.0), (2, 32, 0.5), (2, 32, 1.5)]),
        ("itl-l", 68, 0, [(3, 96, 1.0), (2, 32, 0.5), (2, 32, 1.5)]),
        ("derpp", 68, 0, [(3, 96, 1.0)]),
        ("er", 40, 12, [(2, 64, 1.0)]),
    ],
)
def test_estimate_counts_steps_and_images_of_every_stage(
    monkeypatch: pytest.MonkeyPatch, method: str, images: int, before: int, stages: list[tuple[int, int, float]]
) -> None:
    """`stages`: steps per epoch, images per step, relative cost per image; a step takes 1 s plus 1 s per image."""
    monkeypatch.setattr(estimate, "_measure_step", lambda net, x: (1.0 + len(x), 0))
    settings = settings_for(method, None, 50, {f"{s}.epochs": 3 for s in ("specialist", "tangent", "projection")})
    cost = estimate.estimate_cost([(settings, images)], 8, 2, 50, before, "cpu")
    assert cost.seconds == pytest.approx(sum(3 * steps * (1 + taken * cost) for steps, taken, cost in stages))
