"""Grids: cross products of streams, methods, buffers, seeds and settings, with one run per cell."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from itl.errors import UserError, unknown
from itl.experiments.config import Config, variant_name
from itl.experiments.search.optional_imports import import_optional
from itl.presets import METHODS, settings_for
from itl.regular_files import read_regular
from itl.results.published import SOURCES, published
from itl.settings import flatten
from itl.streams import check
from itl.strict_json import MAX_DEPTH, parse_json

AXES = ("stream", "method", "buffer", "seed")  # one value; several values under the plural
FIXED_KEYS = ("tasks", "order", "order_seed", "split", "variant", "keep_specialists", "curves")
KEYS = (*AXES, *(f"{axis}s" for axis in AXES), *FIXED_KEYS, "settings", "vary", "published", "about", "cells")
MAX_CELLS = 20_000  # a larger grid is probably a mistake, and takes long to check
MAX_GRID_BYTES = 4 << 20
MAX_YAML_BYTES = 128 << 10  # parsing YAML takes a hundred times as long as parsing JSON
MAX_NODES = 200_000  # values of a grid, once its anchors are replaced
MAX_DIGITS = 1000  # of an integer; Python refuses to print much longer ones
_CONFIG = TypeAdapter(Config)


@dataclass(frozen=True)
class Grid:
    """Runs of a sweep.

    Args:
        name: Name of the grid.
        cells: Configuration of each run.
        missing: Published methods that the grid asks for and this package does not have.
    """

    name: str
    cells: tuple[Config, ...]
    missing: tuple[str, ...] = ()


def packaged_grids() -> dict[str, str]:
    """Name and description of each grid that comes with the package."""
    return {Path(path.name).stem: str(_parse(path.read_text())["about"]) for path in _packaged_files()}


def load_grid(source: str) -> Grid:
    """Load a grid.

    Args:
        source: Name of a packaged grid, or path of a YAML or JSON file.

    Raises:
        UserError: If there is no such grid or it is invalid.
    """
    packaged = {Path(path.name).stem: path.read_text() for path in _packaged_files()}
    path = Path(source)
    if source in packaged:
        text = packaged[source]
    elif path.suffix in (".yaml", ".yml", ".json"):
        try:
            text = read_regular(path, MAX_GRID_BYTES).decode("utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"Cannot read the grid {source}: {reason}. Is it a text file of a grid?") from None
    else:
        raise UserError(f"{unknown('grid', source, packaged)} A file of your own must end in .yaml or .json.")
    return build_grid(_parse(text, source), path.stem)


def build_grid(values: Any, name: str) -> Grid:
    """Build a grid from a mapping of the same keys as a grid file.

    Raises:
        UserError: If the mapping is invalid.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"The grid {name} must be a mapping such as methods: [er, itl], not {_describe(values)}.")
    try:
        return _build(values, name)
    except RecursionError:  # YAML anchors make this possible
        raise UserError(f"The grid {name} contains itself. Replace its anchors by what they stand for.") from None


def _build(values: Mapping[str, Any], name: str) -> Grid:
    cells: dict[str, Config] = {}  # equal cells are merged
    missing: dict[str, None] = {}
    configs = (config for part in _parts(values, name) for config in _product(part, name, missing))
    for number, config in enumerate(configs, 1):
        cells[json.dumps(vars(config), sort_keys=True)] = config
        if number > MAX_CELLS:
            raise UserError(f"The grid {name} has more than {MAX_CELLS:,} cells. Shorten its lists.")
    if not cells:
        raise UserError(f"The grid {name} is empty: it has no cells. Give methods, buffers and seeds.")
    _check_unique_names(cells.values(), name)
    return Grid(name, tuple(cells.values()), tuple(missing))


def _packaged_files() -> list[Any]:
    folder = files("itl.experiments.search").joinpath("grids")
    return sorted((path for path in folder.iterdir() if path.name.endswith(".yaml")), key=lambda path: path.name)


