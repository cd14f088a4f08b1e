"""GCR: gradient coreset replay (Tiwari et al., 2022)."""

from __future__ import annotations

from itl.specialists.derpp import DERpp


class GCR(DERpp):
    """DER++ whose replayed samples count by their weights in a coreset of gradients. The loss is DER++'s own:

    CE(now) + α Σ w ‖p(x) − z‖² / Σ w on one memory draw + β Σ w CE / Σ w on another, w the weights the memory stores.

    The memory (`memory.policy=gcr`, `memory/gcr.py`) is frozen during a task and chosen at its end, of what it held
    and of candidates gathered in the steps. The authors' code replays the present task's candidates as well, and has a
    supervised contrastive term, which is not here.
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
    needs_policy = "gcr"
