"""A grid: the cross product of streams, methods, buffers, seeds and settings, as data; a run for each cell."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from itl.errors import UserError, unknown
from itl.experiments.config import Config
from itl.experiments.search.optional_imports import need
from itl.presets import METHODS, settings_for
from itl.results.published import SOURCES, published
from itl.settings import flatten
from itl.streams import check

AXES = ("stream", "method", "buffer", "seed")  # one value, or several under the plural
FIXED = ("tasks", "order", "order_seed", "split", "variant", "keep_specialists", "curves")
KEYS = (*AXES, *(f"{axis}s" for axis in AXES), *FIXED, "settings", "vary", "published", "about", "cells")
MOST = 100_000  # cells; more is a slip of the pen


@dataclass(frozen=True)
class Grid:
    """A grid's name, what it is for, its cells, and published methods that are not here."""

    name: str
    about: str
    cells: tuple[Config, ...]
    missing: tuple[str, ...] = ()


def ready() -> dict[str, str]:
    """The grids that come with the package, by name, each with what it is for."""
    return {Path(path.name).stem: str(_load(path.read_text())["about"]) for path in _shelf()}


def read(source: str) -> Grid:
    """A grid by name, or from a YAML or JSON file; a mistake is a `UserError` of one line."""
    shelf = {Path(path.name).stem: path.read_text() for path in _shelf()}
    path = Path(source)
    if source in shelf:
        text = shelf[source]
    elif path.suffix in (".yaml", ".yml", ".json"):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read the grid {source}: {getattr(error, 'strerror', None) or error}") from None
    else:
        raise UserError(f"{unknown('grid', source, shelf)}; or give a file that ends in .yaml or .json")
    return build(_load(text, source), path.stem)


def build(values: Any, name: str) -> Grid:
    """The grid that a mapping describes."""
    if not isinstance(values, Mapping):
        raise UserError(f"the grid {name} must be a mapping such as methods: [er, itl], not {_kind(values)}")
    try:
        return _build(values, name)
    except RecursionError:  # YAML's anchors allow it
        raise UserError(f"the grid {name} holds itself; write out what its anchors stand for") from None


def _build(values: Mapping[str, Any], name: str) -> Grid:
    made: dict[str, Config] = {}  # the same cell twice is one
    missing: dict[str, None] = {}
    for part in _parts(values, name):
        for config in _product(part, name, missing):
            made[json.dumps(vars(config), sort_keys=True)] = config
            if len(made) > MOST:
                raise UserError(f"the grid {name} has more than {MOST:,} cells; is a list too long?")
    cells = tuple(made.values())
    if not cells:
        raise UserError(f"the grid {name} is empty: no cell is left of it; give methods, buffers and seeds")
    _tell_apart(cells, name)
    return Grid(name, str(values.get("about", "")), cells, tuple(missing))


def _shelf() -> list[Any]:
    here = files("itl.experiments.search").joinpath("grids")
    return sorted((path for path in here.iterdir() if path.name.endswith(".yaml")), key=lambda path: path.name)


def _load(text: str, name: str = "") -> Any:
    if name.endswith(".json"):
        try:
            return json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, name))
        except ValueError as error:
            raise UserError(f"the grid {name} is no JSON: {error}") from None
    yaml = need("yaml")

    class Loader(yaml.SafeLoader):  # type: ignore[misc,name-defined]
        """YAML's own would let the second of two equal keys win, without a word."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [(self.construct_object(key, True), None) for key, _ in node.value if key.value != "<<"]
            _once([pair for pair in keys if isinstance(pair[0], str)], name)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise UserError(f"the grid {name} is no YAML: {' '.join(str(error).split())}") from None


def _once(pairs: list[tuple[str, Any]], name: str) -> dict[str, Any]:
    """The pairs as a mapping; a key that stands there twice is a mistake."""
    out = dict(pairs)
    if len(out) < len(pairs):
        twice = next(key for number, (key, _) in enumerate(pairs) if key in dict(pairs[:number]))
        raise UserError(f"the grid {name} has {twice} twice in one place; write it once, or use cells")
    return out


def _parts(values: Mapping[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Every part of a grid: its `cells`, each over what stands beside them, or the grid itself."""
    for key in values:
        if key not in KEYS:
            raise unknown(f"key of the grid {name}", str(key), KEYS)
    rest = {key: value for key, value in values.items() if key != "cells"}
    if "cells" not in values:
        yield rest
        return
    if not isinstance(values["cells"], Sequence) or not all(isinstance(one, Mapping) for one in values["cells"]):
        raise UserError(f"cells of the grid {name} must be a list of mappings, not {_kind(values['cells'])}")
    for one in values["cells"]:
        both = {"settings": {**_settings(rest, name), **_settings(one, name)}}
        yield from _parts({**_without(rest, one), **one, **both}, name)


