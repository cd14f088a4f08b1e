"""From the words of a command line to values: lists, settings, a configuration file."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itl.errors import UserError, unknown
from itl.settings import flatten, parse

if TYPE_CHECKING:
    from itl.experiments.config import Config

DERIVED = ("command", "resolved")  # what a run's config.json holds beside its configuration
DEFAULT_BUFFER = 200  # of every stream but seq-digits, whose own is `Config`'s


def numbers(text: str | None, option: str) -> tuple[int, ...] | None:
    """`3,1,2` as numbers."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"{option} takes whole numbers with commas between, such as 0,1,2, not '{text}'") from None


def several(one: int | None, many: str | None, name: str) -> tuple[int, ...] | None:
    """The numbers of `--name` or `--names`, of which only one may be given."""
    if one is not None and many is not None:
        raise UserError(f"give --{name} or --{name}s, not both")
    chosen = numbers(many, f"--{name}s")
    if chosen is not None and len(set(chosen)) != len(chosen):
        raise UserError(f"--{name}s names a {name} twice: {many}; give each once")
    return chosen or (None if one is None else (one,))


def seeds(one: int | None, many: str | None, fallback: int) -> tuple[int, ...]:
    """Which seeds to run: one, or several, or the configuration's own."""
    chosen = several(one, many, "seed") or (fallback,)
    if min(chosen) < 0:
        raise UserError(f"a seed must be 0 or more, not {min(chosen)}")
    return chosen


def variations(pairs: Sequence[str], variant: str | None) -> list[tuple[str | None, dict[str, Any]]]:
    """Every combination of the settings to vary, each with the name of its variant."""
    out: list[tuple[str | None, dict[str, Any]]] = []
    for changed in alternatives(pairs):
        words = [f"{key}-{value}" for key, value in changed.items()]
        name = "-".join(([variant] if variant else []) + words)
        out.append((re.sub(r"[^\w.+-]", "_", name) or None, changed))
    return out


def settings(pairs: Sequence[str], epochs: int | None) -> dict[str, Any]:
    """The user's own settings: `--set` and its short form `--epochs`."""
    out = parse(pairs)
    if epochs is not None:
        if "specialist.epochs" in out:
            raise UserError("--epochs is --set specialist.epochs; give one of them")
        out["specialist.epochs"] = epochs
    return out


def alternatives(pairs: Sequence[str]) -> list[dict[str, Any]]:
    """Every combination of settings where each may have several values: `tangent.lr=0.01,0.05`."""
    choices: dict[str, list[Any]] = {}
    for pair in pairs:
        key, sign, values = pair.partition("=")
        tried = [parse([f"{key}{sign}{value}"]) for value in (values.split(",") if sign else [""])]
        choices |= {name: [one[name] for one in tried] for name in tried[0]}
    return [dict(zip(choices, combination, strict=True)) for combination in itertools.product(*choices.values())]


def read_config(path: str | None) -> dict[str, Any]:
    """A configuration file: the fields of a `Config`; a run's config.json is one."""
    if path is None:
        return {}
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read --config {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise UserError(f"--config {path} is no JSON: {error}") from None
    if not isinstance(values, dict) or not isinstance(values.get("settings", {}), dict):
        raise UserError(f"--config {path} must hold a JSON object, and so must its settings")
    return values


def config(file: dict[str, Any], given: dict[str, Any], own: dict[str, Any]) -> Config:
    """The configuration of a run: the file's fields, over them those `given` on the command line (None: not given).

    `own` are the command line's settings, on top of the file's. A run's config.json repeats it, whatever the defaults
    are by now. Everything that needs no data is checked here.
    """
    from pydantic import TypeAdapter, ValidationError

    from itl.experiments.config import Config
    from itl.presets import settings_for

    for name in set(file) - set(DERIVED) - set(Config.__dataclass_fields__):
        raise unknown("entry of --config", name, Config.__dataclass_fields__)
    values = {name: value for name, value in file.items() if name not in DERIVED}
    values |= {name: value for name, value in given.items() if value is not None}
    values["settings"] = {**_as_they_were(file, values), **flatten(values.get("settings", {})), **own}
    if "buffer" not in values and values.get("stream", Config.stream) != Config.stream:
        values["buffer"] = DEFAULT_BUFFER
    try:
        made = TypeAdapter(Config).validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"--config: {first['loc'][0]} is not valid: {first['msg'].lower()}") from None
    if made.variant is not None and not re.fullmatch(r"[\w+][\w.+-]*", made.variant):
        raise UserError(f"--variant is part of a folder's name: letters, digits and . _ + - only, not '{made.variant}'")
    if made.curves is not None and made.curves < 0:
        raise UserError(f"--curves must be 0 (no curve) or more, not {made.curves}")
    settings_for(made.method, made.stream, made.buffer, made.settings)
    return made


def _as_they_were(file: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run's config.json whose defaults are others today, where it is that run which is repeated."""
    from itl.presets import settings_for

    names = ("stream", "method", "buffer")
    if not isinstance(file.get("resolved"), dict) or any(file.get(name) != values.get(name) for name in names):
        return {}
    had = flatten(file["resolved"])
    try:
        now = settings_for(file["method"], file["stream"], file["buffer"], file.get("settings"))
    except (UserError, KeyError, TypeError):
        return {}  # what is wrong with it is said below
    today = flatten(now.model_dump(mode="json"))
    return {name: had[name] for name in today if name in had and had[name] != today[name]}
