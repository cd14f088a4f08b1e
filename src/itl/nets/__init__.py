"""Backbones with one interface: features, classifier, named layers. The ResNet family, and adapters for any module."""

from __future__ import annotations

from itl.nets import frozen, jvp_rules
from itl.nets.adapter import ModuleAdapter, math_attention, with_new_classifier
from itl.nets.base import Net
from itl.nets.init import initialize
from itl.nets.norm import fixed_running_statistics, forward_each
from itl.nets.registry import Backbone, Preprocessing, build, describe, find, names, register
from itl.nets.resnet import ResNet

__all__ = [
    "Backbone",
    "ModuleAdapter",
    "Net",
    "Preprocessing",
    "ResNet",
    "build",
    "describe",
    "find",
    "fixed_running_statistics",
    "forward_each",
    "frozen",
    "initialize",
    "jvp_rules",
    "math_attention",
    "names",
    "register",
    "with_new_classifier",
]
