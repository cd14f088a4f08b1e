"""Parse option values: lists of numbers, settings and configuration files."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itl.cli.options import exclusive
from itl.errors import UserError, unknown
from itl.settings import flatten, parse
from itl.strict_json import read_json

if TYPE_CHECKING:
    from itl.experiments.config import Config

DERIVED_ENTRIES = ("command", "resolved")  # of a run's config.json, in addition to the fields of `Config`
DEFAULT_BUFFER = 200  # for all streams except seq-digits, which uses the default of `Config`


def parse_ints(text: str | None, option: str) -> tuple[int, ...] | None:
    """The integers in a list such as `3,1,2`; None if the option is not given."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"{option} takes integers separated by commas, such as 0,1,2, not '{text}'.") from None


def one_or_many(value: int | None, values: str | None, name: str) -> tuple[int, ...] | None:
    """The numbers given by `--name N` or `--names N,N,…`; None if neither is given."""
    exclusive(**{name: value, f"{name}s": values})
    numbers = parse_ints(values, f"--{name}s")
    if numbers is not None:
        check_distinct(numbers, f"--{name}s")
    return numbers or (None if value is None else (value,))


def check_distinct(values: Sequence[object], option: str) -> None:
    """Raise a `UserError` if a value occurs twice."""
    if len(set(values)) != len(values):
        raise UserError(f"{option} lists the same value twice. Give each value once.")


def parse_seeds(seed: int | None, seeds: str | None, default: int) -> tuple[int, ...]:
    """The seeds to run: those of `--seed` or `--seeds`, or the default."""
    chosen = one_or_many(seed, seeds, "seed") or (default,)
    if min(chosen) < 0:
        raise UserError(f"A seed must be 0 or more, not {min(chosen)}.")
    return chosen


def expand_variants(pairs: Sequence[str], variant: str | None) -> list[tuple[str | None, dict[str, Any]]]:
    """Every combination of the `--vary` values, each with the name of its variant."""
    from itl.experiments.config import variant_name

    return [(variant_name(variant, changed), changed) for changed in expand_settings(pairs)]


def parse_settings(pairs: Sequence[str], epochs: int | None) -> dict[str, Any]:
    """The settings given by `--set` and its short form `--epochs`."""
    settings = parse(pairs)
    if epochs is not None:
        if "specialist.epochs" in settings:
            raise UserError("--epochs is short for --set specialist.epochs. Use one of them.")
        settings["specialist.epochs"] = epochs
    return settings


def with_backbone(backbone: str | None, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that `--backbone` selects, overridden by `settings`."""
    if backbone is None:
        return settings
    from itl.nets import backbone_settings

    return {**backbone_settings(backbone, settings.get("net.weights")), **settings}


def expand_settings(pairs: Sequence[str]) -> list[dict[str, Any]]:
    """Every combination of settings that may have several values, such as `tangent.lr=0.01,0.05`."""
    choices: dict[str, list[Any]] = {}
    for pair in pairs:
        key, sign, values = pair.partition("=")
        parsed = [parse([f"{key}{sign}{value}"]) for value in (values.split(",") if sign else [""])]
        choices |= {name: [settings[name] for settings in parsed] for name in parsed[0]}
    return [dict(zip(choices, combination, strict=True)) for combination in itertools.product(*choices.values())]


def read_config_file(path: str | None) -> dict[str, Any]:
    """The fields of a `Config` from a JSON file such as a run's config.json; empty if `path` is None."""
    if path is None:
        return {}
    try:
        values = read_json(Path(path))
    except OSError as error:
        raise UserError(f"Cannot read --config {path}: {error.strerror or error}.") from None
    except ValueError as error:
        raise UserError(f"--config {path} is not valid JSON: {error}.") from None
    if not isinstance(values, dict) or not isinstance(values.get("settings", {}), dict):
        raise UserError(f"--config {path} must contain a JSON object, and its 'settings' must be an object too.")
    return values


def build_config(file: dict[str, Any], options: dict[str, Any], settings: dict[str, Any]) -> Config:
    """Build and check the configuration of a run. Checks everything that needs no data.

    Args:
        file: Fields read from `--config`. If they come from a run's config.json, that run is repeated even if default
            settings have changed since.
        options: Fields given on the command line, which override the file. None means "not given".
        settings: Settings given on the command line, which override the file's settings.

    Raises:
        UserError: If a field or a setting is unknown or invalid.
    """
    from pydantic import TypeAdapter, ValidationError

    from itl.experiments.config import Config
    from itl.presets import settings_for

    for name in set(file) - set(DERIVED_ENTRIES) - set(Config.__dataclass_fields__):
        raise unknown("entry of --config", name, Config.__dataclass_fields__)
    values = {name: value for name, value in file.items() if name not in DERIVED_ENTRIES}
    values |= {name: value for name, value in options.items() if value is not None}
    values["settings"] = {**_changed_defaults(file, values), **flatten(values.get("settings", {})), **settings}
    if "buffer" not in values and values.get("stream", Config.stream) != Config.stream:
        values["buffer"] = DEFAULT_BUFFER
    try:
        config = TypeAdapter(Config).validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = next(iter(first["loc"]), "a value")
        raise UserError(f"--config: {field} is not valid: {first['msg'].lower()}.") from None
    if config.variant is not None and not re.fullmatch(r"[\w+][\w.+-]*", config.variant):
        raise UserError(
            f"--variant '{config.variant}' cannot be part of a folder name. Use letters, digits and . _ + - only."
        )
    if config.curves is not None and config.curves < 0:
        raise UserError(f"--curves must be 0 (no curve) or more, not {config.curves}.")
    settings_for(config.method, config.stream, config.buffer, config.settings)
    return config


def _changed_defaults(file: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Settings of a recorded run whose defaults have changed since; empty if `values` describe another run."""
    from itl.presets import settings_for

    names = ("stream", "method", "buffer")
    if not isinstance(file.get("resolved"), dict) or any(file.get(name) != values.get(name) for name in names):
        return {}
    recorded = flatten(file["resolved"])
    try:
        resolved = settings_for(file["method"], file["stream"], file["buffer"], file.get("settings"))
    except (UserError, KeyError, TypeError):
        return {}  # build_config reports what is wrong
    current = flatten(resolved.model_dump(mode="json"))
    return {name: recorded[name] for name in current if name in recorded and recorded[name] != current[name]}
