"""The replay methods whose memory depends on the network, with the settings they were published with.

From the benchmark's table, the authors' code (hastings24/rethinking_er for ER-T, INK-USC/GMED, SSSunQing/
Example_Influence_CL for MetaSP, google-research/gradient_coresets_replay for GCR) and aimagelab/mammoth.
"""

from __future__ import annotations

from itl.presets.base import NONE, PLAIN, RESERVOIR, Method, Tuned

GSS_PAPER = "Aljundi, Lin, Goujaud, Bengio: Gradient Based Sample Selection for Online Continual Learning, NeurIPS 2019"
ERT_PAPER = (
    "Buzzega, Boschini, Porrello, Calderara: Rethinking Experience Replay: a Bag of Tricks for Continual Learning, "
    "ICPR 2020"
)
GMED_PAPER = (
    "Jin, Sadhu, Du, Ren: Gradient-based Editing of Memory Examples for Online Task-free Continual Learning, "
    "NeurIPS 2021"
)
METASP_PAPER = "Sun, Lyu, Shang, Feng, Wan: Exploring Example Influence in Continual Learning, NeurIPS 2022"
GCR_PAPER = (
    "Tiwari, Killamsetty, Iyer, Shenoy: GCR: Gradient Coreset Based Replay Buffer Selection for Continual Learning, "
    "CVPR 2022"
)

ONCE = {"specialist.epochs": 1, "specialist.batch": 10}
ERT_TUNED: Tuned = {
    ("seq-cifar10", 200): {"specialist.lr": 0.1},
    ("seq-cifar10", 500): {"specialist.lr": 0.03},
    ("seq-cifar10", 1000): {"specialist.lr": 0.03},
    ("seq-fmnist", None): {**ONCE, "specialist.options.decay": 0.99995},
    ("seq-fmnist", 200): {"specialist.lr": 0.03},
    ("seq-fmnist", 500): {"specialist.lr": 0.03},
    ("seq-fmnist", 1000): {"specialist.lr": 0.1},
}
GSS_TUNED: Tuned = {
    ("seq-cifar10", 200): {},
    ("seq-cifar10", 500): {},
    ("seq-cifar10", 5120): {"specialist.epochs": 1},
}

SELECTION = (
    Method(
        "gss",
        "experience replay from a memory of images whose gradients differ",
        GSS_PAPER,
        {"specialist.name": "gss", "memory.policy": "gss", "specialist.lr": 0.03, **PLAIN, **NONE},
        GSS_TUNED,
    ),
    Method(
        "er-t",
        "experience replay with tricks: bias control, decaying rate, loss-aware balanced reservoir",
        ERT_PAPER,
        {
            "specialist.name": "er-t",
            "memory.policy": "loss-aware",
            "specialist.lr": 0.1,
            "specialist.options.decay": 0.99999935,
            "specialist.options.bias_epochs": 50,
            "specialist.options.bias_lr": 0.5,
            **PLAIN,
            **NONE,
        },
        ERT_TUNED,
        "a buffer of 5120 takes the settings published for 1000, the largest",
    ),
    Method(
        "gmed",
        "experience replay of images edited towards what would be forgotten",
        GMED_PAPER,
        {
            "specialist.name": "gmed",
            **RESERVOIR,
            "specialist.lr": 0.1,
            "specialist.options.stride": 0.1,
            "specialist.options.regularise": 0.01,
            **PLAIN,
            **NONE,
        },
        note="published for one pass in batches of 10; stride and regularise are the authors' example for MNIST",
    ),
    Method(
        "metasp",
        "experience replay weighted by influence on old and new samples",
        METASP_PAPER,
        {"specialist.name": "metasp", "memory.policy": "stratified", "specialist.lr": 0.1, **PLAIN, **NONE},
        # Two of its 15 epochs would be too few to replay in.
        {("seq-digits", None): {"specialist.lr": 0.03, "specialist.options.plain": 0.0}},
        note="the authors' update by influence; their choice of the memory by influence is not here",
    ),
    Method(
        "gcr",
        "DER++ over a weighted memory whose gradient is that of all it was chosen from",
        GCR_PAPER,
        {
            "specialist.name": "gcr",
            "memory.policy": "gcr",
            "memory.logits": True,
            "specialist.draws": 2,
            "specialist.lr": 0.03,
            "specialist.alpha": 0.1,
            "specialist.beta": 0.5,
            **PLAIN,
            **NONE,
        },
        note="alpha and beta are the authors' code's, the learning rate DER++'s; without their contrastive term",
    ),
)
