"""Retired names do not come back: a name that was replaced is used nowhere outside the table of aliases.

To retire a name, rename it everywhere and add it to `RETIRED` with its replacement. The test looks for identifiers in
Python files and for code (in backticks or in code blocks) in Markdown files.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from itl import _deprecated

ROOT = Path(__file__).parents[1]
ALIASES = {"src/itl/_deprecated.py", "tests/test_deprecated.py", "tests/test_retired_names.py", "CHANGELOG.md"}
FOLDERS = ("src", "tests", "benchmarks", "docs")
RECORDS = "benchmarks/results"

# Retired identifier -> its replacement. Still to retire: Here, Part, Pool, Source and View, which have other meanings.
RETIRED = {
    "ETIQUETTE": "CAPTURE_GATE",
    "Etiquette": "CaptureGate",
    "Exams": "HeldOutEvaluation",
    "Foreign": "ModuleAdapter",
    "Ground": "MemoryContext",
    "Keeper": "CheckpointCallback",
    "Lecture": "LessonResult",
    "Leg": "StageEstimate",
    "LiveStep": "OnlineSelectionStep",
    "Normalise": "Normalize",
    "Observer": "Callback",
    "Observers": "CallbackList",
    "Pace": "CheckpointThrottle",
    "ReplayRounds": "ReplayRoundPlanner",
    "SampleRounds": "SampleRoundPlanner",
    "Shadow": "BF16Weights",
    "Sight": "ModelOutputs",
    "Span": "StepChunk",
    "Verdict": "EvaluationResult",
    "Averaged": "WeightAverage",
    "ERApart": "ERSeparate",
    "Taps": "LayerRecorder",
    "data_over": "phase_data",
    "epoch_starts": "on_epoch_start",
    "er_apart": "er_separate",
    "extra_state": "state_dict",
    "hand_over": "on_generalist_start",
    "legs_of": "estimate_stages",
    "looks_up": "lookup_inputs",
    "needs_policy": "required_policy",
    "pasts": "replay_batches",
    "restore_twin": "restore_copy",
    "take_back": "on_generalist_end",
    "task_starts": "on_task_start",
    "turns_gradients": "transforms_gradients",
}


def python_names(path: Path) -> Iterator[tuple[int, str]]:
    """(line, identifier) of every name in a Python file, those inside f-strings included."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string
        elif token.type == tokenize.STRING and re.match(r"\w*[fF]", token.string):
            for field in re.findall(r"\{([^{}]*)\}", token.string):
                yield from ((token.start[0], name) for name in re.findall(r"[A-Za-z_]\w*", field))


def markdown_names(path: Path) -> Iterator[tuple[int, str]]:
    """(line, identifier) of every word in the code spans and code blocks of a Markdown file."""
    block = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            block = not block
            continue
        for code in [line] if block else re.findall(r"`([^`]+)`", line):
            yield from ((number, name) for name in re.findall(r"[A-Za-z_]\w*", code))


def documents() -> list[Path]:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")]
    files += ROOT.glob("*.md")
    return sorted(
        path
        for path in files
        if (name := path.relative_to(ROOT).as_posix()) not in ALIASES and not name.startswith(RECORDS)
    )


def uses(path: Path) -> Iterator[tuple[int, str]]:
    names = python_names(path) if path.suffix == ".py" else markdown_names(path)
    return ((line, name) for line, name in names if name in RETIRED)


def test_retired_names_are_not_used() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name} was renamed to {RETIRED[name]}"
        for path in documents()
        for line, name in uses(path)
    ]
    assert not found, "\n" + "\n".join(found)


def test_retired_module_paths_are_not_used() -> None:
    # An entry-point group may have the name of an old module.
    retired = _deprecated.MODULES.keys() - _deprecated.ENTRY_POINT_GROUPS.keys()
    old = "|".join(sorted(map(re.escape, retired), key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w.])({old})(?!\w)")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]} moved to {_deprecated.MODULES[match[0]]}"
        for path in documents()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in pattern.finditer(line)
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".py", "class Observer: pass\n"),
        (".py", "x = f'{Observer.name}'\n"),
        (".py", "learner.Observer = 1\n"),
        (".md", "Subclass `itl.Observer` for this.\n"),
        (".md", "```python\nclass Mine(Observer):\n```\n"),
    ],
)
def test_a_retired_name_is_found(tmp_path: Path, suffix: str, text: str) -> None:
    path = tmp_path / f"example{suffix}"
    path.write_text(text)
    assert [name for _, name in uses(path)] == ["Observer"]


def test_ordinary_words_are_not_taken_for_retired_names(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text('"""Here a View of the Pool."""\n# Observer\nx = "Source"\n')
    assert not list(uses(path))
