"""What suits a folder's images, and what learning them would take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from itl.apps.teaching import Teacher, TeachingOptions, plan_lessons
from itl.apps.teaching import estimate as estimating
from itl.apps.teaching.default_settings import batch_of, for_lesson, network
from itl.presets import settings_for
from support.image_folders import write_pictures
from support.tiny_lessons import QUICK


def test_the_size_suits_the_images(tmp_path: Path) -> None:
    for side, size in ((8, 32), (32, 32), (40, 32), (50, 64), (90, 128), (500, 128)):
        folder = tmp_path / str(side) / "ant"
        folder.mkdir(parents=True)
        Image.new("RGB", (side + 9, side)).save(folder / "1.png")
        (folder / "0.png").write_bytes(b"none")
        assert Teacher(tmp_path / "m", [folder.parent], TeachingOptions(device="cpu")).size == size


def test_few_images_are_learned_longer_and_networks_suit_the_machine() -> None:
    settings = settings_for("itl", None, 200)
    few, many, most = (for_lesson(count, 200, settings)["specialist.epochs"] for count in (20, 960, 100_000))
    assert (few, many, most) == (100, 10, 5)
    assert network(32, fast=False, weights=False)["net.name"] == "resnet8"
    assert network(128, fast=False, weights=False)["net.strided"]
    assert network(32, fast=True, weights=False) == {"net.name": "resnet18", "net.strided": False}
    assert network(32, fast=False, weights=True) == {"net.name": "resnet18", "net.strided": True}


def test_no_pass_ends_with_a_handful_of_images() -> None:
    """Batch norm over one image, at the very end of a pass, can undo what the network predicts."""
    assert [batch_of(count) for count in (5, 32, 33, 40, 64, 289, 10_000)] == [32, 32, 25, 32, 32, 31, 32]
    assert all(count % batch_of(count) == 0 or count % batch_of(count) >= 8 for count in range(8, 3000))
    lesson = for_lesson(289, 65, settings_for("itl", None, 200))
    assert (lesson["specialist.batch"], lesson["tangent.batch"], lesson["projection.batch"]) == (31, 28, 28)


def test_a_plan_counts_and_learns_nothing(tmp_path: Path) -> None:
    one = write_pictures(tmp_path / "one", "ant", each=40)
    write_pictures(one, "bee", each=8)
    (one / "stray.png").write_bytes(b"x")
    said = plan_lessons(Teacher(tmp_path / "m", [one, write_pictures(tmp_path / "two", "ant")], QUICK))
    assert not (tmp_path / "m").exists()
    first, second = said["lessons"]
    assert [(row["class"], row["train"] + row["test"], row["known"]) for row in first["classes"]] == [
        ("ant", 40, False),
        ("bee", 8, False),
    ]
    assert first["imbalance"] == first["classes"][0]["train"] / first["classes"][1]["train"]
    assert "not in a class folder" in first["problems"][0]["why"]
    assert [row["known"] for row in second["classes"]] == [True]
    assert said["estimate"]["seconds"] > 0
    assert said["estimate"]["bytes"] > 200 << 20  # a process with torch in it takes that
    json.dumps(said)


@pytest.mark.parametrize(
    ("method", "images", "before", "stages"),
    [
        ("itl", 66, 0, [(2, 32, 1.0), (2, 32, 0.5), (2, 32, 1.5)]),  # 66 are 32 and 34; 50 in memory are 32 and 18
        ("itl", 68, 40, [(3, 64, 1.0), (2, 32, 0.5), (2, 32, 1.5)]),
        ("itl-l", 68, 0, [(3, 96, 1.0), (2, 32, 0.5), (2, 32, 1.5)]),
        ("derpp", 68, 0, [(3, 96, 1.0)]),
        ("er", 40, 12, [(2, 64, 1.0)]),
    ],
)
def test_an_estimate_counts_the_steps_and_images_of_a_learn(
    monkeypatch: pytest.MonkeyPatch, method: str, images: int, before: int, stages: list[tuple[int, int, float]]
) -> None:
    """Stages by hand: steps a pass, images a step, what an image costs; a step takes 1 s and 1 s an image more."""
    monkeypatch.setattr(estimating, "_step", lambda net, x: (1.0 + len(x), 0))
    settings = settings_for(method, None, 50, {f"{s}.epochs": 3 for s in ("specialist", "tangent", "projection")})
    guess = estimating.estimate([(settings, images)], 8, 2, 50, before, "cpu")
    assert guess.seconds == pytest.approx(sum(3 * steps * (1 + taken * cost) for steps, taken, cost in stages))
