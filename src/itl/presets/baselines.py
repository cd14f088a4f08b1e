"""The replay methods that ITL is measured against, with the settings they were published with.

Learning rates and weights are those of the benchmark's own code (aimagelab/mammoth, `utils/best_args.py` at the tags
neurips2020 and tpami2023) and of the authors' (NeurAI-Lab/CLS-ER, chaht01/Co2L); there a penalty λ‖w‖² is part of the
loss, which is a weight decay of 2λ here. Rows for seq-digits were chosen on its validation split (docs/methods.md).
"""

from __future__ import annotations

from itl.presets.base import DER_PAPER, NONE, PLAIN, RESERVOIR, Method, Tuned, Values

AT_END = {"memory.policy": "stratified"}
HUNDRED = {"specialist.epochs": 100}  # the benchmark's on Tiny-ImageNet


def _cls_er(lr: float, reg: float, stable: float, plastic: float) -> Values:
    options = {"reg": reg, "stable_rate": stable, "plastic_rate": plastic}
    return {"specialist.lr": lr, **{f"specialist.options.{name}": value for name, value in options.items()}}


CLS_ER_TUNED: Tuned = {
    ("seq-cifar10", 200): _cls_er(0.1, 0.15, 0.1, 0.3),
    ("seq-cifar10", 500): _cls_er(0.1, 0.15, 0.1, 0.9),
    ("seq-cifar10", 5120): _cls_er(0.1, 0.15, 0.8, 1.0),
    ("seq-tinyimagenet", 200): _cls_er(0.05, 0.1, 0.04, 0.08),
    ("seq-tinyimagenet", 500): _cls_er(0.05, 0.1, 0.05, 0.08),
    ("seq-tinyimagenet", 5120): _cls_er(0.05, 0.1, 0.07, 0.08),
    ("seq-digits", None): {
        **_cls_er(0.1, 0.15, 0.5, 0.9),
        "specialist.options.stable_alpha": 0.97,
        "specialist.options.plastic_alpha": 0.97,
    },
}

ICARL_TUNED: Tuned = {
    ("seq-cifar10", 200): {"specialist.lr": 0.1},
    ("seq-cifar10", 500): {"specialist.lr": 0.1},
    ("seq-cifar10", 5120): {"specialist.lr": 0.03},
    ("seq-cifar100", None): {"specialist.lr": 0.3},
    ("seq-tinyimagenet", None): {"specialist.lr": 0.03, **HUNDRED},
}

XDER_TUNED: Tuned = {
    ("seq-cifar100", 500): {"specialist.alpha": 0.3, "specialist.beta": 0.8},
    ("seq-cifar100", 2000): {
        "specialist.alpha": 0.6,
        "specialist.beta": 0.9,
        "specialist.options.margin": 0.2,
        "specialist.options.eta": 0.01,
    },
}

CO2L = {
    "specialist.batch": 512,
    "specialist.lr": 0.5,
    "specialist.momentum": 0.9,
    "specialist.weight_decay": 1e-4,
    "specialist.epochs": 100,
}
CO2L_SMALL = {
    "specialist.epochs": 30,
    "specialist.batch": 32,
    "specialist.lr": 0.01,
    "specialist.options.first_epochs": None,
    "specialist.options.probe_epochs": 15,
    "specialist.options.probe_batch": 64,
    "specialist.options.probe_lr": 0.3,
}

