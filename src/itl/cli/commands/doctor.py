"""`itl doctor`: what itl runs on, and a short self-test; made to be pasted into a bug report."""

from __future__ import annotations

import platform
import re
import shutil
import tempfile
import time
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from itl.cli import options
from itl.cli.commands.info import disk_usage
from itl.cli.display.formatting import format_bytes
from itl.cli.output import echo, print_json

# Names in itl[NAME].
EXTRAS = (
    "report",
    "search",
    "tensorboard",
    "onnx",
    "backbones",
    "serve",
    "heic",
    "mlflow",
    "wandb",
    "timm",
    "torchvision",
)
CORE_PACKAGES = ("torch", "numpy", "Pillow", "safetensors", "scikit-learn", "pydantic", "click", "rich")
SELF_TEST = {"net.width": 8, "specialist.steps": 40, "tangent.steps": 20, "projection.steps": 20}


@click.command()
@options.device_option
@click.option("--no-test", is_flag=True, help="Leave out the self-test, which takes about ten seconds.")
@options.json_option("the report")
def doctor(device: str, no_test: bool, as_json: bool) -> None:
    """Show versions, devices and missing extras, and run a self-test.

    The output is made to be pasted into a bug report. It contains no host name and no user name.
    """
    facts = describe(device)
    if not no_test:
        facts["self_test"] = self_test(device)
    if as_json:
        print_json(facts)
    else:
        _print_facts(facts)
    if facts.get("self_test", {}).get("error"):
        raise SystemExit(1)


def describe(device: str = "auto") -> dict[str, Any]:
    """Versions, hardware, cache, extras and free disk space."""
    import torch

    from itl.apps.images.decoded_cache import cache_folder
    from itl.engine.device import choose_engine
    from itl.results import environment

    found = environment(choose_engine(device).device)
    gpus = (
        [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    cache = cache_folder()
    return {
        "versions": {**found["versions"], **{name: _version(name) for name in CORE_PACKAGES}},
        "commit": found["commit"],
        "platform": platform.platform(),
        "hardware": found["hardware"],
        "gpus": gpus,
        "triton": find_spec("triton") is not None,
        "cache": None if cache is None else {"folder": _without_home(cache), "bytes": disk_usage(cache)},
        "extras": {extra: {name: _version(name) for name in _packages_of(extra)} for extra in EXTRAS},
        "free_disk_bytes": shutil.disk_usage(Path.cwd()).free,
    }


def self_test(device: str = "auto") -> dict[str, Any]:
    """Learn two small tasks, save, load, and compare the predictions. Errors are part of the result."""
    started = time.monotonic()
    try:
        accuracy = _learn_and_reload(device)
    except Exception as error:  # a bug report is about any error
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    return {"error": None, "class_il": accuracy, "seconds": round(time.monotonic() - started, 1)}


def _learn_and_reload(device: str) -> float:
    import itl
    from itl.engine.device import use_idle_cores

    use_idle_cores()
    stream = itl.streams.load("seq-digits", tasks=2)
    learner = itl.Learner(method="itl", buffer=20, classes=stream.classes, settings=SELF_TEST, device=device)
    for task in stream:
        learner.learn(task)
    accuracy = float(learner.evaluate(stream).class_il)
    with tempfile.TemporaryDirectory() as folder:
        learner.save(f"{folder}/model")
        again = itl.load(f"{folder}/model", device=device)
        if float(again.evaluate(stream).class_il) != accuracy:
            raise RuntimeError("a saved and loaded learner predicts differently")
    return accuracy


def _packages_of(extra: str) -> list[str]:
    """The packages that an extra installs, according to the metadata of this package."""
    try:
        requirements = requires("itl") or []
    except PackageNotFoundError:  # run from its source
        return []
    wanted = [text for text in requirements if re.search(rf"""extra == ["']{extra}["']""", text)]
    return [match[0] for text in wanted if (match := re.match(r"[\w.-]+", text))]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _without_home(path: Path) -> str:
    home = Path.home()
    return str(Path("~") / path.relative_to(home)) if path.is_relative_to(home) else str(path)


def _print_facts(facts: dict[str, Any]) -> None:
    hardware, cache = facts["hardware"], facts["cache"]
    versions = {name: value for name, value in facts["versions"].items() if value}
    gpus = ", ".join(facts["gpus"]) or "none"
    lines = {
        "itl": f"{versions.pop('itl')}" + (f", commit {facts['commit']}" if facts["commit"] else ""),
        "platform": facts["platform"],
        "versions": ", ".join(f"{name} {value}" for name, value in versions.items()),
        "device": f"{hardware['device']}; GPUs: {gpus}; Triton: {'yes' if facts['triton'] else 'no'}",
        "CPU": f"{hardware['cpu'] or 'unknown'}, {hardware['cpus']} cores, {hardware['threads']} threads in use",
        "cache": "off" if cache is None else f"{cache['folder']}, {format_bytes(cache['bytes'])}",
        "free disk": format_bytes(facts["free_disk_bytes"]),
    }
    for key, value in lines.items():
        echo(f"{key:<10} {value}")
    for extra, packages in facts["extras"].items():
        missing = [name for name, found in packages.items() if found is None]
        state = "present" if not missing else f"missing {', '.join(missing)}; pip install 'itl[{extra}]'"
        echo(f"{'extra':<10} {extra}: {state}")
    test = facts.get("self_test")
    if test is not None:
        passed = (
            f"passed in {test.get('seconds')} s: learned, saved and loaded, Class-IL {test.get('class_il') or 0:.1f} %"
        )
        echo(f"{'self-test':<10} {'failed: ' + test['error'] if test['error'] else passed}")
