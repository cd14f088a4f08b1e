"""Learn the handwritten digits two classes at a time, and show how little is forgotten.

Run: python examples/quickstart.py
"""

import itl

# Fewer epochs than the defaults, so that the example takes seconds on a CPU.
SHORT = {"specialist.epochs": 10, "tangent.epochs": 20, "projection.epochs": 20}

stream = itl.streams.load("seq-digits")  # five tasks of two classes, 8x8 images
for method in ("sgd", "itl"):  # training without a memory, and Integral Tangent Learning
    learner = itl.Learner(method, buffer=40, seed=0, classes=stream.classes, settings=SHORT)
    for task in stream:
        learner.learn(task)
    scores = learner.evaluate(stream)
    by_task = "  ".join(f"{task.class_il:5.1f}" for task in scores.per_task)
    print(f"{method:4}  accuracy {scores.class_il:5.1f} %   by task: {by_task}")

learner.save("digits-model")  # safetensors and JSON, no pickle
restored = itl.load("digits-model")
print("first test images:", restored.predict(stream.tasks[0].test)[:8].tolist())
