"""Packed experiments: the records of many finished runs in a few files of one folder.

| file | holds |
|---|---|
| `records.jsonl` | one line per run: its name, whether it has predictions, config.json and result.json |
| `metrics.jsonl.gz` | the lines of every metrics.jsonl, each with the name of its run |
| `predictions.npz` | the arrays of every predictions.npz, named `<run>/<array>` |
| `pictures.npz` | the same for pictures.npz |
| `memory.npz` | the `memory` columns of every result, named `<run>/<column>` |

An archive over 1 MiB continues in `predictions-2.npz` and so on. `unpack` restores every file's content.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from itl.atomic import atomic_write, flush_to_disk, make_folder, write_text_atomic
from itl.errors import UserError
from itl.regular_files import open_regular, read_regular
from itl.results.record import LOCK_FILE, RunFolder, damage_as_user_error, is_run, open_arrays, read_array, split_lines
from itl.strict_json import parse_json

RECORDS = "records.jsonl"
METRICS = "metrics.jsonl.gz"
ARRAY_FILES = ("predictions.npz", "pictures.npz")
MEMORY = "memory.npz"
PACKED_FILES = ("config.json", "result.json", "metrics.jsonl", *ARRAY_FILES)
MAX_ARCHIVE_BYTES = 1 << 20
MAX_METRICS_BYTES = 64 << 20  # of all lines together: a small file can decompress to any size

Arrays = dict[str, np.ndarray]


@dataclass
class RunContent:
    """The content of one run's files; None for a file that the run does not have."""

    config: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    lines: list[dict[str, Any]] | None = None
    arrays: dict[str, Arrays] = field(default_factory=dict)  # by file name

    @classmethod
    def of(cls, folder: RunFolder) -> RunContent:
        """Read a run folder."""
        files = {path.name for path in folder.path.iterdir()}
        return cls(
            folder.read("config.json") if "config.json" in files else None,
            folder.read("result.json") if "result.json" in files else None,
            folder.read_lines() if "metrics.jsonl" in files else None,
            {name: folder.read_arrays(name) or {} for name in ARRAY_FILES if name in files},
        )

    def equals(self, other: RunContent) -> bool:
        """Whether JSON values (in order of keys) and arrays (with their types) are the same."""
        texts = [json.dumps([content.config, content.result, content.lines]) for content in (self, other)]
        if texts[0] != texts[1] or self.arrays.keys() != other.arrays.keys():
            return False
        pairs = [(self.arrays[name], other.arrays[name]) for name in self.arrays]
        return all(
            first.keys() == second.keys() and all(_same(first[key], second[key]) for key in first)
            for first, second in pairs
        )


def _same(first: np.ndarray, second: np.ndarray) -> bool:
    return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()


