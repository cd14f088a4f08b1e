"""Retired names: a name that was replaced may be used only in the table of aliases and its tests.

To retire a name, rename it everywhere and add it to `RETIRED` with its replacement. The test looks for identifiers in
Python files and for code (in backticks or in code blocks) in Markdown files.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from itl import _deprecated

ROOT = Path(__file__).parents[1]
ALIASES = {"src/itl/_deprecated.py", "tests/test_deprecated.py", "tests/test_retired_names.py", "CHANGELOG.md"}
FOLDERS = ("src", "tests", "benchmarks", "docs", "examples")
RECORDS = "benchmarks/results"

# Retired identifier -> its replacement. Words that are also used with another meaning are not listed here; their old
# modules and their use as parameters of losses are rejected by tests of their own below.
RETIRED = {
    "Abreast": "RunsDisplay",
    "AfterTask": "PruningCallback",
    "Album": "MemoryImageFiles",
    "Averaged": "WeightAverage",
    "BESIDE": "OPTIONAL_TENSORS",
    "BelowMedian": "LatestValueMedianPruner",
    "Board": "ProgressTracker",
    "CellWork": "SweepJob",
    "Cells": "SweepJobs",
    "Claim": "JobLock",
    "Courier": "RayTaskCallback",
    "Descent": "OptimizerConfig",
    "Drain": "JobRunner",
    "ERApart": "ERSeparate",
    "ETIQUETTE": "CAPTURE_GATE",
    "Etiquette": "CaptureGate",
    "Events": "TensorBoardCallback",
    "Exams": "HeldOutEvaluation",
    "Foreign": "ModuleAdapter",
    "FrozenTrunk": "FoldedTrunk",
    "Gone": "WorkerStopped",
    "Grade": "GroupAccuracy",
    "GreedyCosine": "GradientSimilaritySelector",
    "Ground": "MemoryContext",
    "Here": "TaskContext",
    "Hopeless": "PrunedTrial",
    "Keeper": "CheckpointCallback",
    "Lecture": "LessonResult",
    "Leg": "StageEstimate",
    "LiveStep": "OnlineSelectionStep",
    "MOST": "a descriptive constant, such as MAX_ROUNDS",
    "Mailbox": "DriverActor",
    "Material": "LessonImages",
    "Normalise": "Normalize",
    "Observer": "Callback",
    "Observers": "CallbackList",
    "Offer": "WritePlanner",
    "OtherVersion": "UnsupportedVersion",
    "Outlook": "EtaEstimator",
    "Pace": "CheckpointThrottle",
    "Parcel": "FileBundle",
    "Part": "SettingsGroup, LabeledImages or DecodedImages",
    "ReplayRounds": "ReplayRoundPlanner",
    "Reports": "PruningActor",
    "Rounds": "RoundPlanner",
    "SampleRounds": "SampleRoundPlanner",
    "Seen": "FeaturesAndLogits",
    "Shadow": "BF16Weights",
    "Shown": "a name that says what is displayed",
    "Sight": "ModelOutputs",
    "Source": "ImageSource, DatasetSource or JobSource",
    "Span": "StepChunk",
    "Subject": "ReportData",
    "Taps": "LayerRecorder",
    "Tidings": "WorkerCallback",
    "TrialWork": "TrialJob",
    "Trials": "TrialJobs",
    "Unreadable": "TemporarilyUnreadable",
    "Verdict": "EvaluationResult",
    "View": "Batch",
    "Words": "formatting",
    "abreast": "concurrent",
    "carry_out": "run_ray_job",
    "copy_into": "copy_weights_",
    "courier": "ray_task",
    "data_over": "phase_data",
    "dual": "jvp_rules",
    "epoch_starts": "on_epoch_start",
    "er_apart": "er_separate",
    "extra_state": "state_dict",
    "flight": "stage_state",
    "for_classes": "with_new_classifier",
    "foresee": "prepare_epoch",
    "forward_mode": "math_attention",
    "freeze_trunk": "fold_trunk",
    "front": "learner",
    "hand_over": "on_generalist_start",
    "judge": "evaluate",
    "judged": "evaluated",
    "judges": "held-out samples",
    "jumps": "redraws_classifier",
    "last_wins": "last_write_per_slot",
    "lean": "ema_update_",
    "lecture": "lesson_result",
    "legs": "stage_estimate",
    "legs_of": "estimate_stages",
    "looks_up": "lookup_inputs",
    "memory_updated": "on_memory_update",
    "needs_policy": "required_policy",
    "normalise": "normalize",
    "outlook": "eta",
    "parcels": "file_sync",
    "pasts": "replay_batches",
    "quotas": "class_quotas",
    "resting": "stepper_cache",
    "restore_twin": "restore_copy",
    "round_ends": "on_round_end",
    "seal": "write_checksums",
    "settle": "commit_epoch",
    "shadow": "bf16_weights",
    "stage_begins": "on_stage_start",
    "stage_ends": "on_stage_end",
    "start_from": "load_backbone_weights",
    "take_back": "on_generalist_end",
    "task_ends": "on_task_end",
    "task_starts": "on_task_start",
    "tidy": "remove_generations",
    "turns_gradients": "transforms_gradients",
    "twin": "frozen_copy",
    "widen": "grow_outputs",
    "worn": "use_bf16_weights",
}

# Retired parameter -> its replacement, in the packages with losses.
RETIRED_PARAMETERS = {"now": "batch", "pasts": "replay_batches", "said": "logits", "here": "context"}
PACKAGES_WITH_LOSSES = ("specialists", "replay", "gradients", "generalists")


ANY_RETIRED = re.compile(rf"\b(?:{'|'.join(RETIRED)})\b")


def python_names(path: Path) -> Iterator[tuple[int, str]]:
    """(line, identifier) of every name in a Python file, including those inside f-strings."""
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
    if not ANY_RETIRED.search(path.read_text(encoding="utf-8")):  # reading tokens is slow
        return iter(())
    names = python_names(path) if path.suffix == ".py" else markdown_names(path)
    return ((line, name) for line, name in names if name in RETIRED)


def test_retired_names_are_not_used() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name} was renamed to {RETIRED[name]}"
        for path in documents()
        for line, name in uses(path)
    ]
    assert not found, "\n" + "\n".join(found)


def module_uses(path: Path) -> Iterator[tuple[int, str]]:
    """(line, old module) of every use of a module that has moved.

    An entry-point group may have the name of an old module. That name is a use only in an import or before a dot.
    """
    groups = [old for old in _deprecated.MODULES if old in _deprecated.ENTRY_POINT_GROUPS]
    others = _deprecated.MODULES.keys() - set(groups)
    old, group = ("|".join(sorted(map(re.escape, names), key=len, reverse=True)) for names in (others, groups))
    pattern = re.compile(rf"(?<![\w.])(?:(?:import|from) ({group})\b|({group})(?=\.\w)|({old})(?!\w))")
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        yield from ((number, match[1] or match[2] or match[3]) for match in pattern.finditer(line))


def test_retired_module_paths_are_not_used() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {old} moved to {_deprecated.MODULES[old]}"
        for path in documents()
        for number, old in module_uses(path)
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "old"),
    [
        ("from itl.methods import get", "itl.methods"),
        ("import itl.methods", "itl.methods"),
        ("`itl.methods.settings_for` returns them", "itl.methods"),
        ("import itl.sklearn", "itl.sklearn"),
        ('[project.entry-points."itl.methods"]', None),
        ("the entry point group `itl.methods`. It", None),
    ],
)
def test_retired_module_path_is_found(tmp_path: Path, text: str, old: str | None) -> None:
    path = tmp_path / "example.md"
    path.write_text(text)
    assert [name for _, name in module_uses(path)] == ([] if old is None else [old])


def test_retired_modules_do_not_exist() -> None:
    """An old module would hide its alias, and importing it would not warn."""
    found = [
        old
        for old in _deprecated.MODULES
        if (folder := ROOT / "src" / old.replace(".", "/")).is_dir() or folder.with_suffix(".py").exists()
    ]
    assert not found


def test_retired_parameters_of_losses_are_not_used() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: parameter {node.arg} was renamed to {RETIRED_PARAMETERS[node.arg]}"
        for package in PACKAGES_WITH_LOSSES
        for path in sorted((ROOT / "src" / "itl" / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.arg) and node.arg in RETIRED_PARAMETERS
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
def test_retired_name_is_found(tmp_path: Path, suffix: str, text: str) -> None:
    path = tmp_path / f"example{suffix}"
    path.write_text(text)
    assert [name for _, name in uses(path)] == ["Observer"]


def test_ordinary_words_are_not_reported(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text('"""Here a View of the Pool."""\n# Observer\nx = "Source"\n')
    assert not list(uses(path))
