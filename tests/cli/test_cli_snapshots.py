"""The terminal output of commands at 80 and 120 columns, compared with files.

After an intended change, `ITL_UPDATE_SNAPSHOTS=1 pytest tests/cli/test_cli_snapshots.py` writes the files again; review
the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from itl.cli.app import cli
from itl.cli.commands import doctor, listing
from itl.cli.display import tables
from support.run_records import fake_run
from support.snapshots import compare_with_snapshot, terminal

SNAPSHOTS = Path(__file__).parent / "snapshots"
DOCTOR_FACTS = {
    "versions": {"itl": "0.1.0", "python": "3.11.2", "torch": "2.13.0", "numpy": "2.4.6"},
    "commit": "0123abcd",
    "platform": "Linux-6.1-x86_64",
    "hardware": {"device": "cpu", "cpu": "A CPU", "cpus": 8, "threads": 4},
    "gpus": [],
    "triton": True,
    "cache": {"folder": "~/.cache/itl/images", "bytes": 2048},
    "extras": {"report": {"matplotlib": "3.11"}, "onnx": {"onnx": None, "onnxruntime": "1.2"}},
    "free_disk_bytes": 5 << 30,
    "self_test": {"error": None, "class_il": 71.25, "seconds": 4.2},
}
COMMANDS = {
    "table": ["table", "runs", "--stream", "seq-cifar10", "--hide-missing", "--seconds"],
    "sweep": ["sweep", "grid.json", "--dry-run"],
    "methods": ["methods"],
    "methods-itl": ["methods", "itl"],
    "doctor": ["doctor"],
}
SETTINGS = {"net.name": "resnet18", "specialist.name": "er", "specialist.lr": 0.03, "tangent.lr": 0.01}
METHOD_FACTS = {
    "name": "itl",
    "about": "offline ER, then the tangent generalist",
    "specialist": "er",
    "generalist": "tangent",
    "half_pipe": True,
    "projection": True,
    "memory": "stratified",
    "stores": ["image", "label"],
    "captured": True,
    "reference": "Liu, Golatkar, Soatto, Achille, CVPR 2024",
    "note": "",
}
STREAM_SETTINGS = {
    "seq-digits": {"any": {**SETTINGS, "net.name": "resnet8", "specialist.name": "er-separate"}},
    "seq-cifar10": {"200": SETTINGS, "500": {**SETTINGS, "tangent.lr": 0.05, "specialist.options.average": 0.999}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("snapshots")
    for method, level in (("itl", 66.5), ("er", 45.25)):
        for seed in range(3):
            fake_run(folder / f"runs/{method}-{seed}", method=method, seed=seed, level=level + seed, tasks=2, classes=4)
    fake_run(folder / "runs/derpp", method="derpp", level=63.0, tasks=2, classes=4)
    (folder / "grid.json").write_text('{"methods": ["itl", "er", "derpp"], "buffers": [20, 50], "seeds": [0, 1, 2]}')
    return folder


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_output_equals_its_snapshot(
    name: str, width: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(tables, "open_console", lambda piped_width=None: terminal(width))
    monkeypatch.setattr(doctor, "describe", lambda device: dict(DOCTOR_FACTS))
    monkeypatch.setattr(doctor, "self_test", lambda device: DOCTOR_FACTS["self_test"])
    monkeypatch.setattr(listing, "describe", lambda method: dict(METHOD_FACTS))
    monkeypatch.setattr(listing, "settings_by_stream", lambda method: STREAM_SETTINGS)
    monkeypatch.setattr("itl.presets.all_methods", lambda: [None] * 2)
    cli.main(COMMANDS[name], standalone_mode=False)
    lines = compare_with_snapshot(capsys.readouterr().out, SNAPSHOTS / f"{name}-{width}.txt")
    copied = ("  itl run", "would write")  # never wrapped
    assert all(len(line) <= width for line in lines if not line.startswith(copied))
