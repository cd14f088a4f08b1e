"""Train your own torch module in place of a built-in network.

Run: python examples/custom_backbone.py
"""

from collections import OrderedDict

from torch import nn

import itl
from itl.nets import ModuleAdapter

stream = itl.streams.load("seq-digits")
network = nn.Sequential(
    OrderedDict(
        conv1=nn.Conv2d(1, 16, 3, padding=1),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(16, 32, 3, stride=2, padding=1),
        relu2=nn.ReLU(),
        pool=nn.AdaptiveAvgPool2d(2),
        flat=nn.Flatten(),
        fc=nn.Linear(128, stream.classes),
    )
)
# The tangent model changes the last convolution and the classifier.
adapted = ModuleAdapter(network, classifier="fc", last=["conv2"])

short = {"specialist.epochs": 10, "tangent.epochs": 20, "projection.epochs": 20}
learner = itl.Learner("itl", buffer=40, classes=stream.classes, net=adapted, settings=short)
for task in stream:
    learner.learn(task)
print(f"accuracy {learner.evaluate(stream).class_il:.1f} %")
