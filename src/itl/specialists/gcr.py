"""GCR: gradient coreset replay (Tiwari et al., 2022)."""

from __future__ import annotations

from itl.specialists.derpp import DERpp


class GCR(DERpp):
    """DER++ on a memory that is a weighted coreset of gradients.

    The loss is that of DER++, with the sample weights w:
    CE(task) + α Σ w ‖p(x) − z‖² / Σ w on one memory draw + β Σ w CE / Σ w on another.

    The memory (`memory.policy=gcr`, `memory/policies/gcr.py`) is frozen during a task. At the task's end it is selected
    from its samples and from candidates collected during the steps. The authors' code also replays the current task's
    candidates and has a supervised contrastive term; both are omitted here.
    """

    name = "gcr"
    summary = "DER++ over a weighted memory whose gradient matches that of its candidates"
    reference = (
        "Tiwari, Killamsetty, Iyer, Shenoy: GCR: Gradient Coreset Based Replay Buffer Selection for Continual "
        "Learning, CVPR 2022"
    )
    defaults = {
        "memory.policy": "gcr",
        "memory.logits": True,
        "specialist.draws": 2,
        "specialist.lr": 0.03,
        "specialist.alpha": 0.1,
        "specialist.beta": 0.5,
    }
    note = "alpha and beta are from the authors' code, the learning rate is DER++'s; without their contrastive term"
    required_policy = "gcr"