def _parse(text: str, name: str = "") -> Any:
    """Parse JSON or YAML; duplicate keys are errors."""
    if name.endswith(".json"):
        try:
            return parse_json(text, lambda pairs: _unique_mapping(pairs, name))
        except ValueError as error:
            raise UserError(f"The grid {name} is not valid JSON: {error}") from None
    yaml = import_optional("yaml")

    class Loader(yaml.SafeLoader):  # type: ignore[misc,name-defined]
        """Loader that rejects duplicate keys; YAML's own loader silently uses the last one."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [(self.construct_object(key, True), None) for key, _ in node.value if key.value != "<<"]
            _unique_mapping([pair for pair in keys if isinstance(pair[0], str)], name)
            return super().construct_mapping(node, deep)

    try:
        if len(text) > MAX_YAML_BYTES:
            raise ValueError(f"it has more than {MAX_YAML_BYTES >> 10} KiB; write large grids as JSON")
        loader = Loader(text)
        root = loader.get_single_node()
        _check_size(root)
        return None if root is None else loader.construct_document(root)
    except RecursionError:
        raise UserError(f"The grid {name} is nested too deeply. Write it with fewer levels.") from None
    except (yaml.YAMLError, ValueError, OverflowError, TypeError, AttributeError, LookupError) as error:
        # Constructors of dates, numbers and tags raise all kinds of exceptions.
        raise UserError(f"The grid {name} is not valid YAML: {' '.join(str(error).split())[:200]}") from None


def _check_size(root: Any) -> None:
    """Raise a `ValueError` if a YAML document or a number in it is too large, or it is too deep.

    Its anchors count as what they stand for.
    """
    sizes: dict[int, int] = {}

    def size(node: Any, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise ValueError("it is nested too deeply, or contains itself")
        if id(node) not in sizes:
            parts = getattr(node, "value", None)
            if isinstance(parts, str) and len(parts) > MAX_DIGITS and node.tag.endswith(":int"):
                raise ValueError(f"a number has more than {MAX_DIGITS:,} digits")
            children = parts if isinstance(parts, list) else []
            flat = [part for child in children for part in (child if isinstance(child, tuple) else (child,))]
            sizes[id(node)] = 1 + sum(size(child, depth + 1) for child in flat)
        if sizes[id(node)] > MAX_NODES:
            raise ValueError(f"it has more than {MAX_NODES:,} values once its anchors are replaced")
        return sizes[id(node)]

    size(root, 0)


def _unique_mapping(pairs: list[tuple[str, Any]], name: str) -> dict[str, Any]:
    """The pairs as a mapping; raises a `UserError` if a key occurs twice."""
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise UserError(f"The grid {name} has {key} twice in one mapping. Give it once, or use cells.")
        mapping[key] = value
    return mapping


def _parts(values: Mapping[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Parts of a grid: each of its `cells`, with the other keys as defaults, or the grid itself."""
    for key in values:
        if key not in KEYS:
            raise unknown(f"key of the grid {name}", str(key), KEYS)
    defaults = {key: value for key, value in values.items() if key != "cells"}
    if "cells" not in values:
        yield defaults
        return
    if not isinstance(values["cells"], Sequence) or not all(isinstance(cell, Mapping) for cell in values["cells"]):
        raise UserError(f"cells of the grid {name} must be a list of mappings, not {_describe(values['cells'])}.")
    for cell in values["cells"]:
        settings = {"settings": {**_settings(defaults, name), **_settings(cell, name)}}
        yield from _parts({**_other_axes(defaults, cell), **cell, **settings}, name)


