"""The documents are true: their commands parse, their code runs, their links lead somewhere, their lists are whole."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import itl
from itl import presets, specialists, streams
from itl.cli.app import cli
from itl.cli.commands import run as run_command
from itl.cli.parsing import expand_settings
from itl.experiments.refine import check_settings
from itl.memory import policy_names
from itl.settings import Settings, flatten
from support.tiny import TINY, tiny_images

HOME = Path(__file__).parents[1]
PAGES = sorted([*HOME.glob("*.md"), *HOME.glob("docs/**/*.md"), HOME / "results" / "README.md"])
README, CONTRIBUTING = (HOME / name for name in ("README.md", "CONTRIBUTING.md"))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def commands(page: Path, program: str) -> list[list[str]]:
    """The words of every command of `program`: lines of shell blocks, and code within the text."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    lines += re.findall(rf"`({program} [^`]+)`", prose(page))
    words = [shlex.split(line, comments=True) for line in lines]
    return [line[1:] for line in words if line and line[0] == program]


def everywhere(program: str) -> list[Any]:
    return [
        pytest.param(words, id=f"{page.name}: {shlex.join(words)}")
        for page in PAGES
        for words in commands(page, program)
    ]


# ---------------------------------------------------------------------------------------------------------- commands


@pytest.mark.parametrize("words", everywhere("make"))
def test_make_has_the_target(words: list[str]) -> None:
    targets = re.findall(r"^(\w+):", (HOME / "Makefile").read_text(), re.MULTILINE)
    assert set(words) <= set(targets)


def test_the_readme_begins_with_the_two_commands() -> None:
    assert [words[0] for words in commands(README, "make")[:2]] == ["demo", "test"]
    assert "```" not in README.read_text().split("```sh\nmake demo")[0]


@pytest.mark.parametrize("words", everywhere("itl"))
def test_an_itl_command_is_one_that_itl_takes(words: list[str]) -> None:
    if words[0].startswith("-"):
        cli.make_context("itl", words, resilient_parsing=True)
        return
    assert words[0] in cli.commands
    if len(words) == 1:  # the text speaks of the command
        return
    given = cli.commands[words[0]].make_context(words[0], words[1:]).params
    if words[0] == "run":
        given["file"] = None  # a run of the reader's own
        for config in run_command.build_configs(given):  # unknown methods and settings are refused here
            assert config.stream in streams.names()
    if words[0] == "refine":
        for settings in expand_settings(given["pairs"]):
            check_settings(settings)


# ------------------------------------------------------------------------------------------------------------- links


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.is_relative_to(HOME), target
        assert there.exists(), f"{page.name}: {target} does not exist"
        if anchor:
            assert anchor in {slug(h) for h in re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_in_the_text_exist(page: Path) -> None:
    examples = {"src/itl/specialists/heavy.py", "src/itl/streams/stripes.py", "src/itl/memory/policies/uniform.py"}
    for name in re.findall(r"`((?:src|tests|docs|benchmarks|results)/[\w./-]+)`", prose(page)):
        assert name in examples or (HOME / name).exists(), f"{page.name} names {name}"


def test_files_of_the_package_named_in_the_architecture_exist() -> None:
    for name in re.findall(r"`([a-z_]+/[a-z_]+\.py)`", (HOME / "docs" / "architecture.md").read_text()):
        assert (HOME / "src" / "itl" / name).exists(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_table_has_as_many_cells_in_every_row(page: Path) -> None:
    for table in re.findall(r"(?:^\|.*\|\n)+", page.read_text(), re.MULTILINE):
        assert len({re.sub(r"\\\||`[^`]*`", "", row).count("|") for row in table.splitlines()}) == 1, table


# ------------------------------------------------------------------------------------------------------------- lists


def listed(kind: str) -> list[str]:
    """The names in the README's paragraph `- **kind**: …`."""
    (text,) = re.findall(rf"^- \*\*{kind}\*\*:(.*?)(?=^- |^#|\Z)", README.read_text(), re.MULTILINE | re.DOTALL)
    return [name for name in re.findall(r"`([^`\s]+)`", text) if name not in ("Dataset", "--seeds")]


def test_the_readme_lists_what_there_is() -> None:
    assert listed("Methods") == list(presets.METHODS)
    assert listed("Streams") == streams.names()
    assert sorted(listed("Commands")) == sorted(cli.commands)


def test_what_the_readme_says_is_not_there_yet_is_not_there() -> None:
    there = {*presets.METHODS, *cli.commands, *policy_names()} & set(listed("Not yet"))
    assert not there, f"README.md calls {there} not yet there: move them up"


def test_the_settings_page_has_every_setting_with_its_default() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| `([^`]+)` \|", (HOME / "docs" / "settings.md").read_text(), re.MULTILINE)
    written = {name: json.loads(value) for name, value in rows}
    assert written == flatten(Settings().model_dump())


def test_the_methods_page_has_every_method_and_every_option_with_its_default() -> None:
    page = (HOME / "docs" / "methods.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| `(\w+)` \| `([^`]+)` \|", page, re.MULTILINE)
    written = {(kind, name): json.loads(value) for kind, name, value in rows}
    options = {name: specialists.find(name).Options().model_dump() for name in specialists.names()}
    assert written == {(kind, name): value for kind, those in options.items() for name, value in those.items()}
    described = re.findall(r"^\| `([\w-]+)` \| [^|]+ \| \d+ \+ \d+ \|", page, re.MULTILINE)
    assert set(described) == set(specialists.names())


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]["version"]
    cited = re.search(r"^version: (.+)$", (HOME / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    assert project == cited[1] == itl.__version__


# -------------------------------------------------------------------------------------------------------------- code


def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let learners be small ones, of a few steps."""
    monkeypatch.setattr(itl, "Learner", partial(itl.Learner, settings=TINY, device="cpu"), raising=False)


def test_the_readmes_python_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    quickly(monkeypatch)
    images, labels = tiny_images(classes=2)
    names: dict[str, Any] = {"images": images, "labels": labels, "more_images": images, "more_labels": labels + 2}
    first, second = blocks(README, "python")
    exec(first, names)
    assert names["predicted"].shape == (len(names["stream"].tasks[0].test),)
    assert names["probabilities"].shape[1] == 10
    assert 0 <= names["scores"].class_il <= names["scores"].task_il <= 100
    exec(second, names)
    assert names["probabilities"].shape == (len(images), 4)
    assert len(names["stream"]) == 2
