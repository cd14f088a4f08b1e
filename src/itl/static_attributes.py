"""Class attributes read from source files, because importing the classes imports torch, which takes seconds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ClassSource:
    """A class as its source file defines it.

    Attributes:
        path: The file.
        node: The definition.
    """

    path: Path
    node: ast.ClassDef

    def assignments(self) -> Iterator[tuple[str, ast.expr]]:
        """Name and value of each attribute that the class itself assigns, in order."""
        for line in self.node.body:
            if isinstance(line, ast.Assign | ast.AnnAssign) and line.value is not None:
                target = line.target if isinstance(line, ast.AnnAssign) else line.targets[0]
                if isinstance(target, ast.Name):
                    yield target.id, line.value

    def literal(self, value: ast.expr, name: str) -> Any:
        """The value of an assignment.

        Raises:
            ValueError: It is not a literal.
        """
        try:
            return ast.literal_eval(value)
        except ValueError:
            place = f"{self.path.name}, line {value.lineno}"
            raise ValueError(f"{place}: {self.node.name}.{name} must be a literal") from None


@cache
def classes_in(folder: Path) -> dict[str, ClassSource]:
    """The classes that the files of a folder define, by name.

    Raises:
        ValueError: Two files define a class of the same name.
    """
    found: dict[str, ClassSource] = {}
    for path in sorted(folder.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                other = found.setdefault(node.name, ClassSource(path, node))
                if other.node is not node:
                    raise ValueError(f"{path.name} and {other.path.name} both define {node.name}; rename one of them")
    return found


def with_bases(folder: Path, name: str) -> list[ClassSource]:
    """A class and its base classes in the folder, in the order in which Python looks up attributes."""
    known = classes_in(folder)
    if name not in known:
        return []
    bases = [base.id for base in known[name].node.bases if isinstance(base, ast.Name)]
    return [known[name], *(source for base in bases for source in with_bases(folder, base))]


def inherited(folder: Path, name: str, attribute: str) -> ast.expr | None:
    """The value that a class has or inherits for an attribute; None if no class in the folder assigns it."""
    for source in with_bases(folder, name):
        values = dict(source.assignments())
        if attribute in values:
            return values[attribute]
    return None
