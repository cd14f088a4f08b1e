"""Backbones with one interface: features, classifier, named layers. The ResNet family, and adapters for any module."""

from __future__ import annotations

from itl.nets import folded_trunk, jvp_rules
from itl.nets.adapter import ModuleAdapter, as_adapter, math_attention, thread_safe_jvp, with_new_classifier
from itl.nets.base import Net
from itl.nets.frozen_trunk import Head, split_frozen
from itl.nets.init import initialize
from itl.nets.norm import fixed_running_statistics, forward_each
from itl.nets.registry import (
    Backbone,
    Preprocessing,
    backbone_settings,
    build,
    describe,
    find,
    find_named,
    fixed_input_size,
    names,
    register,
    weights_available,
)
from itl.nets.resnet import ResNet

__all__ = [
    "Backbone",
    "Head",
    "ModuleAdapter",
    "Net",
    "Preprocessing",
    "ResNet",
    "as_adapter",
    "backbone_settings",
    "build",
    "describe",
    "find",
    "find_named",
    "fixed_input_size",
    "fixed_running_statistics",
    "folded_trunk",
    "forward_each",
    "initialize",
    "jvp_rules",
    "math_attention",
    "names",
    "register",
    "split_frozen",
    "thread_safe_jvp",
    "weights_available",
    "with_new_classifier",
]
