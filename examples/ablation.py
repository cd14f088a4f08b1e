"""Train the specialists once, then repeat the cheap generalist step with other settings.

Run: python examples/ablation.py
"""

import itl
from itl.experiments import Config
from itl.experiments.refine import refine
from itl.experiments.run import run

short = {"specialist.epochs": 10}
# Settings are compared on validation images, never on the test images.
config = Config("seq-digits", "itl", buffer=20, seed=0, settings=short, split="validation", keep_specialists=True)
stream = itl.streams.load(config.stream, split="validation")
run(config, stream, "runs/ablation", resume=True)

variants = {
    "itl": {},
    "no half-pipe": {"half_pipe": False},
    "full fine-tuning": {"generalist": "full", "project": False},
    "classifier only": {"generalist": "linear", "project": False},
    "no generalist": {"generalist": "none", "half_pipe": False, "project": False},
}
print(f"{'variant':18} specialist  expert")
for name, settings in variants.items():
    stages = refine("runs/ablation", stream, len(stream), settings)["stages"]
    print(f"{name:18} {stages['specialist']['class_il']:10.1f} {stages['expert']['class_il']:7.1f}")
