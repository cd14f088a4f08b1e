"""All settings of a learner, validated. A method is a set of defaults for them (`itl.presets`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from itl._deprecated import new_setting, new_setting_value
from itl.errors import UserError, unknown

Rate = Annotated[float, Field(strict=True, gt=0, le=100, allow_inf_nan=False)]
Weight = Annotated[float, Field(strict=True, ge=0, le=1e6, allow_inf_nan=False)]
Momentum = Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)]
Probability = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
MAX_COUNT = 1_000_000
Count = Annotated[int, Field(strict=True, ge=1, le=MAX_COUNT)]
Reduction = Literal["mean", "sum", "classes"]
Schedule = Literal["constant", "cosine", "warm"]
OPTIONS = "specialist.options."  # prefix of the settings that a specialist declares itself
HALF_PIPE_NAMES = {"own": False, "redrawn": True}
HalfPipe = Annotated[
    bool | Literal["linear"] | None, BeforeValidator(lambda given: HALF_PIPE_NAMES.get(str(given), given))
]
Policy = Annotated[str | None, BeforeValidator(lambda given: None if given == "none" else given)]  # accepts "none"


class SettingsGroup(BaseModel):
    """A group of settings that rejects unknown names and wrong types."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Group = TypeVar("Group", bound=SettingsGroup)


class Network(SettingsGroup):
    """Backbone.

    Attributes:
        name: Name of a registered backbone; `itl backbones` lists them.
        width: Filters in the first layer; null: the backbone's default.
        strided: Whether the first convolution has stride 2, for larger images.
        pretrained: Whether to start from the backbone's pre-trained weights, with their preprocessing.
        weights: A safetensors file to start from, in place of the backbone's own pre-trained weights; null: none.
        size: Height and width to which images are resized in front of the network; null: their own.
        trained: Number of last layers to train, the classifier included. The layers before them are frozen, and their
            features are computed once per image. null: train the whole network.
        feature_layers: Number of layers before the classifier whose pooled outputs are the features, if `trained` is 1;
            1: the last layer's features as they are.
    """

    name: str = "resnet18"
    width: Annotated[int, Field(strict=True, ge=1, le=1024)] | None = None
    strided: bool = False
    pretrained: bool = False
    weights: str | None = None
    size: Annotated[int, Field(strict=True, ge=8, le=1024)] | None = None
    trained: Annotated[int, Field(strict=True, ge=1, le=64)] | None = None
    feature_layers: Annotated[int, Field(strict=True, ge=1, le=64)] = 1


class MemorySettings(SettingsGroup):
    """Memory.

    Attributes:
        policy: Name of a memory policy.
        logits: Whether to store logits with the images; null: if the specialist needs them.
        weights: Whether to use sample weights; null: if the policy assigns them.
        temperature: Temperature of the entropy policy.
        fraction: Fraction of the task in a coreset (coreset policy).
        every: Epochs between two coresets (coreset policy).
        outgrown: What to do when the memory cannot hold `least` images of each class: "refuse" the task, "grow" the
            memory, or "drop" classes.
        least: Minimum number of images per class.
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
    """Augmentation of training images.

    Attributes:
        task: AutoAugment policy for the task's images: a name, null for none, or "stream" for the stream's policy.
        memory: AutoAugment policy for the memory's images, likewise.
        generalist: AutoAugment policy for the memory's images while the generalist learns and is projected, likewise;
            "memory": that of `memory`.
        padding: Padding of the random crop; null: the stream's.
        flip: Whether to flip images horizontally; null: as the stream says.
        fill: Gray level of pixels that AutoAugment uncovers.
    """

    task: Policy = "stream"
    memory: Policy = "stream"
    generalist: Policy = "memory"
    padding: Annotated[int, Field(strict=True, ge=0, le=64)] | None = None
    flip: bool | None = None
    fill: Annotated[int, Field(strict=True, ge=0, le=255)] = 0

    @property
    def generalist_policy(self) -> str | None:
        """Policy for the memory's images while the generalist learns."""
        return self.memory if self.generalist == "memory" else self.generalist


class SpecialistSettings(SettingsGroup):
    """Training on a task with replay.

    Attributes:
        name: Name of the specialist.
        epochs: Epochs per task.
        steps: Maximum number of steps per task; null: no limit.
        patience: Epochs without progress until the learning rate falls to a tenth, and then until training ends; null:
            train all epochs.
        batch: Images of the task per step.
        replay: Images of each replay batch.
        lr: Learning rate.
        momentum: Momentum.
        weight_decay: Weight decay.
        schedule: "constant", "cosine" (cosine decay) or "warm" (linear warm-up, then cosine decay).
        reduction: "mean" as in the benchmark's code, "sum" as in the paper's appendix, or "classes" (sum over classes,
            mean over the batch).
        draws: Independent replay batches per step.
        alpha: Weight of the logits' term (DER, DER++).
        beta: Weight of the replayed labels' term (DER++).
        options: The method's own settings, validated by the group that its specialist declares.
    """

    name: str = "er"
    epochs: Count = 50
    steps: Count | None = None
    patience: Count | None = None
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


