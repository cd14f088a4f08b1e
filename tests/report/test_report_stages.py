"""The picture of a run's stages is drawn from its record alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from itl import UserError
from itl.report import draw_stages
from itl.results import Folder

pytest.importorskip("matplotlib")


def line(kind: str, task: int, stage: str, accuracy: float) -> dict[str, object]:
    return {"kind": kind, "task": task, "stage": stage, "class_il": accuracy}


@pytest.mark.parametrize("stages", [("specialist", "tangent", "projection"), ("specialist",), ("specialist", "linear")])
def test_every_kind_of_run_can_be_drawn(stages: tuple[str, ...], tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run")
    folder.create({"method": "itl", "stream": "seq-digits", "buffer": 50})
    for task in (1, 2):
        for stage in stages:
            for kind, accuracy in (("curve", 50.0), ("curve", 60.0), ("end", 61.0)):
                folder.append(line(kind, task, stage, accuracy))
    draw_stages(folder.path, tmp_path / "stages.png")
    assert (tmp_path / "stages.png").stat().st_size > 5_000


def test_a_run_cut_short_is_drawn_as_far_as_it_came(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run")
    folder.create({"method": "itl", "stream": "seq-digits", "buffer": 50})
    folder.append(line("curve", 1, "specialist", 50.0))
    draw_stages(folder.path, tmp_path / "stages.png")
    assert (tmp_path / "stages.png").exists()


def test_a_folder_that_is_no_run_gets_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no config\.json"):
        draw_stages(tmp_path, tmp_path / "stages.png")
