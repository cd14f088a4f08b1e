"""Ridge regression on the tangent plane of a pre-trained network."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from itl.engine.keyed_random import torch_generator
from itl.errors import UserError
from itl.nets import Net, thread_safe_jvp
from itl.settings import Count, SpecialistSettings
from itl.specialists.ridge import Ridge, RidgeOptions

DIRECTION = "direction."  # prefix of the directions among the saved tensors


class TangentRidgeOptions(RidgeOptions):
    """`directions`: number k of random directions in the space of the weights."""

    directions: Count = 4


class TangentRidge(Ridge):
    """Ridge regression on the features φ(θ; x) and their derivatives ∇φ(θ; x) v₁, …, ∇φ(θ; x) vₖ.

    θ are the pre-trained weights between the frozen trunk and the classifier, and the vⱼ are fixed random directions. θ
    never changes, so the model is linear in all that is learned. Every lesson is a convex problem in the same features,
    and the sums over the lessons give the exact solution for all of them together.
    """

    name = "tangent-ridge"
    summary = "ridge regression on the tangent plane of the pre-trained last layers; keeps no images"
    reference = (
        "Liu, Golatkar, Soatto, Achille: Integral Continual Learning Along the Tangent Vector Field of Tasks, CVPR 2024"
    )
    defaults = {"memory.policy": "none", "generalist": "none"}
    note = "not in the paper: it linearizes at the fixed pre-trained weights, and regresses on all images"
    exportable = False  # the tracer fixes the batch size of forward-mode derivatives
    min_trained_layers = 2  # there are derivatives of the features with respect to weights only
    forward_batches = 5
    cross_validates = False  # slow with so many features
    Options = TangentRidgeOptions
    options: TangentRidgeOptions

    def __init__(self, settings: SpecialistSettings) -> None:
        super().__init__(settings)
        self.directions: dict[str, Tensor] = {}  # [k, *shape] for each parameter

    def on_task_start(self) -> None:
        """Draw the directions, keyed by the seed, at the first task: each tensor with the root mean square of θ's."""
        super().on_task_start()
        if self.directions:
            return
        net, generator = self.context.net, torch_generator(self.context.key[0], "tangent directions")
        for name, parameter in net.named_parameters():
            if not name.startswith(f"{net.classifier_name}."):
                drawn = torch.randn(self.options.directions, *parameter.shape, generator=generator)
                scale = parameter.detach().square().mean().sqrt()
                self.directions[name] = scale * self.context.engine.send(drawn)
        if not self.directions:
            raise UserError("tangent-ridge needs weights before the classifier; set net.trained=2 or more")

    def network_features(self, net: Net, x: Tensor) -> Tensor:
        """φ and its derivatives, `[n, (1 + k) d]`."""
        wrapped = _Features(net)
        theta = {name: net.get_parameter(name).detach() for name in self.directions}

        def features(parameters: dict[str, Tensor]) -> Tensor:
            values = {f"net.{name}": value for name, value in parameters.items()}
            return functional_call(wrapped, values, (x,)).float()  # type: ignore[no-any-return]

        parts = [features(theta)]
        for k in range(self.options.directions):
            along = {name: direction[k].to(x.device) for name, direction in self.directions.items()}
            parts.append(thread_safe_jvp(features, (theta,), (along,))[1])
        return torch.cat(parts, 1)

    def state_dict(self) -> dict[str, Tensor]:
        """The sums, the classifier and the directions."""
        return super().state_dict() | {DIRECTION + name: t for name, t in self.directions.items()}

    def load_state_dict(self, state: dict[str, Tensor], net: Net) -> None:
        """Restore them."""
        super().load_state_dict(state, net)
        self.directions = {name.removeprefix(DIRECTION): t for name, t in state.items() if name.startswith(DIRECTION)}


class _Features(nn.Module):
    """The features of a network, as a module for `functional_call`."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net.features(x)