class GeneralistStageSettings(SettingsGroup):
    """Settings that tangent learning and projection share.

    Attributes:
        epochs: Epochs over the memory.
        steps: Number of steps; replaces `epochs` unless null.
        batch: Images per step.
        lr: Learning rate.
        momentum: Momentum.
        l2: λ of the penalty λ‖w‖².
        schedule: Learning-rate schedule, as for the specialist.
        batch_norm: Batch norm in "train" or "eval" mode.
    """

    epochs: Count = 60
    steps: Count | None = None
    batch: Count = 32
    lr: Rate = 0.01
    momentum: Momentum = 0.0
    l2: Weight = 1e-5
    schedule: Schedule = "constant"
    batch_norm: Literal["train", "eval"] = "train"


class TangentSettings(GeneralistStageSettings):
    """The generalist's learning on the memory: tangent learning, or the ablation's fine-tuning.

    `batch_norm` applies to full fine-tuning only; the tangent model is always linearized in evaluation mode.

    Attributes:
        reduction: Reduction of the loss, as for the specialist.
        layers: Number of the network's last layers in the tangent model; null: all.
        statistics: Batch-norm statistics at which the generalist starts: those of the "specialist", or those of
            augmented views of the "memory".
        alpha: Weight of the stored logits' term (ITL-L).
        beta: Weight of the cross-entropy.
        solver: "sgd", as in the paper: epochs over fresh views; or "lbfgs", for tangent and linear generalists: the
            minimum over a fixed set of views, where λ penalizes the change from the weights at the start.
            `lbfgs` ignores `epochs`, `steps`, `batch`, `lr`, `momentum` and `schedule`.
        views: Augmented views of each image (lbfgs, statistics).
        iterations: Maximum number of iterations (lbfgs).
        tolerance: Stop at this fraction of the initial gradient norm (lbfgs).
    """

    momentum: Momentum = 0.9
    reduction: Reduction = "mean"
    layers: Annotated[int, Field(strict=True, ge=1, le=64)] | None = 2
    statistics: Literal["specialist", "memory"] = "specialist"
    alpha: Weight = 0.0
    beta: Weight = 1.0
    solver: Literal["sgd", "lbfgs"] = "sgd"
    views: Count = 16
    iterations: Count = 100
    tolerance: Weight = 3e-4


class ProjectionSettings(GeneralistStageSettings):
    """Projection: distillation of the tangent model into one set of weights.

    Attributes:
        reduction: As for the specialist, or "relative": the mean squared error divided by the mean square of the
            teacher's logits, so that the learning rate does not depend on their size.
        over: Images to distill on: the "memory" or the "task".
        loss: "mse", the squared error of the paper; or "kl": the cross-entropy of probabilities softened by
            `temperature`, times its square (`reduction` has no effect).
        temperature: Temperature of the kl loss.
        teacher_rms: Scale the teacher's logits to this root mean square, after subtracting each image's mean, and the
            network's classifier alike, so that their size does not depend on the generalist's settings; null: off.
        monitor: Whether to compare the network with the generalist on held-out views of the memory after each round,
            and to return to the best weights at a lower rate when accuracy is lost.
    """

    reduction: Literal["mean", "sum", "classes", "relative"] = "mean"
    over: Literal["memory", "task"] = "memory"
    loss: Literal["mse", "kl"] = "mse"
    temperature: Rate = 2.0
    teacher_rms: Rate | None = None
    monitor: bool = False


class Settings(SettingsGroup):
    """All settings of a learner.

    Attributes:
        design: "itl", or "reverse" for the paper's alternative design: the specialist learns on a tangent plane of the
            generalist, which is fine-tuned (`generalist` is then "full").
        generalist: Learning on the memory at the end of a task.
        half_pipe: Whether to redraw the classifier before the generalist learns: true ("redrawn") or false ("own");
            null: as in the paper. "linear": then fit it on the memory, with L-BFGS and the settings of `tangent`.
        half_pipe_scale: Factor of the redrawn classifier's weights.
        project: Whether to distill the generalist into the network; null: as in the paper.
        net: Backbone.
        memory: Memory.
        augment: Augmentation.
        specialist: Training on the task.
        tangent: Learning on the memory.
        projection: Distillation.
        precision: Arithmetic of the specialist; null: bf16 on CUDA, fp32 on a CPU.
        exact: Whether to use deterministic kernels.
        capture: Whether to capture steps as CUDA graphs; null: on CUDA.
        class_il_over: Classes among which a Class-IL evaluation chooses: "all" outputs, or the classes "seen" so far.
    """

    design: Literal["itl", "reverse"] = "itl"
    generalist: Literal["none", "full", "linear", "tangent"] = "tangent"
    half_pipe: HalfPipe = None
    half_pipe_scale: Rate = 1.0
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
    class_il_over: Literal["all", "seen"] = "all"

    @property
    def redraws_classifier(self) -> bool:
        """Whether the classifier is redrawn before the generalist learns."""
        return self.generalist == "tangent" if self.half_pipe is None else bool(self.half_pipe)

    @property
    def projects(self) -> bool:
        """Whether the generalist is distilled back into the network."""
        return self.generalist == "tangent" if self.project is None else self.project