def _without(rest: dict[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    """What stands beside the cells, less the axes that a cell names itself (in the singular or the plural)."""
    named = {axis for axis in AXES if axis in one or f"{axis}s" in one}
    return {key: value for key, value in rest.items() if key.removesuffix("s") not in named}


def _product(part: dict[str, Any], name: str, missing: dict[str, None]) -> Iterator[Config]:
    axes = {axis: _axis(part, axis, name) for axis in AXES}
    rows: list[dict[str, Any]]
    if "published" in part:
        rows = _published(part["published"], axes, missing)
    else:
        chosen = {axis: values for axis, values in axes.items() if values is not None and axis != "seed"}
        rows = [dict(zip(chosen, one, strict=True)) for one in itertools.product(*chosen.values())]
    fixed = {key: part[key] for key in FIXED if part.get(key) is not None}
    for row in rows:
        for variant, changed in _variations(part.get("vary") or {}, part.get("variant"), name):
            own = {**_settings(part, name), **changed}
            for seed in axes["seed"] if axes["seed"] is not None else [0]:
                yield _config({**fixed, **row, "seed": seed, "variant": variant, "settings": own}, name)


def _axis(part: Mapping[str, Any], axis: str, name: str) -> list[Any] | None:
    if axis in part and f"{axis}s" in part:
        raise UserError(f"the grid {name} has both {axis} and {axis}s; give one of them")
    if axis in part:
        return [part[axis]]
    values = part.get(f"{axis}s")
    if values is None and f"{axis}s" not in part:
        return None
    if not isinstance(values, list):
        raise UserError(f"{axis}s of the grid {name} must be a list, not {_kind(values)}")
    for value in values:
        if isinstance(value, (list, Mapping)):
            raise UserError(f"{axis}s of the grid {name} must be a list of single values; it holds {_kind(value)}")
    return list(dict.fromkeys(values))


def _published(source: Any, axes: dict[str, list[Any] | None], missing: dict[str, None]) -> list[dict[str, Any]]:
    """The published cells of a table, less methods that are not here; an axis that is given narrows them."""
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
    """Every combination of the settings to vary, with its variant's name."""
    if isinstance(variant, (list, Mapping)):
        raise UserError(f"variant of the grid {name} must be text, not {_kind(variant)}")
    choices = {
        key: value if isinstance(value, list) else [value] for key, value in _mapping(vary, "vary", name).items()
    }
    out: list[tuple[str | None, dict[str, Any]]] = []
    for values in itertools.product(*choices.values()):
        words = [f"{key}-{value}" for key, value in zip(choices, values, strict=True)]
        text = re.sub(r"[^\w.+-]", "_", "-".join(([str(variant)] if variant else []) + words))
        out.append((text or None, dict(zip(choices, values, strict=True))))
    return out


def _mapping(value: Any, key: str, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{key} of the grid {name} must be a mapping such as tangent.lr: 0.01, not {_kind(value)}")
    return flatten(value)


def _settings(part: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return _mapping(part.get("settings") or {}, "settings", name)


def _config(values: dict[str, Any], name: str) -> Config:
    """A cell's configuration, checked as far as it can be without data."""
    from itl.specialists import resolve_options

    if "buffer" not in values and values.get("stream", Config.stream) != Config.stream:
        values["buffer"] = 200  # as `itl run` has it
    try:
        config = TypeAdapter(Config).validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{first['loc'][0]} of the grid {name} is not valid: {first['msg'].lower()}") from None
    except TypeError as error:  # a date, say, which YAML knows and JSON does not
        raise UserError(f"the grid {name} holds a value that is none of a run's: {error}") from None
    if config.variant is not None and not re.fullmatch(r"[\w+][\w.+-]*", config.variant):
        raise UserError(f"variant is part of a folder's name: letters, digits and . _ + - only, not '{config.variant}'")
    cut = {key: getattr(config, key) for key in ("tasks", "order", "order_seed", "split")}
    check(config.stream, **cut)
    if config.seed < 0 or config.buffer < 0 or (config.curves or 0) < 0:
        raise UserError(f"seed, buffer and curves of the grid {name} must be 0 or more; {config.name} is not")
    resolve_options(settings_for(config.method, config.stream, config.buffer, config.settings))
    return config


def _tell_apart(cells: Sequence[Config], name: str) -> None:
    """A cell's folder is named after it: two different ones must not share a name."""
    seen: set[str] = set()
    for config in cells:
        if config.name in seen:
            raise UserError(f"two different cells of the grid {name} are called {config.name}; give each a variant")
        seen.add(config.name)


def _kind(value: Any) -> str:
    return {dict: "a mapping", list: "a list", str: "text", type(None): "nothing"}.get(type(value), repr(value))
