"""The documentation is correct: commands parse, code runs, links resolve, lists are complete."""

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
from itl.results.packed_runs import experiment_at, is_packed
from itl.settings import Settings, flatten
from support.tiny import TINY, tiny_images

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "results" / "README.md"])
README = ROOT / "README.md"
# Files that the reader of CONTRIBUTING.md creates.
EXAMPLE_FILES = {
    "src/itl/specialists/er_heavy.py",
    "src/itl/streams/stripes.py",
    "src/itl/memory/policies/uniform.py",
    "src/itl/nets/small_cnn.py",
}
EXAMPLE_METHOD = "er-heavy"  # tests/test_contributing.py runs it


def code_blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in `language`."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """The text of a page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def commands(page: Path, program: str) -> list[list[str]]:
    """Arguments of every command of `program`: in shell blocks, in inline code, and in output, after `$` or without."""
    blocks = re.findall(r"^ *```(?:sh)?\n(.*?)^ *```$", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = [
        line.strip().removeprefix("$ ")
        for block in blocks
        for line in block.replace("\\\n", " ").splitlines()
        if re.match(rf" *(\$ )?{program}( [a-z-]|$)", line)
    ]
    lines += re.findall(rf"`({program} [^`]+)`", prose(page))
    split_lines = [shlex.split(line, comments=True) for line in lines]
    return [words[1:] for words in split_lines if words and words[0] == program]


def all_commands(program: str) -> list[Any]:
    """Test parameters: the arguments of every command of `program` on all pages."""
    return [
        pytest.param(words, id=f"{page.name}: {shlex.join(words)}")
        for page in PAGES
        for words in commands(page, program)
    ]


# ---------------------------------------------------------------------------------------------------------- commands


@pytest.mark.parametrize("words", all_commands("make"))
def test_make_target_exists(words: list[str]) -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(words) <= set(targets)


def test_readme_begins_with_make_demo_and_make_test() -> None:
    assert [words[0] for words in commands(README, "make")[:2]] == ["demo", "test"]
    assert "```" not in README.read_text().split("```sh\nmake demo")[0]


@pytest.mark.parametrize("words", all_commands("itl"))
def test_itl_command_is_valid(words: list[str]) -> None:
    if words[0].startswith("-"):
        cli.make_context("itl", words, resilient_parsing=True)
        return
    assert words[0] in cli.commands
    if len(words) == 1 or EXAMPLE_METHOD in words:  # the text mentions the command
        return
    given = cli.commands[words[0]].make_context(words[0], words[1:]).params
    if words[0] == "run":
        given["file"] = None  # a run of the reader, which does not exist here
        for config in run_command.build_configs(given):  # refuses unknown methods and settings
            assert config.stream in streams.names()
    if words[0] == "refine":
        for settings in expand_settings(given["pairs"]):
            check_settings(settings)


def source_of(script: str) -> str:
    """The source of a module of `benchmarks` and of those that it imports."""
    source = (ROOT / "benchmarks" / f"{script}.py").read_text()
    imports = re.findall(r"^from benchmarks(?:\.(\w+))? import ([\w, ]+)", source, re.MULTILINE)
    imported = [name for module, names in imports for name in ([module] if module else re.findall(r"\w+", names))]
    return source + "".join(map(source_of, imported))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_benchmarks_exist_and_know_their_options(page: Path) -> None:
    for module, arguments in re.findall(r"\bpython benchmarks/(\w+)\.py([^`#\n]*)", page.read_text()):
        for option in re.findall(r"--[\w-]+", arguments):
            assert f'"{option}"' in source_of(module), f"{page.name}: benchmarks/{module}.py has no option {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_extras_in_the_text_exist(page: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for names in re.findall(r"'itl\[([\w,]+)\]'", page.read_text()):
        assert set(names.split(",")) <= set(extras)


# ------------------------------------------------------------------------------------------------------------- links


def slug(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.is_relative_to(ROOT), target
        assert file.exists(), f"{page.name}: {target} does not exist"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, f"{page.name}: {target} does not exist"


def is_packed_run(path: Path) -> bool:
    return is_packed(path.parent) and path.name in experiment_at(path.parent).records


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_in_the_text_exist(page: Path) -> None:
    for name in re.findall(r"`((?:src|tests|docs|benchmarks|results)/[\w./-]+)`", prose(page)):
        is_placeholder = Path(name).name.isupper()  # such as results/seq-digits/RUN
        exists = any((folder / name).exists() for folder in (ROOT, ROOT / "src" / "itl")) or is_packed_run(ROOT / name)
        assert exists or is_placeholder or name in EXAMPLE_FILES, f"{page.name}: {name} does not exist"


def test_modules_in_the_architecture_page_exist() -> None:
    for name in re.findall(r"`([a-z_]+/[a-z_]+\.py)`", (ROOT / "docs" / "architecture.md").read_text()):
        assert (ROOT / "src" / "itl" / name).exists(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_table_rows_have_equal_numbers_of_cells(page: Path) -> None:
    for table in re.findall(r"(?:^\|.*\|\n)+", page.read_text(), re.MULTILINE):
        assert len({re.sub(r"\\\||`[^`]*`", "", row).count("|") for row in table.splitlines()}) == 1, table


# ------------------------------------------------------------------------------------------------------------- lists


def listed(kind: str) -> list[str]:
    """The names in the item `- **kind**: …` of the README."""
    (text,) = re.findall(rf"^- \*\*{kind}\*\*:(.*?)(?=^- |^#|\Z)", README.read_text(), re.MULTILINE | re.DOTALL)
    return [name for name in re.findall(r"`([^`\s]+)`", text) if name not in ("Dataset", "--seeds")]


def test_readme_lists_all_methods_streams_and_commands() -> None:
    assert listed("Methods") == list(presets.METHODS)
    assert listed("Streams") == streams.names()
    assert sorted(listed("Commands")) == sorted(cli.commands)


def test_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 130


def test_readme_lists_nothing_that_exists_as_missing() -> None:
    existing = {*presets.METHODS, *cli.commands, *policy_names()} & set(listed("Not yet"))
    assert not existing, f"README.md lists {existing} under 'Not yet', but they exist"


def test_settings_page_lists_every_setting_with_its_default() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| `([^`]+)` \|", (ROOT / "docs" / "settings.md").read_text(), re.MULTILINE)
    documented = {name: json.loads(value) for name, value in rows}
    assert documented == flatten(Settings().model_dump())


def test_methods_page_lists_every_method_and_option_with_its_default() -> None:
    page = (ROOT / "docs" / "methods.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| `(\w+)` \| `([^`]+)` \|", page, re.MULTILINE)
    documented = {(specialist, option): json.loads(value) for specialist, option, value in rows}
    defaults = {name: specialists.find(name).Options().model_dump() for name in specialists.names()}
    assert documented == {(name, key): value for name, options in defaults.items() for key, value in options.items()}
    described = re.findall(r"^\| `([\w-]+)` \| [^|]+ \| \d+ \+ \d+ \|", page, re.MULTILINE)
    assert set(described) == set(specialists.names())


def test_version_is_the_same_in_all_files() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    assert project == cited[1] == itl.__version__


# -------------------------------------------------------------------------------------------------------------- code


def use_tiny_learners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `itl.Learner` build small learners that train for a few steps."""
    monkeypatch.setattr(itl, "Learner", partial(itl.Learner, settings=TINY, device="cpu"), raising=False)


def test_python_code_of_readme_and_arrays_page_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    use_tiny_learners(monkeypatch)
    images, labels = tiny_images(classes=2)
    names: dict[str, Any] = {"images": images, "labels": labels, "more_images": images, "more_labels": labels + 2}
    (code,) = code_blocks(README, "python")
    exec(code, names)
    assert names["predicted"].shape == (len(names["stream"].tasks[0].test),)
    assert names["probabilities"].shape[1] == 10
    assert 0 <= names["scores"].class_il <= names["scores"].task_il <= 100
    (code,) = code_blocks(ROOT / "docs" / "howto" / "arrays.md", "python")
    exec(code, names)
    assert names["probabilities"].shape == (len(images), 4)
    assert len(names["stream"]) == 2
