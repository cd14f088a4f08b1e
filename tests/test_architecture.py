"""Imports between packages follow the table in docs/architecture.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "itl"
PAGE = ROOT / "docs" / "architecture.md"
TABLE_HEADER = "| package | what it is | may import |"
# Packages and top-level modules of itl.
PACKAGES = sorted(path.stem for path in SOURCE.iterdir() if (path / "__init__.py").exists() or path.suffix == ".py")


@dataclass(frozen=True)
class Rule:
    """Packages that a package may import, and whether type annotations may use any package."""

    allowed: set[str]
    any_annotation: bool


@dataclass(frozen=True)
class Import:
    """An import of one of this package's packages."""

    package: str
    type_checking: bool
    line: int


def read_rules() -> dict[str, Rule]:
    """The rules in the table of the page; ° marks packages whose annotations may use any package."""
    rules = {}
    table = PAGE.read_text().partition(TABLE_HEADER)[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)`(°?) \| [^|]+ \|([^|]*)\|$", table, re.MULTILINE)
    for package, mark, allowed in rows:
        names = set(re.findall(r"`(\w+)`", allowed))
        rules[package] = Rule(set(PACKAGES) if "any package" in allowed else names, bool(mark))
    return rules


RULES = read_rules()


def source_files(package: str) -> list[Path]:
    return sorted((SOURCE / package).rglob("*.py")) or [SOURCE / f"{package}.py"]


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports_of(package: str) -> list[tuple[Path, Import]]:
    """The imports of itl's packages in each file of a package."""
    return [(path, found) for path in source_files(package) for found in find_imports(parse(path))]


def find_imports(tree: ast.AST, type_checking: bool = False) -> Iterator[Import]:
    """Imports of itl's packages anywhere in a module, including those inside functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            paths = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used in this code base"
            paths = [f"itl.{alias.name}" for alias in node.names] if node.module == "itl" else [node.module or ""]
        else:
            guard = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
            yield from find_imports(node, type_checking or guard)
            continue
        for path in paths:
            top, _, rest = path.partition(".")
            package = rest.split(".")[0]
            if top == "itl" and package in PACKAGES:
                yield Import(package, type_checking, node.lineno)


def test_table_lists_every_package() -> None:
    assert set(RULES) == set(PACKAGES) - {"__init__", "__main__"}, "update the table in docs/architecture.md"
    for package, rule in RULES.items():
        assert rule.allowed <= set(PACKAGES), f"{package} may import a package that does not exist"


@pytest.mark.parametrize("package", RULES)
def test_package_imports_only_what_the_table_allows(package: str) -> None:
    rule = RULES[package]
    violations = [
        f"{path.relative_to(SOURCE)}:{found.line} imports itl.{found.package}"
        for path, found in imports_of(package)
        if found.package not in rule.allowed | {package} and not (found.type_checking and rule.any_annotation)
    ]
    assert not violations, f"not allowed by docs/architecture.md: {'; '.join(violations)}"


def test_table_lists_no_unused_import() -> None:
    for package, rule in RULES.items():
        if rule.allowed != set(PACKAGES):
            used = {found.package for _, found in imports_of(package)}
            assert rule.allowed - {"errors"} <= used, f"{package} does not import {rule.allowed - used}"


def test_imports_have_no_cycle() -> None:
    remaining = {package: rule.allowed - {package} for package, rule in RULES.items()}
    while remaining:
        leaves = {package for package, imported in remaining.items() if not imported & set(remaining)}
        assert leaves, f"these packages import each other: {sorted(remaining)}"
        remaining = {package: imported for package, imported in remaining.items() if package not in leaves}


def test_imports_are_found_in_functions_and_type_checking_blocks() -> None:
    code = (
        "from typing import TYPE_CHECKING\nimport itl.experiments.run\nfrom itl import streams, UserError\n"
        "if TYPE_CHECKING:\n    from itl.learner import Learner\n\n"
        "def f():\n    from itl.replay.epoch_plan import plan\n"
    )
    assert list(find_imports(ast.parse(code))) == [
        Import("experiments", False, 2),
        Import("streams", False, 3),
        Import("learner", True, 5),
        Import("replay", False, 8),
    ]


# Attributes of other libraries' objects that have the name of a private member of some package of itl.
FOREIGN_ATTRIBUTES = {"input._version", "call.x._version", "segment._replace"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_definitions(tree: ast.AST) -> set[str]:
    """Private functions, classes, variables and attributes that a module defines."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.attr if isinstance(node, ast.Attribute) else node.id)
    return {name for name in names if is_private(name)}


def private_uses(tree: ast.AST, other_packages: set[str]) -> Iterator[str]:
    """Uses of private members that only other packages define, and imports of private names of this project."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in other_packages:
            yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("itl."):
            yield from (f"{node.lineno}: {alias.name}" for alias in node.names if alias.name in other_packages)


def test_no_private_member_of_another_package_is_used() -> None:
    trees = {package: {path: parse(path) for path in source_files(package)} for package in RULES}
    own = {package: set().union(*map(private_definitions, files.values())) for package, files in trees.items()}
    found = []
    for package, files in trees.items():
        others = set().union(*(names for name, names in own.items() if name != package)) - own[package]
        for path, tree in files.items():
            uses = private_uses(tree, others)
            found += [
                f"{path.relative_to(SOURCE)}:{use}" for use in uses if use.split(" ")[1] not in FOREIGN_ATTRIBUTES
            ]
    assert not found, "\n".join(found)


def test_private_members_are_found() -> None:
    code = "from itl.learner.stages import _adapt\nlearner._pool(task)\nself._pool_cache = 1\nself._own\n"
    assert list(private_uses(ast.parse(code), {"_pool", "_adapt"})) == ["1: _adapt", "2: learner._pool"]
    assert private_definitions(ast.parse(code + "def _f(): pass\n")) == {"_pool_cache", "_f"}
