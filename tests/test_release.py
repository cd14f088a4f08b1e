"""The package builds, its description renders, and the files that releases rely on are consistent."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_extras_are_explained() -> None:
    page = (ROOT / "docs" / "howto" / "install.md").read_text()
    documented = re.findall(r"^\| `itl\[(\w+)\]` \|", page, re.MULTILINE)
    assert sorted(documented) == sorted(PROJECT["optional-dependencies"])


def test_pinned_versions_install_on_the_oldest_python() -> None:
    oldest = PROJECT["requires-python"].removeprefix(">=") + ".0"  # some packages need a later patch release
    pins = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    installed = [d.metadata for d in distributions() if (d.metadata["Name"], d.version) in set(pins)]
    assert len(installed) > len(pins) / 2
    refusing = [m["Name"] for m in installed if not SpecifierSet(m.get("Requires-Python", "")).contains(oldest)]
    assert not refusing, f"constraints.txt pins versions that need a newer Python than {oldest}: {refusing}"


def test_changelog_has_the_version() -> None:
    assert f"## [{PROJECT['version']}]" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflow_uses_existing_make_targets(file: Path) -> None:
    yaml = pytest.importorskip("yaml")
    workflow: dict[str, Any] = yaml.safe_load(file.read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    used = [step["run"].split()[1] for step in steps if step.get("run", "").startswith("make ")]
    assert set(used) <= set(targets)
    assert workflow["permissions"] == {"contents": "read"}


def test_workflow_tests_the_supported_python_versions() -> None:
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
    classifiers = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if "Python :: 3." in c]
    assert workflow["jobs"]["tests"]["strategy"]["matrix"]["python"] == classifiers


@pytest.mark.slow
def test_wheel_and_sdist_build_and_pass_twine(tmp_path: Path) -> None:
    pytest.importorskip("build")
    pytest.importorskip("twine")
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "-q", "--depth", "1", ROOT.as_uri(), source], check=True)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,), (sdist,) = (tmp_path / "dist").glob("*.whl"), (tmp_path / "dist").glob("*.tar.gz")
    check = [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)]
    assert subprocess.run(check, capture_output=True).returncode == 0
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("itl/")}
    tracked = subprocess.run(["git", "ls-files", "src/itl"], cwd=source, capture_output=True, text=True, check=True)
    assert packed == {name.removeprefix("src/") for name in tracked.stdout.splitlines()}
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("/LICENSE") for name in archive.getnames())
        assert not any("/tests/" in name for name in archive.getnames())  # they need tests/support
