"""Deprecated names: every name that was renamed keeps working, with a `DeprecationWarning` that names the new one.

`deprecated_names.json` lists them; old names may appear there and in its tests only. To rename something, add one line
to the right table, from the old name to the new one:

- `modules`: a module or package that moved; submodules follow their package unless they have their own line;
- `names`: a class, function or constant, by the path under which users imported it, through an old or a current module;
- `members`: methods and attributes, by the current path of their class. Subclasses may override them under either name,
  and the parameters of a dataclass follow its attributes;
- `parameters`: parameters, by the current path of their function;
- `settings`: dotted settings; `setting_values`: their values;
- `entry_point_groups`: groups of entry points, the other way round: from the new name to the old one.

`install()` is called by `import itl`. It adds an import hook, which attaches the old names to each module when it is
imported. No other module of the package is imported, so `import itl` stays fast.
"""

from __future__ import annotations

import functools
import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

_TABLES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("deprecated_names.json").read_text("utf-8"))
MODULES: dict[str, str] = _TABLES["modules"]
NAMES: dict[str, str] = _TABLES["names"]
MEMBERS: dict[str, dict[str, str]] = _TABLES["members"]
PARAMETERS: dict[str, dict[str, str]] = _TABLES["parameters"]
SETTINGS: dict[str, str] = _TABLES["settings"]
SETTING_VALUES = {(name, old): new for name, values in _TABLES["setting_values"].items() for old, new in values.items()}
ENTRY_POINT_GROUPS: dict[str, str] = _TABLES["entry_point_groups"]