def _other_axes(defaults: dict[str, Any], cell: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults without the axes that a cell sets itself, in the singular or the plural."""
    own = {axis for axis in AXES if axis in cell or f"{axis}s" in cell}
    return {key: value for key, value in defaults.items() if key.removesuffix("s") not in own}


def _product(part: dict[str, Any], name: str, missing: dict[str, None]) -> Iterator[Config]:
    """All cells of a part; published methods that are not available are added to `missing`."""
    axes = {axis: _axis(part, axis, name) for axis in AXES}
    rows: list[dict[str, Any]]
    if "published" in part:
        rows = _published(part["published"], axes, missing)
    else:
        given = {axis: values for axis, values in axes.items() if values is not None and axis != "seed"}
        if math.prod(map(len, given.values())) > MAX_CELLS:
            raise UserError(f"The grid {name} has more than {MAX_CELLS:,} cells. Shorten its lists.")
        rows = [dict(zip(given, values, strict=True)) for values in itertools.product(*given.values())]
    fixed = {key: part[key] for key in FIXED_KEYS if part.get(key) is not None}
    for row in rows:
        for variant, varied in _variations(part.get("vary") or {}, part.get("variant"), name):
            settings = {**_settings(part, name), **varied}
            for seed in axes["seed"] if axes["seed"] is not None else [0]:
                yield _config({**fixed, **row, "seed": seed, "variant": variant, "settings": settings}, name)


def _axis(part: Mapping[str, Any], axis: str, name: str) -> list[Any] | None:
    """Distinct values of an axis; None if the part does not give any."""
    if axis in part and f"{axis}s" in part:
        raise UserError(f"The grid {name} has both {axis} and {axis}s. Give only one of them.")
    if axis in part:
        return [part[axis]]
    values = part.get(f"{axis}s")
    if values is None and f"{axis}s" not in part:
        return None
    if not isinstance(values, list):
        raise UserError(f"{axis}s of the grid {name} must be a list, not {_describe(values)}.")
    for value in values:
        if isinstance(value, (list, Mapping)):
            raise UserError(f"{axis}s of the grid {name} must be a list of single values, not of {_describe(value)}.")
    return list(dict.fromkeys(values))


def _published(source: Any, axes: dict[str, list[Any] | None], missing: dict[str, None]) -> list[dict[str, Any]]:
    """Cells of a published table, restricted to the axes that are given and to available methods."""
    if str(source) not in SOURCES:
        raise unknown("published table", str(source), SOURCES)
    rows = []
    for cell in published():
        buffer = 0 if cell.buffer is None else cell.buffer
        row = {"stream": cell.stream, "method": cell.method, "buffer": buffer}
        if cell.source != source or any(row[axis] not in (axes[axis] or [row[axis]]) for axis in row):
            continue
        if cell.method in METHODS:
            rows.append(row)
        else:
            missing[cell.method] = None
    return rows


def _variations(vary: Any, variant: Any, name: str) -> list[tuple[str | None, dict[str, Any]]]:
    """Name and settings of every combination of the varied settings."""
    if isinstance(variant, (list, Mapping)):
        raise UserError(f"variant of the grid {name} must be text, not {_describe(variant)}.")
    choices = {
        key: value if isinstance(value, list) else [value] for key, value in _mapping(vary, "vary", name).items()
    }
    if math.prod(map(len, choices.values())) > MAX_CELLS:
        raise UserError(f"The grid {name} has more than {MAX_CELLS:,} cells. Shorten its lists.")
    varied = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    return [(variant_name(str(variant) if variant else None, settings), settings) for settings in varied]


def _mapping(value: Any, key: str, name: str) -> Mapping[str, Any]:
    """A mapping of settings with dotted names."""
    if not isinstance(value, Mapping):
        raise UserError(f"{key} of the grid {name} must be a mapping such as tangent.lr: 0.01, not {_describe(value)}.")
    return flatten(value)


def _settings(part: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return _mapping(part.get("settings") or {}, "settings", name)


def _config(values: dict[str, Any], name: str) -> Config:
    """Configuration of a cell, checked as far as possible without the dataset."""
    from itl.specialists import resolve_options

    if "buffer" not in values and values.get("stream", Config.stream) != Config.stream:
        values["buffer"] = 200  # the default of `itl run`
    try:
        config = _CONFIG.validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(
            f"{next(iter(first['loc']), 'a value')} of the grid {name} is not valid: {first['msg'].lower()}."
        ) from None
    except TypeError as error:  # for example a date, which YAML has and JSON does not
        raise UserError(f"The grid {name} contains a value that a run cannot use: {error}.") from None
    if config.variant is not None and not re.fullmatch(r"[\w+][\w.+-]*", config.variant):
        raise UserError(
            f"The variant '{config.variant}' cannot be part of a folder's name. Use letters, digits and . _ + - only."
        )
    check(config.stream, **{key: getattr(config, key) for key in ("tasks", "order", "order_seed", "split")})
    if config.seed < 0 or config.buffer < 0 or (config.curves or 0) < 0:
        raise UserError(f"seed, buffer and curves of the grid {name} must be 0 or more, unlike in {config.name}.")
    resolve_options(settings_for(config.method, config.stream, config.buffer, config.settings))
    return config


def _check_unique_names(cells: Iterable[Config], name: str) -> None:
    """Check that no two different cells have the same name, and so the same folder."""
    seen: set[str] = set()
    for config in cells:
        if config.name in seen:
            raise UserError(f"Two different cells of the grid {name} are called {config.name}. Give each a variant.")
        seen.add(config.name)


def _describe(value: Any) -> str:
    return {dict: "a mapping", list: "a list", str: "text", type(None): "nothing"}.get(type(value), repr(value))
