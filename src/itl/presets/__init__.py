"""Methods by name: the baselines that `itl.specialists` and plug-ins describe, and ITL's compositions.

A row of the paper's tables is a set of default settings and nothing else. Each can be overridden (`--set key=value`).
"""

from __future__ import annotations

import warnings

from itl import method_catalog
from itl.errors import UserError, unknown
from itl.method_catalog import Defaults
from itl.presets.base import Method, from_info
from itl.presets.compositions import COMPOSITIONS, FROZEN_TRUNK_VIEWS, ITL_PAPER, PRETRAINED
from itl.settings import OPTIONS, Settings, build, flatten

__all__ = ["ITL_PAPER", "METHODS", "Method", "all_methods", "get", "names", "settings_for"]

# The methods of this package: baselines in alphabetical order, then compositions.
METHODS: dict[str, Method] = {}
CONVEX_SETTINGS = ("tangent.solver", "tangent.l2")  # defaults that suit a convex problem only


def get(name: str) -> Method:
    """The method called `name`, from this package or from a plug-in.

    Raises:
        UserError: If there is no such method, or it is a plug-in that cannot be used.
    """
    if name in METHODS:
        return METHODS[name]
    if name not in names():
        raise unknown("method", name, names())
    info = method_catalog.info(name)
    if not info.is_method:
        raise UserError(f"{name} has no defaults to be used as a method; use it with --set specialist.name={name}")
    return from_info(info, get)


def names() -> list[str]:
    """Names of all methods. Plug-ins come last, and are not imported."""
    specialists = method_catalog.built_in()
    return [*METHODS, *(name for name in method_catalog.names() if name not in METHODS and name not in specialists)]


def all_methods() -> list[Method]:
    """All methods, plug-ins included; a plug-in that cannot be used is left out with a warning."""
    found = []
    for name in names():
        try:
            found.append(get(name))
        except UserError as error:
            warnings.warn(str(error), stacklevel=2)
    return found


def settings_for(name: str, stream: str | None, buffer: int, overrides: Defaults | None = None) -> Settings:
    """The settings of a method on a stream.

    If the overrides add a generalist to a method without one, it gets ITL's settings for the generalist, and a
    stratified memory if the method has none, because a generalist learns from the memory. If they replace the method's
    specialist, the options of that specialist are dropped. If they replace a solved generalist by one that cannot be
    solved, the solver and its λ are dropped. On a pre-trained backbone, tangent learning is solved, starting at the
    specialist's classifier.

    Args:
        name: A method's name.
        stream: A stream's name; None if the images are not from a known stream.
        buffer: Size of the memory in images.
        overrides: Settings that take precedence over the method's defaults, dotted or nested.

    Raises:
        UserError: If the method or a setting is unknown, or a value is invalid.
    """
    given, defaults = flatten(overrides or {}), get(name).defaults_for(stream, buffer)
    if given.get("generalist", "none") != "none" and defaults.get("generalist") == "none":
        itl = METHODS["itl"].defaults_for(stream, buffer)
        stages = ("tangent.", "projection.", "half_pipe_scale")
        defaults |= {key: value for key, value in itl.items() if key.startswith(stages)}
        if defaults.get("memory.policy") == "none":
            defaults["memory.policy"] = "stratified"
    if given.get("net.pretrained") and "tangent" in (given.get("generalist"), defaults.get("generalist")):
        defaults |= {**PRETRAINED, **(FROZEN_TRUNK_VIEWS if given.get("net.trained") else {})}
    if given.get("specialist.name", defaults.get("specialist.name")) != defaults.get("specialist.name"):
        defaults = {key: value for key, value in defaults.items() if not key.startswith(OPTIONS)}
    if given.get("generalist") == "full" or given.get("design") == "reverse":  # neither is a convex problem
        defaults = {key: value for key, value in defaults.items() if key not in CONVEX_SETTINGS}
    return build(defaults, given)


def _collect() -> None:
    """Fill METHODS. A method may be based on one that comes later in the alphabet."""
    infos = {name: info for name, (info, *_) in method_catalog.built_in().items() if info.is_method}

    def find(name: str) -> Method:
        if name not in infos:
            raise ValueError(f"a method is based on '{name}', which is not a method in itl/specialists")
        return from_info(infos[name], find)

    METHODS.update({name: find(name) for name in sorted(infos)})
    METHODS.update({method.name: method for method in COMPOSITIONS})


_collect()
