"""Imports go one way: the table of rooms in docs/architecture.md is what the code does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

HOME = Path(__file__).parents[1]
SOURCE = HOME / "src" / "itl"
PAGE = HOME / "docs" / "architecture.md"
ROOMS = sorted(p.stem for p in SOURCE.iterdir() if (p / "__init__.py").exists() or p.suffix == ".py")


@dataclass(frozen=True)
class Rule:
    allowed: set[str]
    types_are_free: bool


def rules() -> dict[str, Rule]:
    """The table's rows `| room | what it is | may import |`."""
    out = {}
    for room, free, allowed in re.findall(r"^\| `(\w+)`(°?) \| [^|]+ \|([^|]*)\|$", PAGE.read_text(), re.MULTILINE):
        named = set(re.findall(r"`(\w+)`", allowed))
        out[room] = Rule(set(ROOMS) if "any package" in allowed else named, bool(free))
    return out


RULES = rules()


def files(room: str) -> list[Path]:
    return sorted((SOURCE / room).rglob("*.py")) or [SOURCE / f"{room}.py"]


def imports(tree: ast.AST, types: bool = False) -> Iterator[tuple[str, bool, int]]:
    """(room, only for the type checker, line) of every import of this package's, wherever it stands."""
    for node in ast.iter_child_nodes(tree):
        here = types or (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"))
        if isinstance(node, ast.Import):
            yield from ((room, here, node.lineno) for alias in node.names for room in _room(alias.name))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            paths = [f"itl.{a.name}" for a in node.names] if node.module == "itl" else [node.module or ""]
            yield from ((room, here, node.lineno) for path in paths for room in _room(path))
        else:
            yield from imports(node, here)


def _room(path: str) -> list[str]:
    top, _, rest = path.partition(".")
    return [rest.split(".")[0]] if top == "itl" and rest.split(".")[0] in ROOMS else []


def test_every_room_is_in_the_table_and_every_row_is_a_room() -> None:
    assert set(RULES) == set(ROOMS) - {"__init__", "__main__"}, "write the room into the table of docs/architecture.md"
    for room, rule in RULES.items():
        assert rule.allowed <= set(ROOMS), f"{room} may import a room that does not exist"


@pytest.mark.parametrize("room", RULES)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    rule = RULES[room]
    wrong = [
        f"{path.relative_to(SOURCE)}:{line} imports itl.{other}"
        for path in files(room)
        for other, types, line in imports(ast.parse(path.read_text()))
        if other not in rule.allowed | {room} and not (types and rule.types_are_free)
    ]
    assert not wrong, f"docs/architecture.md does not allow this: {'; '.join(wrong)}"


def test_the_table_allows_nothing_that_is_not_needed() -> None:
    for room, rule in RULES.items():
        if rule.allowed != set(ROOMS):
            needed = {other for path in files(room) for other, *_ in imports(ast.parse(path.read_text()))}
            assert rule.allowed - {"errors"} <= needed, f"{room} does not import {rule.allowed - needed}"


def test_rooms_form_an_order() -> None:
    """There is no circle of imports."""
    waiting = {room: rule.allowed - {room} for room, rule in RULES.items()}
    while waiting:
        free = {room for room, others in waiting.items() if not others & set(waiting)}
        assert free, f"these rooms import one another: {sorted(waiting)}"
        waiting = {room: others for room, others in waiting.items() if room not in free}


def test_a_wrong_import_is_found_wherever_it_hides() -> None:
    code = (
        "from typing import TYPE_CHECKING\nimport itl.experiments.run\nfrom itl import streams, UserError\n"
        "if TYPE_CHECKING:\n    from itl.learner import Learner\n\ndef f():\n    from itl.replay.plan import plan\n"
    )
    found = list(imports(ast.parse(code)))
    assert found == [("experiments", False, 2), ("streams", False, 3), ("learner", True, 5), ("replay", False, 8)]
