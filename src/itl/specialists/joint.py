"""Joint training: every task so far at once. No continual learner, but what one would like to reach."""

from __future__ import annotations

from itl.specialists.sgd import SGD


class Joint(SGD):
    """Plain training, CE over S(D_1 ∪ … ∪ D_t), on the shuffled data of all tasks so far, from a newly drawn network.

    The benchmark trains it once, when all data is there; here it is trained anew with each task, so that it has a score
    after every one. The last is the benchmark's.
    """

    name = "joint"
    summary = "a new network on the data of all tasks at once: the upper bound"
    reference = (
        "Buzzega, Boschini, Porrello, Abati, Calderara: Dark Experience for General Continual Learning, NeurIPS 2020"
    )
    defaults = {"memory.policy": "none", "specialist.lr": 0.1}
    stream_defaults = {("seq-tinyimagenet", None): {"specialist.lr": 0.03, "specialist.epochs": 100}}
    note = "the benchmark trains once, on all tasks; here each task trains a network on all tasks so far"
    over = "all"
    restarts = True