def names(group: type[BaseModel] = Settings, prefix: str = "") -> list[str]:
    """Dotted names of all settings in a group."""
    out = []
    for name, field in group.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            out += names(kind, f"{prefix}{name}.")
        else:
            out.append(prefix + name)
    return out


KNOWN = tuple(names())


def check_name(key: str) -> None:
    """Reject a dotted name that is not a setting. A specialist's own options are checked by the specialist.

    Raises:
        UserError: The name is unknown.
    """
    if key not in KNOWN and not key.startswith(OPTIONS):
        raise unknown("setting", key, KNOWN)


def parse(pairs: Iterable[str]) -> dict[str, Any]:
    """Parse `key=value` strings into a flat dict; values are JSON if they parse, else text.

    Raises:
        UserError: A string is not of the form key=value.
    """
    out: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise UserError(f"Settings have the form key=value, not '{pair}'.")
        out[key.strip()] = _value(value.strip())
    return out


def value_text(value: Any) -> str:
    """A setting's value in the form that `parse` reads."""
    return value if isinstance(value, str) else json.dumps(value)


def as_words(settings: Mapping[str, Any]) -> list[str]:
    """Settings by dotted name as `key=value` strings, which `parse` reads."""
    return [f"{key}={value_text(value)}" for key, value in settings.items()]


def _value(text: str) -> Any:
    for read in (json.loads, float):  # `float` also reads .1
        with suppress(ValueError):
            return read(text)
    return {"true": True, "false": False, "none": "none", "null": None}.get(text.lower(), text)


def dotted(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a nested dict to dotted names."""
    out: dict[str, Any] = {}
    for key, value in nested.items():
        out |= dotted(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return out


def flatten(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a nested dict to dotted names; replace deprecated names and values."""
    out: dict[str, Any] = {}
    for given, value in dotted(nested).items():
        name = new_setting(given)
        out[name] = new_setting_value(name, value)
    return out


def build(*layers: Mapping[str, Any]) -> Settings:
    """Build settings from dotted or nested dicts; later ones override earlier ones.

    Raises:
        UserError: A name is unknown, a value is invalid, or the combination is meaningless.
    """
    flat = {key: value for layer in layers for key, value in flatten(layer).items()}
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        check_name(key)
        *path, last = key.split(".")
        target = nested
        for step in path:
            target = target.setdefault(step, {})
        target[last] = value
    return _check(validate(Settings, nested))


def validate(group: type[Group], values: Mapping[str, Any], prefix: str = "", owner: str = "") -> Group:
    """Validate a group of settings.

    Args:
        group: The group's class.
        values: Values by name.
        prefix: Prefix of the names in error messages.
        owner: What the settings belong to, for error messages.

    Raises:
        UserError: A name is unknown or a value is invalid; the message names the setting.
    """
    known = names(group, prefix)
    for name in values:
        if prefix and prefix + name not in known:
            if not known:
                raise UserError(f"There is no setting '{prefix}{name}': {owner} has no options.")
            raise unknown("setting", prefix + name, known)
    try:
        return group.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if str(part) in "|".join(known))
        reason = f"{first['msg'][0].lower()}{first['msg'][1:]}"
        raise UserError(f"Setting {prefix}{where} = {first['input']!r} is not valid: {reason}.") from None


def _check(settings: Settings) -> Settings:
    """Reject meaningless combinations."""
    if settings.tangent.solver == "lbfgs" and (settings.generalist == "full" or settings.design == "reverse"):
        raise UserError("tangent.solver=lbfgs solves convex problems: generalist=tangent or linear. Set it to sgd.")
    if settings.design == "reverse":
        if settings.half_pipe or settings.project:
            raise UserError("design=reverse has no half-pipe and always projects. Remove half_pipe and project.")
        return settings.model_copy(update={"generalist": "full", "half_pipe": False, "project": False})
    if settings.generalist == "none" and (settings.project or settings.half_pipe):
        raise UserError("generalist=none has neither half-pipe nor projection. Set generalist=tangent, full or linear.")
    return settings
