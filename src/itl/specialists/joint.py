"""Joint training on all tasks so far: not a continual learner, but the upper bound."""

from __future__ import annotations

from itl.specialists.sgd import SGD


class Joint(SGD):
    """Plain training, CE over S(D_1 ∪ … ∪ D_t), on the shuffled data of all tasks so far, from a new network.

    The benchmark trains it once, on all tasks. Here it is retrained with each task, so that every task has a score; the
    last score is comparable to the benchmark's.
    """

    name = "joint"
    summary = "a new network on the data of all tasks at once: the upper bound"
    reference = (
        "Buzzega, Boschini, Porrello, Abati, Calderara: Dark Experience for General Continual Learning, NeurIPS 2020"
    )
    defaults = {"memory.policy": "none", "specialist.lr": 0.1}
    stream_defaults = {("seq-tinyimagenet", None): {"specialist.lr": 0.03, "specialist.epochs": 100}}
    note = "the benchmark trains once, on all tasks; here each task trains a network on all tasks so far"
    data = "all"
    resets_network = True