BASELINES = (
    Method(
        "joint",
        "a new network on all tasks' data at once: the upper bound",
        DER_PAPER,
        {"specialist.name": "joint", "memory.policy": "none", "specialist.lr": 0.1, **PLAIN, **NONE},
        {("seq-tinyimagenet", None): {"specialist.lr": 0.03, **HUNDRED}},
        "the benchmark trains it once, on all tasks; here every task trains it on all so far",
    ),
    Method(
        "agem",
        "the task's gradient, less what goes against the memory's",
        "Chaudhry, Ranzato, Rohrbach, Elhoseiny: Efficient Lifelong Learning with A-GEM, ICLR 2019",
        {"specialist.name": "agem", **AT_END, "specialist.lr": 0.03, **PLAIN, **NONE},
        {("seq-tinyimagenet", None): {"specialist.lr": 0.01, **HUNDRED}},
        "the benchmark gives each task an equal part of the memory from the start; here tasks share all of it",
    ),
    Method(
        "der",
        "dark experience replay: stored logits from a reservoir",
        DER_PAPER,
        {"specialist.name": "der", **RESERVOIR, "specialist.lr": 0.03, "specialist.alpha": 0.3, **PLAIN, **NONE},
        {("seq-tinyimagenet", None): {"specialist.alpha": 0.1, **HUNDRED}},
    ),
    Method(
        "co2l",
        "contrastive features, distilled relations, then a linear classifier",
        "Cha, Lee, Shin: Co2L: Contrastive Continual Learning, ICCV 2021",
        {"specialist.name": "co2l", **AT_END, **CO2L, **NONE},
        {("seq-digits", None): CO2L_SMALL},
        "published for seq-cifar10 with 200 images; views are AutoAugment's where the authors' code crops and "
        "recolours otherwise",
    ),
    Method(
        "er-ace",
        "replay with asymmetric cross-entropy: new classes do not push old ones down",
        "Caccia, Aljundi, Asadi, Tuytelaars, Pineau, Belilovsky: New Insights on Reducing Abrupt Representation Change "
        "in Online Continual Learning, ICLR 2022",
        {"specialist.name": "er-ace", **RESERVOIR, "specialist.lr": 0.03, **PLAIN, **NONE},
        {("seq-digits", None): {"specialist.lr": 0.1}},
        "the learning rate is the benchmark's for seq-cifar100; the paper's own setting is one epoch",
    ),
    Method(
        "x-der",
        "dark replay whose logits are kept up to date, with heads for tasks to come",
        "Boschini, Bonicelli, Buzzega, Porrello, Calderara: Class-Incremental Continual Learning into the eXtended "
        "DER-verse, TPAMI 2022",
        {
            "specialist.name": "x-der",
            **AT_END,
            "memory.logits": True,
            "specialist.lr": 0.03,
            "specialist.alpha": 0.3,
            "specialist.beta": 0.8,
            **PLAIN,
            **NONE,
        },
        XDER_TUNED,
        "published for seq-cifar100 (500 and 2000 images); elsewhere those of 500",
    ),
    Method(
        "cls-er",
        "replay consistent with two averages of the weights; the slower one predicts",
        "Arani, Sarfraz, Zonooz: Learning Fast, Learning Slow: A General Continual Learning Method based on "
        "Complementary Learning System, ICLR 2022",
        {"specialist.name": "cls-er", **RESERVOIR, "specialist.lr": 0.1, **PLAIN, **NONE},
        CLS_ER_TUNED,
    ),
    Method(
        "gdumb",
        "a new network on the memory alone: what every replay method should beat",
        "Prabhu, Torr, Dokania: GDumb: A Simple Approach that Questions Our Progress in Continual Learning, ECCV 2020",
        {
            "specialist.name": "gdumb",
            **AT_END,
            "specialist.lr": 0.05,
            "specialist.momentum": 0.9,
            "specialist.weight_decay": 1e-6,
            "specialist.epochs": 256,
            **PLAIN,
            **NONE,
        },
        {("seq-digits", None): {"specialist.epochs": 256}},
        "published for seq-cifar100; batches are the benchmark's 32, the paper's 16",
    ),
    Method(
        "icarl",
        "binary cross-entropy with distillation; nearest means of the memory predict",
        "Rebuffi, Kolesnikov, Sperl, Lampert: iCaRL: Incremental Classifier and Representation Learning, CVPR 2017",
        {
            "specialist.name": "icarl",
            "memory.policy": "herding",
            "specialist.lr": 0.1,
            "specialist.weight_decay": 2e-5,
            **PLAIN,
            **NONE,
        },
        ICARL_TUNED,
    ),
    Method(
        "lwf",
        "distillation of the old outputs on the new images, no memory",
        "Li, Hoiem: Learning without Forgetting, ECCV 2016",
        {
            "specialist.name": "lwf",
            "memory.policy": "none",
            "specialist.lr": 0.01,
            "specialist.alpha": 3.0,
            "specialist.weight_decay": 1e-3,
            **PLAIN,
            **NONE,
        },
        {
            ("seq-cifar100", None): {"specialist.lr": 0.03},
            ("seq-tinyimagenet", None): {"specialist.alpha": 1.0, **HUNDRED},
        },
    ),
)