def warn(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn that `old` is deprecated in favor of `new`, at the caller's caller."""
    warnings.warn(f"{old} is deprecated, use {new}", DeprecationWarning, stacklevel=stacklevel)


def new_module(name: str) -> str:
    """Current name of a module: the longest renamed prefix of `name` is replaced."""
    parts = name.split(".")
    for length in range(len(parts), 1, -1):
        prefix = ".".join(parts[:length])
        if prefix in MODULES:
            return ".".join([MODULES[prefix], *parts[length:]])
    return name


def new_setting(name: str) -> str:
    """Current name of a dotted setting; warns if `name` is an old one."""
    if name in SETTINGS:
        warn(f"setting {name}", SETTINGS[name], stacklevel=4)
    return SETTINGS.get(name, name)


def new_setting_value(name: str, value: Any) -> Any:
    """Current form of the value of a setting; warns if `value` is an old one."""
    if isinstance(value, str) and (name, value) in SETTING_VALUES:
        warn(f"{name}={value}", f"{name}={SETTING_VALUES[name, value]}", stacklevel=4)
        return SETTING_VALUES[name, value]
    return value


def update_saved_settings(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted settings from a file with current names and values, without warnings."""
    renamed = {SETTINGS.get(name, name): value for name, value in saved.items()}
    return {
        name: SETTING_VALUES.get((name, value), value) if isinstance(value, str) else value
        for name, value in renamed.items()
    }


def entry_points_of(group: str) -> list[EntryPoint]:
    """Entry points of a group, including those that plug-ins still declare under its old name."""
    found = list(entry_points(group=group))
    old = ENTRY_POINT_GROUPS.get(group)
    if old is not None:
        for point in entry_points(group=old):
            warn(f"entry-point group {old} (of {point.name})", group)
            found.append(point)
    return found


def rename_parameters(function: Callable[..., Any], renamed: Mapping[str, str]) -> Callable[..., Any]:
    """`function` that accepts the keyword arguments `{old: new}` under their old names too."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        for old in renamed.keys() & kwargs.keys():
            new = renamed[old]
            if new in kwargs:
                raise TypeError(f"{function.__qualname__}() got both {old} and {new}, which are the same")
            warn(f"argument {old} of {function.__qualname__}()", new)
            kwargs[new] = kwargs.pop(old)
        return function(*args, **kwargs)

    return wrapper


def rename_members(cls: Any, renamed: Mapping[str, str]) -> None:
    """Let the members `{old: new}` of a class and its subclasses be used and overridden under their old names too."""

    def adopt(subclass: type) -> None:
        for old, new in renamed.items():
            if old in vars(subclass) and new not in vars(subclass):
                warn(f"method {subclass.__name__}.{old}", new, stacklevel=5)
                setattr(subclass, new, vars(subclass)[old])
        _add_old_members(subclass, {old: new for old, new in renamed.items() if new in vars(subclass)})

    def init_subclass(subclass: type, /, **options: Any) -> None:
        super(cls, subclass).__init_subclass__(**options)
        adopt(subclass)

    _add_old_members(cls, renamed)
    for subclass in cls.__subclasses__():  # those in the module of the class itself
        adopt(subclass)
    cls.__init_subclass__ = classmethod(init_subclass)
    if is_dataclass(cls):
        names = {field.name for field in fields(cls)}
        init = rename_parameters(vars(cls)["__init__"], {old: new for old, new in renamed.items() if new in names})
        type.__setattr__(cls, "__init__", init)


def _add_old_members(cls: type, renamed: Mapping[str, str]) -> None:
    for old, new in renamed.items():
        if old not in vars(cls):
            setattr(cls, old, _OldMember(cls, old, new))


class _OldMember:
    """Deprecated alias of a class's member. `super().old()` is `new` of that class, not of a subclass."""

    def __init__(self, cls: type, old: str, new: str) -> None:
        self.cls, self.old, self.new = cls, old, new

    def __get__(self, instance: Any, owner: type) -> Any:
        warn(f"{self.cls.__name__}.{self.old}", self.new)
        if instance is None:
            return getattr(owner, self.new)
        if self.new in vars(instance) or self.new not in vars(self.cls):
            return getattr(instance, self.new)
        member = vars(self.cls)[self.new]
        return member.__get__(instance, owner) if hasattr(member, "__get__") else member

    def __set__(self, instance: Any, value: Any) -> None:
        warn(f"{self.cls.__name__}.{self.old}", self.new)
        setattr(instance, self.new, value)


def install() -> None:
    """Make old module paths and names importable."""
    if not any(isinstance(finder, _DeprecatedFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _DeprecatedFinder())


@functools.cache
def _renamed_by_module() -> dict[str, dict[str, str]]:
    """Current module -> {old name: qualified new name}, including the old names of submodules."""
    table: dict[str, dict[str, str]] = {}
    for old, new in {**MODULES, **NAMES}.items():
        owner, _, name = old.rpartition(".")
        table.setdefault(new_module(owner), {})[name] = new
    return table


@functools.cache
def _modules_with_old_members() -> dict[str, list[tuple[str, dict[str, str]]]]:
    """Current module -> (path of a class or function in it, its old members or parameters)."""
    table: dict[str, list[tuple[str, dict[str, str]]]] = {}
    for path, renamed in {**MEMBERS, **PARAMETERS}.items():
        parts = path.split(".")
        length = next(k for k, part in enumerate(parts) if not part.islower() or k == len(parts) - 1)
        table.setdefault(".".join(parts[:length]), []).append((".".join(parts[length:]), renamed))
    return table


class _DeprecatedFinder(MetaPathFinder):
    """Finds old modules, and adds the old names to the current modules that had them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("itl."):
            return None
        if new_module(fullname) != fullname:
            return ModuleSpec(fullname, _AliasLoader())
        if fullname not in _renamed_by_module() and fullname not in _modules_with_old_members():
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            _add_names_after_import(spec.loader)
        return spec


class _AliasLoader(Loader):
    """Loads the current module under its old name."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        new = new_module(module.__name__)
        sys.modules[module.__name__] = import_module(new)
        warn(f"module {module.__name__}", new)


class _ModuleWithOldNames(ModuleType):
    """A module in which importing an old submodule does not hide a function, old or current, of the same name."""

    def __setattr__(self, name: str, value: Any) -> None:
        new = _renamed_by_module().get(self.__name__, {}).get(name)
        hidden = vars(self).get(name, value)
        if not (
            isinstance(value, ModuleType) and new and (new != value.__name__ or not isinstance(hidden, ModuleType))
        ):
            super().__setattr__(name, value)


def _add_names_after_import(loader: Loader) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        for path, renamed in _modules_with_old_members().get(module.__name__, ()):
            _rename_in(module, path, renamed)
        table = _renamed_by_module().get(module.__name__, {})
        previous: Callable[[str], Any] | None = vars(module).get("__getattr__")

        def get(name: str) -> Any:
            if name in table:
                warn(f"{module.__name__}.{name}", table[name])
                return resolve_name(table[name])
            if previous is not None:
                return previous(name)
            raise AttributeError(f"module '{module.__name__}' has no attribute '{name}'")

        module.__getattr__ = get  # type: ignore[method-assign]
        module.__class__ = _ModuleWithOldNames

    loader.exec_module = exec_module  # type: ignore[method-assign]


def _rename_in(module: ModuleType, path: str, renamed: Mapping[str, str]) -> None:
    """Rename the members of a class or the parameters of a function, such as `run` or `Model.open`, of a module."""
    class_name, _, name = path.rpartition(".")
    owner = getattr(module, class_name) if class_name else module
    found = vars(owner)[name]
    if isinstance(found, type):
        rename_members(found, renamed)
    elif isinstance(found, classmethod):
        setattr(owner, name, classmethod(rename_parameters(found.__func__, renamed)))
    else:
        setattr(owner, name, rename_parameters(found, renamed))
