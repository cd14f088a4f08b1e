"""Find methods and their defaults: in this package's `specialists` folder, registered in Python, or as plug-ins.

A method is one class, a `Specialist`, whose attributes hold its name, summary, reference and defaults. For the methods
of this package these attributes are literals, and they are read from the source files without importing them: the
command line needs names and defaults at once, and importing torch takes seconds.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from itl import plugins
from itl.errors import UserError, unknown
from itl.static_attributes import classes_in, inherited, with_bases

ENTRY_POINT_GROUP = "itl.methods"
PACKAGE = "itl.specialists"
SPECIALISTS_FOLDER = Path(__file__).parent / "specialists"

Defaults = Mapping[str, Any]
StreamDefaults = Mapping[tuple[str, int | None], Defaults]


@dataclass(frozen=True)
class MethodInfo:
    """What a method's class says about itself.

    Attributes:
        name: The method's name; also the value of the setting `specialist.name`.
        summary: One line for `itl methods`. Empty for a specialist that is only used by compositions.
        reference: Authors, title, venue and year of the publication.
        defaults: Settings by dotted name, with the values that the method was published with.
        stream_defaults: Settings that refine `defaults` for (stream, buffer size), or for (stream, None).
        based_on: The name of a method whose defaults this method inherits.
        note: Where the defaults deviate from the publication.
    """

    name: str
    summary: str = ""
    reference: str = ""
    defaults: Defaults = field(default_factory=dict)
    stream_defaults: StreamDefaults = field(default_factory=dict)
    based_on: str | None = None
    note: str = ""

    @classmethod
    def of(cls, specialist: type) -> MethodInfo:
        """The attributes that `specialist` itself defines; those of its base classes are not inherited."""
        return cls(**{name: value for name, value in vars(specialist).items() if name in ATTRIBUTES})

    @property
    def is_method(self) -> bool:
        """Whether the class can be used as `--method`; without defaults it is only a value of `specialist.name`."""
        return bool(self.defaults or self.based_on)


ATTRIBUTES = tuple(f.name for f in fields(MethodInfo))
REGISTERED: dict[str, type] = {}


def register(specialist: type) -> type:
    """Make a method known under its `name` for the rest of the process; usable as a class decorator.

    Use this in a notebook or a script. A package should offer its methods by the entry point group `itl.methods`.
    """
    name = MethodInfo.of(specialist).name
    if name in built_in():
        raise UserError(f"there is already a method '{name}'; give {specialist.__name__} another name")
    REGISTERED[name] = specialist
    return specialist


@cache
def built_in() -> dict[str, tuple[MethodInfo, str, str]]:
    """(info, module, class name) of each specialist of this package, by name. No module is imported."""
    found = {}
    for class_name, source in classes_in(SPECIALISTS_FOLDER).items():
        values = {name: source.literal(value, name) for name, value in source.assignments() if name in ATTRIBUTES}
        if "name" in values:
            found[values["name"]] = (MethodInfo(**values), f"{PACKAGE}.{source.path.stem}", class_name)
    return found


def class_attribute(name: str, attribute: str) -> Any:
    """An attribute of a specialist's class that is a literal, such as `stores_logits`. Only plug-ins are imported."""
    if name not in built_in():
        return getattr(load(name), attribute)
    value = inherited(SPECIALISTS_FOLDER, built_in()[name][2], attribute)
    return None if value is None else ast.literal_eval(value)


def option_defaults(name: str) -> dict[str, Any]:
    """The settings `specialist.options.*` of a method with their default values. Only plug-ins are imported."""
    if name not in built_in():
        return load(name).Options().model_dump()  # type: ignore[attr-defined, no-any-return]
    options = inherited(SPECIALISTS_FOLDER, built_in()[name][2], "Options")
    assert isinstance(options, ast.Name)
    classes = reversed(with_bases(SPECIALISTS_FOLDER, options.id))
    return {field: source.literal(value, field) for source in classes for field, value in source.assignments()}


def names() -> list[str]:
    """Names of all specialists: this package's, registered ones, then plug-ins. Plug-ins are not imported."""
    return list(dict.fromkeys([*built_in(), *REGISTERED, *plugins.find_all(ENTRY_POINT_GROUP)]))


def info(name: str) -> MethodInfo:
    """What the class of a method says about itself. Only plug-ins are imported.

    Raises:
        UserError: If there is no such method, or it is a plug-in that cannot be used.
    """
    return built_in()[name][0] if name in built_in() else MethodInfo.of(load(name))


def load(name: str) -> type:
    """Import the class of a method.

    Raises:
        UserError: If there is no such method, or it is a plug-in that cannot be used.
    """
    if name in built_in():
        _, module, class_name = built_in()[name]
        return getattr(import_module(module), class_name)  # type: ignore[no-any-return]
    if name in REGISTERED:
        return REGISTERED[name]
    point = plugins.find_all(ENTRY_POINT_GROUP).get(name)
    if point is None:
        raise unknown("method", name, names())
    return _plugin(point)


def _plugin(point: EntryPoint) -> type:
    """Import a plug-in's class and check that it describes itself."""
    found: type = plugins.load("method", point, import_module(f"{PACKAGE}.base").Specialist)
    described = vars(found)
    if described.get("name") != point.name:
        raise UserError(
            f"the method {point.name} ({point.value}) calls itself {described.get('name')!r}; "
            "the entry point and the class attribute `name` must be the same"
        )
    carries_defaults = point.group == ENTRY_POINT_GROUP  # methods of the deprecated group have none
    if carries_defaults and not MethodInfo.of(found).is_method:
        raise UserError(
            f"the method {point.name} ({point.value}) has no defaults; set `defaults`, or `based_on` to the method "
            "whose defaults it shares"
        )
    return found
