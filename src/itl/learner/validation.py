"""What a learner refuses, each in one line that says how to mend it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from itl.engine.stage import Diverged
from itl.errors import UserError
from itl.memory import Memory
from itl.settings import MemorySettings
from itl.streams import Task

if TYPE_CHECKING:
    from itl.learner.learner import Learner


def settings(learner: Learner) -> None:
    """Refuse settings, specialist and memory that do not go together."""
    s, policy, specialist = learner.settings, learner.settings.memory.policy, learner.specialist
    if policy == "none" and (specialist.needs_memory or s.generalist != "none"):
        raise UserError(f"method {learner.method} needs a memory; set memory.policy=stratified or reservoir")
    chosen, wanted = learner.memory.policy, specialist.required_policy
    if wanted is not None and policy != wanted:
        raise UserError(f"{specialist.name} fills its memory by its own rule; set memory.policy={wanted}")
    if policy == "gss" and wanted != "gss":
        raise UserError(f"memory.policy=gss compares gradients, which {specialist.name} does not; set another")
    if specialist.data != "task" and (chosen.plans_writes or chosen.candidates_class):
        raise UserError(
            f"{specialist.name} needs a memory that is chosen at a task's end; set memory.policy=stratified"
        )
    if specialist.requires_fixed_classes and learner.classes is None:
        raise UserError(f"{specialist.name} must know the number of classes from the start; give classes=N")
    if specialist.stores_logits and s.memory.logits is False:
        raise UserError(
            f"{specialist.name} replays stored logits, which memory.logits=false leaves out; set it to true"
        )
    by_steps = specialist.stores_logits and not specialist.stores_logits_at_task_end
    if by_steps and not (chosen.plans_writes or chosen.candidates_class):
        raise UserError(f"{specialist.name} stores logits step by step; set memory.policy=reservoir")
    if specialist.stores_logits_at_task_end and chosen.plans_writes:
        raise UserError(
            f"{specialist.name} has logits of past tasks' images only, and memory.policy={policy} takes the present "
            "one's; set memory.policy=stratified, herding, entropy or coreset"
        )
    if s.design == "reverse" and _hears(learner.memory):
        raise UserError(
            "design=reverse leaves no predictions in its steps, which this memory takes; set memory.policy=stratified"
        )
    if s.memory.weights and not chosen.assigns_weights:
        raise UserError(f"memory.weights needs a policy that weighs, which {policy} does not; set it to false")
    if s.tangent.alpha and learner.memory.logits is None:
        raise UserError(
            f"tangent.alpha needs stored logits, which {specialist.name} does not keep; set memory.logits=true"
        )
    learner.net.split(s.tangent.layers)  # a count that the network does not have is refused


def _hears(held: Memory) -> bool:
    """Whether a memory takes what the network says in a step: to choose by, or to store."""
    policy, stores = held.policy, held.logits is not None
    if policy.candidates_class is not None:
        return stores or policy.candidates_class.needs_logits
    return policy.selector_class is not None or (stores and policy.plans_writes)


def memory(s: MemorySettings, size: int, classes: int) -> None:
    """Refuse so many classes for a memory that cannot hold enough of each, unless a setting allows it."""
    needed = classes * s.least
    if s.policy != "none" and s.outgrown == "refuse" and size < needed:
        images = "one image" if s.least == 1 else f"{s.least} images"
        raise UserError(
            f"a buffer of {size} cannot hold {images} of each of {classes} classes; use --buffer {needed} or more"
        )
    if s.policy != "none" and s.outgrown == "drop" and not size:
        raise UserError("a buffer of 0 holds nothing to learn from again; use --buffer 1 or more")


def task(learner: Learner, task: Task, opens: bool) -> None:
    """Refuse a task that does not fit the learner; `opens`: it would be a new one, none is unfinished."""
    shape, own = list(task.train.source.shape[1:]), list(learner.memory.pixels.shape[1:])
    if shape != own:
        raise UserError(f"this task's images are {shape}, the learner's are {own}; bring them to one shape")
    again = {c for known in learner.tasks for c in known} & set(task.classes)
    if learner.specialist.requires_new_classes and again and opens:
        raise UserError(
            f"{learner.specialist.name} needs tasks of new classes, and class {min(again)} was taught before; "
            "use another method, such as er"
        )
    width = max(learner.net.classifier.out_features, max(task.classes) + 1)
    if learner.classes is not None and width > learner.classes:
        raise UserError(f"a task with class {width - 1} does not fit a learner of {learner.classes} classes")
    if not opens and task.classes != learner.tasks[-1]:
        raise UserError(f"task {len(learner.tasks)} is unfinished; learn it again to its end before another")


def explain(learner: Learner, error: Diverged) -> str:
    """Where a loss was not finite, and which setting to lower."""
    part = {"specialist": "specialist", "closing": "specialist", "projection": "projection"}.get(error.stage, "tangent")
    lr = getattr(learner.settings, part).lr
    return (
        f"task {len(learner.tasks)}, {error.stage}, epoch {error.epoch}: the loss is not finite; "
        f"lower {part}.lr (now {lr:g}) or {part}.momentum. The last good state is kept"
    )
