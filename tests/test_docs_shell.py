"""The `itl` commands in the shell blocks of the pages run as printed, with a small network and few steps."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from itl import presets
from itl.apps.teaching import default_settings
from itl.settings import Settings, build
from support.command_line import run_in_process
from support.image_folders import write_images
from support.tiny import TINY
from test_docs import PAGES, ROOT, code_blocks

# Pages whose commands run one after another in one folder.
TOGETHER = (
    "README.md",
    "docs/index.md",
    "docs/tutorials/first-run.md",
    "docs/tutorials/add-a-method.md",
    "docs/howto/export.md",
    "docs/howto/logging.md",
    "docs/howto/reproduce-a-table.md",
    "docs/howto/resume.md",
    "docs/howto/search-settings.md",
    "docs/methods.md",
    "docs/report.md",
    "docs/scaling.md",
    "docs/settings.md",
)
OWN_DATA, MODEL_FOLDER = "docs/own-data.md", "docs/model-folder.md"  # each in a separate folder
# Commands that take too long, never end, or need a dataset or packages: a part of each, and the tests of such commands.
ELSEWHERE = {
    "bench": "tests/bench",
    "er-heavy": "tests/test_contributing.py",
    "learn model photos": "tests/cli/test_cli_backbone.py",
    "run --stream seq-cifar10": "tests/streams/test_streams_cifar.py",
    "runs/mine": "tests/cli/test_cli_sweep.py",
    "runs/paper-table1": "tests/cli/test_cli_sweep.py",
    "search": "tests/experiments/search",
    "searches/": "tests/experiments/search",
    "serve": "tests/apps/server",
    "sweep": "tests/cli/test_cli_sweep.py",
}
PACKAGES = ("matplotlib", "onnx", "onnxscript", "tensorboard", "yaml")


def shell_commands(page: str) -> list[list[str]]:
    """Arguments of the `itl` commands in the shell blocks of a page that are not tested elsewhere."""
    lines = [line for block in code_blocks(ROOT / page, "sh") for line in block.replace("\\\n", " ").splitlines()]
    commands = [words[1:] for line in lines if (words := shlex.split(line, comments=True))[:1] == ["itl"]]
    return [words for words in commands if not is_tested_elsewhere(words)]


def is_tested_elsewhere(words: list[str]) -> bool:
    return "--dry-run" not in words and any(re.search(rf"(^| ){part}", " ".join(words)) for part in ELSEWHERE)


def run_all(page: str) -> None:
    """Run the commands of a page in the current folder."""
    for words in shell_commands(page):
        outcome = run_in_process(*words)
        assert outcome.code == 0, f"{page}: itl {shlex.join(words)}: {outcome.err}"


@pytest.fixture
def small_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty folder, and methods whose defaults are a small network and few steps."""
    for package in PACKAGES:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ITL_CACHE", "off")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # `itl learn` would use more, also in the tests that follow
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # the pages say what happens on a CPU

    def build_small(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> Settings:
        return build(defaults, {**TINY, "specialist.steps": 20}, given)

    monkeypatch.setattr(presets, "build", build_small)
    for name in ("SPECIALIST_EPOCHS", "MEMORY_EPOCHS"):
        monkeypatch.setattr(default_settings, name, (3, 3))


def test_every_command_runs_here_or_is_tested_elsewhere() -> None:
    here = {*TOGETHER, OWN_DATA, MODEL_FOLDER}
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        assert name in here or not shell_commands(name), f"no test runs the commands of {name}"
    for test in ELSEWHERE.values():
        assert (ROOT / test).exists(), test


@pytest.mark.slow
@pytest.mark.usefixtures("small_defaults")
def test_commands_of_most_pages_run() -> None:
    write_images(Path("monday"), "cat", "dog")
    write_images(Path("tuesday"), "dog", "eel", seed=1)
    Image.new("RGB", (20, 30)).save("photo.jpg")
    (grid,) = code_blocks(ROOT / "docs" / "scaling.md", "yaml")
    Path("mine.yaml").write_text(grid)
    shutil.copytree(ROOT / "results" / "seq-digits" / "test", "results/seq-digits/test")
    assert run_in_process("run").code == 0  # the README does this by make demo
    for page in TOGETHER:
        run_all(page)


@pytest.mark.slow
@pytest.mark.usefixtures("small_defaults")
def test_commands_of_the_own_images_page_run() -> None:
    exec(code_blocks(ROOT / OWN_DATA, "python")[0], {})  # writes the folders monday and tuesday
    run_all(OWN_DATA)
    assert any(Path("mistakes").iterdir())


@pytest.mark.slow
@pytest.mark.usefixtures("small_defaults")
def test_commands_of_the_model_folder_page_run() -> None:
    write_images(Path("first"), "cat", "dog")
    write_images(Path("second"), "eel", "fox")
    run_all(MODEL_FOLDER)
