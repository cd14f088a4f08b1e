"""Make a stream from arrays: choose the number of tasks and the order of the classes.

Run: python examples/custom_stream.py
"""

import numpy as np

import itl

# Stripes of six directions with noise: uint8 images [n, height, width] and integer labels [n].
rng = np.random.default_rng(0)
labels = np.repeat(np.arange(6), 60)
rows, columns = np.mgrid[0:12, 0:12]
angles = labels * np.pi / 6
phase = np.cos(angles)[:, None, None] * rows + np.sin(angles)[:, None, None] * columns
shift = rng.uniform(0, 2 * np.pi, (len(labels), 1, 1))
images = (100 + 60 * np.sin(phase * 1.5 + shift) + rng.normal(0, 20, phase.shape)).clip(0, 255).astype(np.uint8)

# A mirrored stripe has another direction, so images must not be flipped.
names = [f"{30 * k} degrees" for k in range(6)]
stream = itl.streams.from_arrays(images, labels, class_names=names, tasks=3, order_seed=1, flip=False, padding=1)

small = {"net.name": "resnet8", "net.width": 8, "specialist.epochs": 15, "specialist.lr": 0.03}
short = {"tangent.epochs": 20, "projection.epochs": 20}
learner = itl.Learner("itl", buffer=60, classes=stream.classes, settings={**small, **short})
for number, task in enumerate(stream, 1):
    learner.learn(task)
    accuracies = [round(score.class_il, 1) for score in learner.evaluate(stream).per_task[:number]]
    print(f"after task {number}: accuracy by task {accuracies}")
