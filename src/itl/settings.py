"""Every setting of a learner, validated. A method is a set of defaults for these (methods.py)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from itl._deprecated import new_setting, new_setting_value
from itl.errors import UserError, unknown

Rate = Annotated[float, Field(strict=True, gt=0, le=100, allow_inf_nan=False)]
Weight = Annotated[float, Field(strict=True, ge=0, le=1e6, allow_inf_nan=False)]
Momentum = Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Reduction = Literal["mean", "sum", "classes"]
Schedule = Literal["constant", "cosine", "warm"]
OPTIONS = "specialist.options."  # names under it are the specialist's own
Policy = Annotated[str | None, BeforeValidator(lambda given: None if given == "none" else given)]  # as people write it


class SettingsGroup(BaseModel):
    """A group of settings: unknown names and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Group = TypeVar("Group", bound=SettingsGroup)


class Network(SettingsGroup):
    """Which network. `width` null: the member's own number of filters."""

    name: str = "resnet18"
    width: Annotated[int, Field(strict=True, ge=1, le=1024)] | None = None
    strided: bool = False


class MemorySettings(SettingsGroup):
    """Which images the memory keeps, and what beside image and label. `logits` null: where the specialist needs them;
    `weights` null: where the policy weighs. `temperature` is the entropy policy's; `fraction` (of the task) and `every`
    (so many epochs) are the coreset policy's.

    `outgrown` says what happens when it cannot hold `least` images of each class any more: a refusal, a larger memory,
    or one that lets some classes go.
    """

    policy: str = "stratified"
    logits: bool | None = None
    weights: bool | None = None
    temperature: Rate = 1.0
    fraction: Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)] = 0.5
    every: Count = 5
    outgrown: Literal["refuse", "grow", "drop"] = "refuse"
    least: Count = 1


class AugmentSettings(SettingsGroup):
    """What a training view is. `task` and `memory` name AutoAugment's policy, null for none, "stream" for the one that
    suits the stream; `padding` and `flip` null: what suits the stream. `fill` is AutoAugment's grey where it uncovers.
    """

    task: Policy = "stream"
    memory: Policy = "stream"
    padding: Annotated[int, Field(strict=True, ge=0, le=64)] | None = None
    flip: bool | None = None
    fill: Annotated[int, Field(strict=True, ge=0, le=255)] = 0


class SpecialistSettings(SettingsGroup):
    """Training on the task with replay. `draws` is how many independent memory batches a step takes; `steps` cuts a
    task's training short. `reduction` "mean" is the benchmark's, "sum" what the paper's appendix writes. `options` are
    the method's own, checked by the typed part that its specialist declares.
    """

    name: str = "er"
    epochs: Count = 50
    steps: Count | None = None
    batch: Count = 32
    replay: Count = 32
    lr: Rate = 0.1
    momentum: Momentum = 0.0
    weight_decay: Weight = 0.0
    schedule: Schedule = "constant"
    reduction: Reduction = "mean"
    draws: Annotated[int, Field(strict=True, ge=1, le=8)] = 1
    alpha: Weight = 0.0
    beta: Weight = 0.0
    options: dict[str, Any] = {}


class OnMemory(SettingsGroup):
    """What tangent learning and projection have in common. `steps` takes the place of `epochs`; `l2` is λ."""

    epochs: Count = 60
    steps: Count | None = None
    batch: Count = 32
    lr: Rate = 0.01
    momentum: Momentum = 0.0
    l2: Weight = 1e-5
    schedule: Schedule = "constant"
    batch_norm: Literal["train", "eval"] = "train"


class TangentSettings(OnMemory):
    """The generalist's learning on the memory: along the tangent plane, or by the ablation's fine-tuning.

    `layers` is how many of the network's last layers the tangent model moves (null: all); `alpha` weighs the stored
    logits' term (ITL-L), `beta` the cross-entropy. `batch_norm` concerns full fine-tuning only: the tangent model is
    always linearised in evaluation mode.
    """

    momentum: Momentum = 0.9
    reduction: Reduction = "mean"
    layers: Annotated[int, Field(strict=True, ge=1, le=64)] | None = 2
    alpha: Weight = 0.0
    beta: Weight = 1.0


class ProjectionSettings(OnMemory):
    """Distilling the tangent model into one set of weights, over the memory (X = B) or the task (X = D).

    `reduction` "relative" is the mean over that of the teacher's logits squared: a learning rate then means the same
    whatever their size, which grows with the epochs of tangent learning.
    """

    reduction: Literal["mean", "sum", "classes", "relative"] = "mean"
    over: Literal["memory", "task"] = "memory"


