"""Add a method: a class with a name and a loss. Compare it with the method that it is based on.

Run: python examples/custom_method.py
"""

from torch import Tensor, nn

import itl
from itl.nets import forward_each
from itl.specialists import Batch, Specialist, register
from itl.specialists.losses import cross_entropy


class HeavyER(Specialist):
    """Experience replay in which the memory counts three times as much as the task."""

    name = "er-heavy"
    summary = "experience replay, the memory counts three times"
    based_on = "er"  # all settings of er, on every stream

    def loss(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        """CE(task) + 3 CE(memory); `replay_batches` is empty while the memory is empty."""
        logits, *replay_logits = forward_each(net, batch.x, *(replay.x for replay in replay_batches))
        batch.outputs = logits.detach()
        loss = cross_entropy(logits, batch.y, self.settings.reduction)
        for replay, outputs in zip(replay_batches, replay_logits, strict=True):
            replay.outputs = outputs.detach()
            loss = loss + 3 * cross_entropy(outputs, replay.y, self.settings.reduction)
        return loss


register(HeavyER)  # a package offers its methods by the entry point group itl.methods

stream = itl.streams.load("seq-digits", tasks=2)
for method in ("er", "er-heavy"):
    learner = itl.Learner(method, buffer=40, classes=stream.classes, settings={"specialist.epochs": 5})
    for task in stream:
        learner.learn(task)
    print(f"{method:9} accuracy {learner.evaluate(stream).class_il:5.1f} %")