class PackedRun:
    """One run of a packed experiment. Reads like a `RunFolder`; `path` is the folder the run would unpack to."""

    def __init__(self, experiment: PackedExperiment, name: str) -> None:
        self.experiment, self.name = experiment, name
        self.path = experiment.path / name

    @cached_property
    def _record(self) -> dict[str, Any]:
        record = self.experiment.records[self.name]
        result = record["result"]
        if isinstance(result, dict) and result.get("memory") == MEMORY:
            columns = {key: value.tolist() for key, value in self.experiment.arrays(MEMORY, self.name).items()}
            record = {**record, "result": {**result, "memory": columns}}
        return record

    @property
    def config(self) -> dict[str, Any] | None:
        """What config.json holds."""
        config: dict[str, Any] | None = self._record["config"]
        return config

    @property
    def result(self) -> dict[str, Any] | None:
        """What result.json holds."""
        result: dict[str, Any] | None = self._record["result"]
        return result

    def read_lines(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return self.experiment.lines.get(self.name, [])

    def read_arrays(self, name: str) -> Arrays | None:
        """The arrays of an .npz file; None if the run has no such file."""
        return self.experiment.arrays(name, self.name) or None

    def content(self) -> RunContent:
        """Everything the run's files hold."""
        arrays = {name: self.experiment.arrays(name, self.name) for name in ARRAY_FILES}
        return RunContent(
            self.config,
            self.result,
            self.experiment.lines.get(self.name),
            {name: content for name, content in arrays.items() if content},
        )


class PackedExperiment:
    """A folder that holds packed runs. Files are read when they are first needed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @cached_property
    def records(self) -> dict[str, dict[str, Any]]:
        """The lines of records.jsonl by run name."""
        path = self.path / RECORDS
        records: dict[str, dict[str, Any]] = {}
        try:
            for number, text in enumerate(read_regular(path).decode("utf-8").splitlines(), 1):
                record = _parse(text, f"{path}, line {number},")
                if not _is_folder_name(record.get("name")) or not {"config", "result"} <= record.keys():
                    raise UserError(f"{path}, line {number}, is not a run's record; restore the file")
                records[record["name"]] = record
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path} cannot be read: {error}") from None
        return records

    @cached_property
    def lines(self) -> dict[str, list[dict[str, Any]]]:
        """The lines of every metrics.jsonl by run name."""
        path = self.path / METRICS
        if not path.exists():
            return {}
        try:
            with open_regular(path) as file, gzip.open(file) as inflated:
                data = inflated.read(MAX_METRICS_BYTES + 1)
            if len(data) > MAX_METRICS_BYTES:
                raise UserError(f"{path} has more than {MAX_METRICS_BYTES >> 20} MiB of lines; restore the file")
            parts = split_lines(data)
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise UserError(f"{path} is damaged: {error}; restore the file") from None
        lines: dict[str, list[dict[str, Any]]] = {}
        for number, part in enumerate(parts, 1):
            line = _parse(part, f"{path}, line {number},")
            run = line.pop("run", None)
            if not isinstance(run, str):
                raise UserError(f"{path}, line {number}, names no run; restore the file")
            lines.setdefault(run, []).append(line)
        return lines

    @cached_property
    def _members(self) -> dict[tuple[str, str], list[tuple[Path, str]]]:
        """Where the arrays of each (file name, run) are: (archive, member)."""
        members: dict[tuple[str, str], list[tuple[Path, str]]] = {}
        for name in (*ARRAY_FILES, MEMORY):
            for path in _archives(self.path, name):
                try:
                    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
                        names = archive.namelist()
                except (OSError, zipfile.BadZipFile) as error:
                    raise UserError(f"{path} is damaged: {error}; restore the file") from None
                for member in names:
                    run = member.rpartition("/")[0]
                    members.setdefault((name, run), []).append((path, member.removesuffix(".npy")))
        return members

    def arrays(self, name: str, run: str) -> Arrays:
        """The arrays of one run's .npz file; empty if it has none."""
        found: Arrays = {}
        for path, member in self._members.get((name, run), ()):
            with damage_as_user_error(path):
                status = path.stat()
                archive = _opened_archive(path, status.st_mtime_ns, status.st_size)
                found[member.rpartition("/")[2]] = read_array(archive, member)
        return found

    def run(self, name: str) -> PackedRun:
        """The run of that name."""
        return PackedRun(self, name)


def _is_folder_name(name: Any) -> bool:
    """Whether a run can be unpacked into a folder of this name, and not elsewhere."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set("/\\\0") & set(name)


def _parse(text: str | bytes, where: str) -> dict[str, Any]:
    try:
        value = parse_json(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UserError(f"{where} is damaged; restore the file")
    return value


def _archives(folder: Path, name: str) -> list[Path]:
    """`predictions.npz`, `predictions-2.npz` and so on, as far as they exist."""
    stem = name.removesuffix(".npz")
    paths = (folder / (name if part == 1 else f"{stem}-{part}.npz") for part in range(1, 1000))
    found = []
    for path in paths:
        if not path.exists():
            break
        found.append(path)
    return found


def is_packed(path: Path) -> bool:
    """Whether a folder holds packed runs."""
    return (path / RECORDS).is_file()


def experiment_at(path: Path) -> PackedExperiment:
    """The packed experiment in a folder, read once until its records change."""
    status = (path / RECORDS).stat()
    return _experiment(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=16)
def _experiment(path: Path, _modified: int, _size: int) -> PackedExperiment:
    return PackedExperiment(path)


@lru_cache(maxsize=4)
def _opened_archive(path: Path, _modified: int, _size: int) -> Any:
    """An archive in memory: reading the list of its members takes longer than reading those of one run."""
    return open_arrays(io.BytesIO(read_regular(path)))


# ------------------------------------------------------------------ writing


def pack(folder: str | os.PathLike[str]) -> list[str]:
    """Pack the run folders directly below `folder` into it and delete them.

    Runs that are packed there already are kept; a run folder of the same name replaces the packed run. The folders are
    deleted only after everything was read back and compared.

    Args:
        folder: The folder of an experiment.

    Returns:
        The names of the runs that were packed.

    Raises:
        UserError: A run is unfinished or has files that do not belong in a record (a model, kept specialists).
    """
    experiment = Path(folder)
    folders = [path for path in sorted(experiment.iterdir()) if path.is_dir() and is_run(path)]
    for path in folders:
        _check_complete(path)
    runs = {path.name: RunContent.of(RunFolder(path)) for path in folders}
    current = PackedExperiment(experiment)
    packed_runs = {name: current.run(name).content() for name in current.records} if is_packed(experiment) else {}
    all_runs = dict(sorted((packed_runs | runs).items()))
    if not all_runs:
        raise UserError(f"there is no run in {experiment}; `itl run` makes one")
    draft = Path(tempfile.mkdtemp(prefix=".packing-", dir=experiment))
    try:
        _write(draft, all_runs)
        written = PackedExperiment(draft)
        different = [name for name, run in all_runs.items() if not written.run(name).content().equals(run)]
        if different or list(written.records) != list(all_runs):
            raise RuntimeError(f"the packed records differ from the runs: {different}")
        older = [experiment / RECORDS, experiment / METRICS]
        older += [path for name in (*ARRAY_FILES, MEMORY) for path in _archives(experiment, name)]
        new = sorted(draft.iterdir(), key=lambda path: path.name == RECORDS)  # last: it names runs in the other files
        for path in new:
            os.replace(path, experiment / path.name)
        flush_to_disk(experiment)
        for path in {path for path in older if path.name not in {other.name for other in new}}:
            path.unlink(missing_ok=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    for path in folders:
        shutil.rmtree(path)
    return list(runs)


def unpack(folder: str | os.PathLike[str], out: str | os.PathLike[str], names: Sequence[str] | None = None) -> None:
    """Write the packed runs of `folder` (all, or those named) as run folders below `out`."""
    experiment = PackedExperiment(folder)
    for name in names if names is not None else experiment.records:
        if name not in experiment.records:
            raise UserError(f"{experiment.path} has no run {name!r}")
        content, target = experiment.run(name).content(), RunFolder(Path(out) / name)
        make_folder(target.path)
        for file, value in (("config.json", content.config), ("result.json", content.result)):
            if value is not None:
                target.write(file, value)
        if content.lines is not None:
            target.replace_lines(content.lines)
        for file, arrays in content.arrays.items():
            target.write_arrays(file, **arrays)


def _check_complete(path: Path) -> None:
    if not (path / "result.json").exists():
        raise UserError(f"{path} is unfinished; finish it with itl run --resume, or move it away")
    others = sorted(file.name for file in path.iterdir() if file.name not in (*PACKED_FILES, LOCK_FILE))
    if others:
        raise UserError(f"{path} has {', '.join(others)}, which records do not include; move them away first")


def _write(folder: Path, runs: Mapping[str, RunContent]) -> None:
    """Write packed files into an empty folder."""
    records, metrics = [], []
    arrays: dict[str, dict[str, Arrays]] = {name: {} for name in (*ARRAY_FILES, MEMORY)}
    for name, run in runs.items():
        result = run.result
        if result is not None and _packable(result.get("memory")):
            columns = {key: np.array(value, np.int32) for key, value in result["memory"].items()}
            arrays[MEMORY][name] = columns
            result = {**result, "memory": MEMORY}
        header = {"name": name, "predictions": "predictions.npz" in run.arrays}
        records.append(_compact({**header, "config": run.config, "result": result}))
        metrics += [_compact({"run": name, **line}) for line in run.lines or ()]
        for file, content in run.arrays.items():
            arrays[file][name] = content
    write_text_atomic(folder / RECORDS, "".join(f"{line}\n" for line in records))
    if metrics:
        text = "".join(f"{line}\n" for line in metrics).encode()
        with atomic_write(folder / METRICS) as out:
            out.write(gzip.compress(text, mtime=0))
    for file, by_run in arrays.items():
        for number, archive in enumerate(_volumes(by_run), 1):
            name = file if number == 1 else f"{file.removesuffix('.npz')}-{number}.npz"
            with atomic_write(folder / name) as out:
                out.write(archive)


def _packable(memory: Any) -> bool:
    """Whether a result's `memory` is columns of integers that int32 arrays can hold."""
    if not isinstance(memory, dict) or not memory or not all(isinstance(column, list) for column in memory.values()):
        return False
    return all(type(x) is int and -(2**31) <= x < 2**31 for column in memory.values() for x in column)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _volumes(runs: Mapping[str, Arrays]) -> Iterator[bytes]:
    """Archives of at most 1 MiB (unless one run needs more), each with the arrays of some runs."""
    part: dict[str, Arrays] = {}
    size = 0
    for name, arrays in runs.items():
        added = len(_archive({name: arrays}.items()))
        if part and size + added > MAX_ARCHIVE_BYTES:
            yield _archive(part.items())
            part, size = {}, 0
        part[name] = arrays
        size += added
    if part:
        yield _archive(part.items())


def _archive(runs: Iterable[tuple[str, Arrays]]) -> bytes:
    out = io.BytesIO()
    members = {f"{run}/{key}": value for run, arrays in runs for key, value in arrays.items()}
    np.savez_compressed(out, **members)  # type: ignore[arg-type]
    return out.getvalue()
