"""Checks the settings and tasks of a learner. Each error says in one line what is wrong and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from itl.engine.stage import Diverged
from itl.errors import UserError
from itl.memory import Memory
from itl.settings import MemorySettings, Settings
from itl.specialists import Specialist
from itl.streams import Images, Task

if TYPE_CHECKING:
    from itl.learner.learner import Learner


def check_settings(method: str, classes: int | None, s: Settings, specialist: Specialist, memory: Memory) -> None:
    """Raise `UserError` if settings, specialist and memory do not fit together."""
    name, policy, required = specialist.name, memory.policy, specialist.required_policy
    if s.memory.policy == "none" and (specialist.needs_memory or s.generalist != "none"):
        raise UserError(f"method {method} needs a memory; set memory.policy=stratified or reservoir")
    if required is not None and s.memory.policy != required:
        raise UserError(f"{name} works with one memory policy only; set memory.policy={required}")
    if s.memory.policy == "gss" and required != "gss":
        raise UserError(f"memory.policy=gss compares gradients, which {name} does not compute; set another policy")
    if specialist.data != "task" and (policy.plans_writes or policy.candidates_class):
        raise UserError(f"{name} needs a memory that is selected at the end of a task; set memory.policy=stratified")
    if s.net.trained is not None and s.net.trained < specialist.min_trained_layers:
        least = specialist.min_trained_layers
        raise UserError(f"{name} needs weights before the classifier; set net.trained={least} or more")
    if specialist.requires_fixed_classes and classes is None:
        raise UserError(f"{name} needs the number of classes from the start; pass classes=N")
    _check_stored_logits(s, specialist, memory)
    if s.design == "reverse" and _uses_step_outputs(memory):
        raise UserError(
            "design=reverse computes no predictions in its steps, but this memory needs them; "
            "set memory.policy=stratified"
        )
    if s.memory.weights and not policy.assigns_weights:
        raise UserError(
            f"memory.weights needs a policy that assigns weights, which {s.memory.policy} does not; set it to false"
        )


def _check_stored_logits(s: Settings, specialist: Specialist, memory: Memory) -> None:
    name, policy = specialist.name, memory.policy
    if specialist.stores_logits and s.memory.logits is False:
        raise UserError(f"{name} replays stored logits, but memory.logits=false does not store them; set it to true")
    stores_by_step = specialist.stores_logits and not specialist.stores_logits_at_task_end
    if stores_by_step and not (policy.plans_writes or policy.candidates_class):
        raise UserError(f"{name} stores logits step by step; set memory.policy=reservoir")
    if specialist.stores_logits_at_task_end and policy.plans_writes:
        raise UserError(
            f"{name} has logits of past tasks' images only, and memory.policy={s.memory.policy} stores those of the "
            "current task; set memory.policy=stratified, herding, entropy or coreset"
        )
    if s.tangent.alpha and memory.logits is None:
        raise UserError(f"tangent.alpha needs stored logits, which {name} does not store; set memory.logits=true")


def _uses_step_outputs(memory: Memory) -> bool:
    """Whether a memory uses the network's outputs during steps, to select samples or to store them."""
    policy, stores = memory.policy, memory.logits is not None
    if policy.candidates_class is not None:
        return stores or policy.candidates_class.needs_logits
    return policy.selector_class is not None or (stores and policy.plans_writes)


def check_memory_size(s: MemorySettings, size: int, classes: int) -> None:
    """Raise `UserError` if the memory is too small for `classes` classes, unless the settings allow it."""
    needed = classes * s.least
    if s.policy != "none" and s.outgrown == "refuse" and size < needed:
        images = "one image" if s.least == 1 else f"{s.least} images"
        raise UserError(
            f"a buffer of {size} cannot hold {images} of each of {classes} classes; use --buffer {needed} or more"
        )
    if s.policy != "none" and s.outgrown == "drop" and not size:
        raise UserError("a buffer of 0 cannot hold any images; use --buffer 1 or more")


def check_shape(what: str, images: Images, expected: tuple[int, ...]) -> None:
    """Raise `UserError` if the images have another shape than those that the learner was built for."""
    shape = tuple(images.source.shape[1:])
    if shape != tuple(expected):
        raise UserError(f"{what} have the shape {list(shape)}, the learner expects {list(expected)}; resize them")


def check_task(learner: Learner, task: Task, is_new: bool) -> None:
    """Raise `UserError` if a task does not fit the learner; `is_new` is False if it continues an unfinished task."""
    check_shape("this task's images", task.train, learner.image_shape)
    known = {column for classes in learner.tasks for column in classes} & set(task.classes)
    if learner.specialist.requires_new_classes and known and is_new:
        raise UserError(
            f"{learner.specialist.name} needs tasks of new classes, and class {min(known)} was learned before; "
            "use another method, such as er"
        )
    outputs = max(learner.net.classifier.out_features, max(task.classes) + 1)
    if learner.classes is not None and outputs > learner.classes:
        raise UserError(
            f"a task with class {outputs - 1} does not fit a learner of {learner.classes} classes; "
            "create the learner with more classes, or with classes=None"
        )
    if not is_new and task.classes != learner.tasks[-1]:
        raise UserError(f"task {len(learner.tasks)} is unfinished; finish learning it before another task")


# Stages in words that need no knowledge of the paper.
STAGE_PHRASES = {
    "specialist": "learning the new images",
    "closing": "finishing the new images",
    "tangent": "learning from the memory",
    "linear": "learning from the memory",
    "full": "learning from the memory",
    "projection": "combining old and new",
}


def explain_divergence(settings: Settings, task: int, error: Diverged) -> str:
    """Message for a loss that is not finite: where, and which setting to lower."""
    group = {"specialist": "specialist", "closing": "specialist", "projection": "projection"}.get(
        error.stage, "tangent"
    )
    lr = getattr(settings, group).lr
    return (
        f"task {task}, {STAGE_PHRASES.get(error.stage, error.stage)}, epoch {error.epoch}: the loss is not finite; "
        f"lower {group}.lr (now {lr:g}) or {group}.momentum. The last saved state is unchanged"
    )