class Settings(SettingsGroup):
    """All of a learner's settings. `half_pipe` and `project` null: what the generalist has in the paper.

    `design` "reverse" is the paper's other one: the specialist on a tangent plane of the generalist, which itself is
    fine-tuned (`generalist` is then `full`).
    """

    design: Literal["itl", "reverse"] = "itl"
    generalist: Literal["none", "full", "linear", "tangent"] = "tangent"
    half_pipe: bool | None = None
    project: bool | None = None
    net: Network = Network()
    memory: MemorySettings = MemorySettings()
    augment: AugmentSettings = AugmentSettings()
    specialist: SpecialistSettings = SpecialistSettings()
    tangent: TangentSettings = TangentSettings()
    projection: ProjectionSettings = ProjectionSettings()
    precision: Literal["bf16", "tf32", "fp32"] | None = None
    exact: bool = False
    capture: bool | None = None

    @property
    def jumps(self) -> bool:
        """Whether the classifier is redrawn before the generalist learns."""
        return self.generalist == "tangent" if self.half_pipe is None else self.half_pipe

    @property
    def projects(self) -> bool:
        """Whether the generalist is distilled back into the network."""
        return self.generalist == "tangent" if self.project is None else self.project


def names(part: type[BaseModel] = Settings, prefix: str = "") -> list[str]:
    """Every setting's dotted name."""
    out = []
    for name, field in part.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            out += names(kind, f"{prefix}{name}.")
        else:
            out.append(prefix + name)
    return out


KNOWN = tuple(names())


def check_name(key: str) -> None:
    """Refuse a dotted name that is no setting's; one of a specialist's own options is for the specialist to judge."""
    if key not in KNOWN and not key.startswith(OPTIONS):
        raise unknown("setting", key, KNOWN)


def parse(pairs: Iterable[str]) -> dict[str, Any]:
    """`key=value` words as a flat dict; values are JSON where they parse as such, else text."""
    out: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise UserError(f"a setting is written key=value, not '{pair}'")
        out[key.strip()] = _value(value.strip())
    return out


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        words = {"true": True, "false": False, "none": "none", "null": None}
        try:
            return float(text)  # .1, 1e-5
        except ValueError:
            return words.get(text.lower(), text)


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested dict as dotted names; old names and values are replaced by the current ones."""
    out: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            out |= flatten(value, f"{prefix}{key}.")
        else:
            name = new_setting(f"{prefix}{key}")
            out[name] = new_setting_value(name, value)
    return out


def build(*layers: Mapping[str, Any]) -> Settings:
    """Settings from dotted or nested dicts, later ones winning over earlier ones. Mistakes are `UserError`s."""
    flat: dict[str, Any] = {}
    for layer in layers:
        flat |= flatten(layer)
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        check_name(key)
        *path, last = key.split(".")
        place = nested
        for step in path:
            place = place.setdefault(step, {})
        place[last] = value
    return _check(validate(Settings, nested))


def validate(part: type[Group], values: Mapping[str, Any], prefix: str = "", whose: str = "") -> Group:
    """A group of settings from its values; a mistake is a `UserError` that names the setting, `prefix` before it, and
    `whose` it would be.
    """
    known = names(part, prefix)
    for name in values:
        if prefix and prefix + name not in known:
            if not known:
                raise UserError(f"there is no setting '{prefix}{name}': {whose} has no options of its own")
            raise unknown("setting", prefix + name, known)
    try:
        return part.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if str(part) in "|".join(known))
        reason = f"{first['msg'][0].lower()}{first['msg'][1:]}"
        raise UserError(f"setting {prefix}{where} = {first['input']!r} is not valid: {reason}") from None


def _check(settings: Settings) -> Settings:
    """Refuse combinations that mean nothing."""
    if settings.design == "reverse":
        if settings.half_pipe or settings.project:
            raise UserError(
                "design=reverse has no half-pipe and projects the specialist; leave half_pipe and project out"
            )
        return settings.model_copy(update={"generalist": "full", "half_pipe": False, "project": False})
    if settings.generalist == "none" and (settings.project or settings.half_pipe):
        raise UserError(
            "generalist=none leaves nothing to project or to jump for; set generalist=tangent, full or linear"
        )
    return settings
