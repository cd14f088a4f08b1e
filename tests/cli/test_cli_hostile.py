"""Untrusted folders and files: links, escape sequences, formulas, deep nesting, huge numbers."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from itl import UserError
from itl.apps.images import decoded_cache
from itl.apps.model import Model, classify_onnx
from itl.checkpoint import store
from itl.results import RunFolder
from itl.streams import mnist, tinyimagenet
from itl.streams.folder_or_zip import DirectoryTree, ZipTree
from itl.streams.unpickle import load_dict
from support.command_line import assert_refused, is_one_line_error, run_in_process
from support.run_records import fake_run
from support.tiny import TINY
from support.tiny_model import trained_model

ESCAPE = "\x1b]0;owned\x07\x1b[31m"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_model(tmp_path_factory.mktemp("hostile") / "m", settings=TINY).path


@pytest.fixture
def model(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a model in the current folder, called `m`."""
    shutil.copytree(trained, tmp_path / "m", symlinks=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "m"


def edit_state(model: Path, **changes: Any) -> None:
    generation = model / store.current(model)
    state = json.loads((generation / "state.json").read_text())
    state["notes"]["model"].update({key: value for key, value in changes.items() if key != "traits"})
    state["traits"].update(changes.get("traits", {}))
    (generation / "state.json").write_text(json.dumps(state))
    store.write_checksums(generation)
    store.set_current(model, generation.name)


# ---------------------------------------------------------------------- links


def test_links_in_a_model_folder_are_not_written_through(model: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("safe")
    names = [".CURRENT.draft", ".CURRENT.tmp", "LOCK.json", ".draft-000003", "generation-000003"]
    for name in names:
        (model / name).symlink_to(victim)
    assert run_in_process("rename", "m", "cat", "lynx").code == 0
    assert run_in_process("undo", "m").code == 0
    assert victim.read_text() == "safe"
    (model / "CURRENT").rename(tmp_path / "current")
    (model / "CURRENT").symlink_to(tmp_path / "current")
    assert_refused("rename", "m", "cat", "lynx", word="not a regular file")
    assert run_in_process("undo", "m").code == 0  # replaces the link
    assert (tmp_path / "current").read_text().startswith("generation-")


def test_links_in_a_run_folder_are_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("safe")
    run = fake_run(tmp_path / "run")
    for name in ("report.html", ".result.json.draft", ".predictions.npz", ".metrics.draft", "table.md"):
        (run / name).symlink_to(victim)
    assert run_in_process("report", str(run)).code == 0
    assert run_in_process("table", str(run), "--format", "markdown", "--out", str(run / "table.md")).code == 0
    assert victim.read_text() == "safe"
    assert "<html" in (run / "report.html").read_text()


def test_record_of_a_run_is_not_written_through_links(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    writes: dict[str, Callable[[str], None]] = {
        "result.json": lambda name: run.write(name, {}),
        "predictions.npz": lambda name: run.write_arrays(name, label=np.zeros(1)),
        "metrics.jsonl": lambda _: run.replace_lines([{}]),
    }
    for name, write in writes.items():
        victim.write_text("safe")
        (run.path / name).symlink_to(victim)
        write(name)
        assert victim.read_text() == "safe"
        assert not (run.path / name).is_symlink()
    (run.path / "metrics.jsonl").unlink()
    (run.path / "metrics.jsonl").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        run.append({})
    assert victim.read_text() == "safe"


@pytest.mark.parametrize("name", [".lock", "model", "specialists", "specialists/task-01", "tensorboard"])
def test_run_does_not_write_through_links_to_folders(tmp_path: Path, name: str) -> None:
    victim, run = tmp_path / "victim", fake_run(tmp_path / "run", stop=1)
    victim.mkdir()
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).symlink_to(victim)
    assert_refused("run", "--resume", "--out", str(run), word=f"{name} is a link")
    assert not any(victim.iterdir())


# ---------------------------------------------------------------------- no home folder


def test_missing_home_folder_disables_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("ITL_CACHE", raising=False)
    assert decoded_cache.cache_folder() is None
    decoded_cache.clear_cache()


# ---------------------------------------------------------------------- configurations

JSON_FILES = {
    "deep": "[" * 100_000,
    "deep but closed": '{"a":' * 900 + "1" + "}" * 900,
    "long number": '{"seed": ' + "9" * 5000 + "}",
    "not an object": "[]",
    "not UTF-8": b"\xff\xfe\xff",
    "null": "null",
    "numbers for names": '{"method": 5, "stream": [], "settings": {}, "resolved": {}, "buffer": {}}',
    "nested settings": '{"settings": {"specialist": {"epochs": {"epochs": []}}}}',
    "surrogate": '{"variant": "\\udcff"}',
}


@pytest.mark.parametrize("name", list(JSON_FILES))
def test_hostile_json_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    content = JSON_FILES[name]
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "config.json").write_bytes(data)
    assert_refused("run", "--config", str(tmp_path / "config.json"), "--out", str(tmp_path / "out"))
    for file in ("config.json", "result.json", "metrics.jsonl"):
        run = fake_run(tmp_path / f"run-{file}")
        (run / file).write_bytes(data + b"\n" + data if file == "metrics.jsonl" else data)
        for command in ("report", "table"):
            if file == "result.json" or (command, file) == ("report", "metrics.jsonl"):
                assert_refused(command, str(run))
            else:  # a finished run needs little of config.json, and a table needs no curves
                assert is_one_line_error(run_in_process(command, str(run)))
    run = fake_run(tmp_path / "refine")
    (run / "config.json").write_bytes(data)
    assert_refused("refine", str(run))


def test_variant_that_is_not_text_is_refused(tmp_path: Path) -> None:
    assert_refused("run", "--variant", "a\udcff", "--out", str(tmp_path / "run"))


@pytest.mark.parametrize(("name", "content"), [("search.json", b"[]"), ("study.db", b"SQLite format 4" * 100)])
def test_damaged_search_is_refused_in_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    pytest.importorskip("optuna")
    (tmp_path / name).write_bytes(content)
    assert_refused("search", "--over", "tangent.lr=0.1,0.2", "--out", str(tmp_path), word=name)


# ---------------------------------------------------------------------- models


def test_huge_memory_is_refused(model: Path) -> None:
    assert_refused("resize", "m", "99999999999999999999", word="too large")


def test_undefined_normalization_is_refused(model: Path) -> None:
    for traits in ({"std": [0.0, 1.0, 1.0]}, {"mean": [float("nan")] * 3}, {"std": [float("inf")] * 3}):
        edit_state(model, traits=traits)
        assert_refused("info", "m", word="normalization")


def test_escape_sequences_and_formulas_are_not_printed(model: Path, tmp_path: Path) -> None:
    names = [ESCAPE + "cat", "=HYPERLINK(1)", "+1", "@x"]
    history = [{"what": f"learn{ESCAPE}", "date": f"2026{ESCAPE}", "folders": [ESCAPE, "\u202egnp.exe", "\u061c"]}]
    edit_state(model, names=names, history=history)
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    for args in (("info", "m"), ("predict", "m", "a.png", "--top", "4"), ("undo", "m")):
        outcome = run_in_process(*args)
        assert outcome.code == 0
        assert not set("\x1b\x07\u202e\u061c") & set(outcome.out + outcome.err)
    edit_state(model, names=names[:2])
    cells = run_in_process("predict", "m", "a.png", "--top", "2", "--csv").out.splitlines()[1].split(",")
    assert not [cell for cell in cells if cell.startswith(("=", "+", "@"))]


def test_escape_sequences_in_tables_are_not_printed() -> None:
    from rich.text import Text

    from itl.cli.display.tables import PrintableConsole, plain_table

    table = plain_table("class")
    table.add_row(Text("cat" + ESCAPE))
    file = io.StringIO()
    PrintableConsole(file=file, width=80).print(table)
    assert "\x1b" not in file.getvalue()
    assert "cat" in file.getvalue()


def test_script_for_an_exported_model_prints_no_escape_sequence() -> None:
    line = classify_onnx.describe("a.png", ["dog", f"cat{ESCAPE}"], np.array([0.25, 0.75]))
    assert line == "a.png  cat\ufffd]0;owned\ufffd\ufffd[31m  75.0 %"


def test_sparse_file_is_refused_without_reading_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generation = model / store.current(model)
    os.truncate(generation / "tensors.safetensors", 8 << 30)
    state = (generation / "state.json").read_bytes()

    def refuse(file: Any, *_: Any) -> Any:
        assert Path(file.name).name != "tensors.safetensors", "the whole file was read"
        return hashlib.sha256(state)

    monkeypatch.setattr(hashlib, "file_digest", refuse)
    with pytest.raises(UserError, match="damaged"):
        store.read_generation(model, generation.name)


@pytest.mark.parametrize("group", ["specialist.", "net."])
@pytest.mark.parametrize("command", ["info", "check", "predict"])
def test_tensors_larger_than_the_settings_need_are_refused_without_reading_them(
    model: Path, group: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its header and its size in the list of checksums are valid."""
    generation = model / store.current(model)
    path, size = generation / "tensors.safetensors", 8 << 30
    header = json.dumps({f"{group}huge": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, size := 8 + len(header) + size)
    sums = generation / "SHA256SUMS"
    sums.write_text(re.sub(r"# \d+ bytes  tensors", f"# {size} bytes  tensors", sums.read_text()))
    store.set_current(model, generation.name)
    digest = hashlib.file_digest

    def refuse(file: Any, *args: Any) -> Any:
        assert os.fstat(file.fileno()).st_size < size, "the whole file was read"
        return digest(file, *args)

    monkeypatch.setattr(hashlib, "file_digest", refuse)
    outcome = run_in_process(command, "m", *(["m"] if command == "predict" else []))
    assert outcome.code == 2, outcome
    assert re.fullmatch(
        r"itl: \S+tensors.safetensors has 8192 MiB, more than the \d{4} MiB that a model with these settings can need; "
        r"restore it from a copy; itl undo m restores the last intact state\n",
        outcome.err,
    )
    assert run_in_process("undo", "m").code == 0
    assert run_in_process("check", "m").code == 0


def test_large_tensors_are_read_if_the_settings_need_them(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SIZE_TO_CHECK", 0)
    assert len(Model.open(model, device="cpu").classes) == 4


@pytest.mark.parametrize(("pattern", "code"), [("SHA256SUMS", 2), ("memory/*/*.png", 0)])
def test_huge_file_without_a_recorded_size_is_not_read(
    model: Path, pattern: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = model / store.current(model)
    sums = (generation / "SHA256SUMS").read_text()
    (generation / "SHA256SUMS").write_text("".join(line for line in sums.splitlines(True) if line[0] != "#"))
    store.set_current(model, generation.name)
    os.truncate(min(generation.glob(pattern)), 1 << 40)
    digest = hashlib.file_digest

    def refuse(file: Any, *args: Any) -> Any:
        assert os.fstat(file.fileno()).st_size < 1 << 40, "the whole file was read"
        return digest(file, *args)

    monkeypatch.setattr(hashlib, "file_digest", refuse)
    outcome = run_in_process("check", "m")
    assert outcome.code == code, outcome


def test_damaged_list_of_checksums_is_searched_with_little_memory(model: Path) -> None:
    generation = model / store.current(model)
    (generation / "SHA256SUMS").write_bytes(bytes(8 << 20))
    tracemalloc.start()
    assert not store.is_intact(model, generation.name)
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


def test_reader_that_closes_the_pipe_is_not_an_error() -> None:
    """The list of methods is printed without importing torch, which takes seconds."""
    command = f"{sys.executable} -m itl methods | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    first, *others = run_in_process("methods").out.splitlines(keepends=True)
    assert others
    assert (done.returncode, done.stdout, done.stderr) == (0, first, "")


def test_few_file_descriptors_are_reported_in_one_line(model: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"ulimit -n 8; {sys.executable} -m itl info m"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode in (0, 2), done.stderr
    assert "Traceback" not in done.stderr


# ---------------------------------------------------------------------- datasets


class _Reduced:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return self.parts


def _reducing_to(*parts: Any) -> _Reduced:
    """An object that is pickled as a call of any function, with any state."""
    return _Reduced(*parts)


def test_pickled_dtype_with_objects_does_not_crash() -> None:
    for state in ((3, "|", None, None, None, -1, -1, 63), (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 27)):
        dtype = _reducing_to(np.dtype, ("u1", False, True), state)
        reconstruct = np.empty(0).__reduce__()[0]
        array = _reducing_to(reconstruct, (np.ndarray, (0,), b"b"), (1, (1,), dtype, False, b"A" * 8))
        with pytest.raises(UserError, match=r"unusual dtype|array of O8"):
            load_dict(pickle.dumps({"data": array}), "data_batch_1")
    with pytest.raises(UserError, match="numbers too many objects"):
        load_dict(b"\x80\x02}r" + struct.pack("<I", 0xFFFFFFF0) + b".", "data_batch_1")
    values = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert np.array_equal(load_dict(pickle.dumps({"data": values}, 2), "data_batch_1")["data"], values)


def test_compressed_file_is_not_inflated_beyond_the_official_size(tmp_path: Path) -> None:
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        for _ in range(60):
            file.write(bytes(1 << 20))
    os.truncate(path, path.stat().st_size - 5000)  # inflating all of it would fail
    with pytest.raises(UserError, match="more than 47,040,016 bytes"):
        mnist.load(path, "0" * 32)


def test_decompression_bomb_in_a_dataset_is_refused(tmp_path: Path) -> None:
    Image.new("L", (20_000, 20_000)).save(tmp_path / "bomb.JPEG", quality=1)
    with pytest.raises(UserError, match=r"not a valid JPEG|20000x20000"):
        tinyimagenet._image(DirectoryTree(tmp_path), "bomb.JPEG")


def test_image_of_another_size_in_a_dataset_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("L", (2000, 2000)).save(tmp_path / "large.JPEG", quality=1)  # too small for Pillow's own limit
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(UserError, match="2000x2000, not 64x64"):
        tinyimagenet._image(DirectoryTree(tmp_path), "large.JPEG")


def test_encrypted_zip_file_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("top/wnids.txt", "n01")
    data = bytearray((tmp_path / "a.zip").read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    with ZipTree(tmp_path / "a.zip", "top") as tree, pytest.raises(UserError, match="encrypted"):
        tree.text("wnids.txt")
