"""Weights and layers of several models of one architecture, stacked along a first axis of clients.

A step of a small model is a hundred small operations, and most of its time is spent on starting them. Here each
operation is started once for all k clients: a linear layer of k clients is one batched matrix product.

On a CPU, a client's result does not depend on the other clients, to the last bit. Every operation works on the slice of
each client (or sample), in the same order for every k. This is why convolutions are batched products of patches:
grouped convolutions are faster, but oneDNN rounds them differently for each number of groups.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from client_app.training import LocalSettings, make_optimizer
from models import FeatureModel
from models.base import CellPool, ChannelsLast

# Pad to a multiple of this. SIMD kernels handle leftover elements with other rounding, and so do matrix products whose
# operands begin elsewhere than at such a multiple. Without padding a client's result would depend on how many clients
# there are, and on its place among them.
_LANES = 16


def padded_length(length: int) -> int:
    """Return the length that rows and weights are padded to.

    Example:
        >>> padded_length(16), padded_length(17)
        (16, 32)
    """
    return -(-length // _LANES) * _LANES


class Weights(NamedTuple):
    """A weight tensor of k clients, and the tensor that takes its gradient; both ``[k, ...]`` and contiguous."""

    value: Tensor
    gradient: Tensor


class _Products(torch.autograd.Function):
    """Compute ``x @ weight.mT + bias`` for each client, and write gradients of weights where the optimiser reads them.

    Autograd would return the gradients in new, transposed tensors. That costs two more passes over the largest tensors.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, *gradients: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(x, weight)
        ctx.gradients = gradients
        return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, weight = ctx.saved_tensors
        of_weight, of_bias = ctx.gradients
        gradient = gradient.contiguous()
        torch.bmm(gradient.mT, x, out=of_weight)
        torch.sum(gradient, 1, out=of_bias)
        return (gradient @ weight if ctx.needs_input_grad[0] else None), None, None, None, None


class _Affine(torch.autograd.Function):
    """Compute ``x * weight + bias`` channel by channel, for ``x`` ``[k, B, c, cells]``.

    Gradients of weights are written where the optimiser reads them, as in ``_Products``.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, *gradients: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(x, weight)
        ctx.gradients = gradients
        return torch.addcmul(bias[:, None, :, None], x, weight[:, None, :, None])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, weight = ctx.saved_tensors
        of_weight, of_bias = ctx.gradients
        torch.sum(gradient * x, (1, 3), out=of_weight)
        torch.sum(gradient, (1, 3), out=of_bias)
        return gradient * weight[:, None, :, None], None, None, None, None


def _apply(function: type[torch.autograd.Function], x: Tensor, weight: Weights, bias: Weights) -> Tensor:
    y: Tensor = function.apply(x, weight.value, bias.value, weight.gradient, bias.gradient)
    return y


def _linear(layer: nn.Linear, x: Tensor, weight: Weights, bias: Weights) -> Tensor:
    return _apply(_Products, x, weight, bias)


def _convolution(layer: nn.Conv2d, x: Tensor, weight: Weights, bias: Weights) -> Tensor:
    """Convolve by one batched matrix product of patches and kernels."""
    padding = tuple(int(pad) for pad in layer.padding)  # `stackable` refuses padding that is a word
    rows, columns = (
        (side + 2 * pad - kernel) // step + 1
        for side, pad, kernel, step in zip(x.shape[3:], padding, layer.kernel_size, layer.stride, strict=True)
    )
    patches = functional.unfold(x.flatten(0, 1), layer.kernel_size, padding=padding, stride=layer.stride)
    patches = patches.mT.reshape(len(x), -1, patches.shape[1])  # [k, B * cells, c * kernel]
    flat = Weights(*(tensor.flatten(2) for tensor in weight))
    return _apply(_Products, patches, flat, bias).view(len(x), -1, rows, columns, layer.out_channels).movedim(4, 2)


def _group_norm(layer: nn.GroupNorm, x: Tensor, weight: Weights, bias: Weights) -> Tensor:
    normal = functional.group_norm(x.flatten(0, 1), layer.num_groups, eps=layer.eps)
    return _apply(_Affine, normal.view(*x.shape[:3], -1), weight, bias).view(x.shape)


def _each(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a layer that has no weights to each sample."""
    y: Tensor = layer(x.flatten(0, 1))
    return y.view(*x.shape[:2], *y.shape[1:])


# Functions that apply a layer to samples ``[k, B, ...]`` of k clients, each client with its own weights ``[k, ...]``.
LAYERS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.GroupNorm: _group_norm,
    nn.ReLU: lambda layer, x: x.relu(),
    nn.Flatten: lambda layer, x: x.flatten(2),
    nn.MaxPool2d: _each,
    CellPool: _each,
    ChannelsLast: lambda layer, x: x,
}


def stackable(model: FeatureModel) -> bool:
    """Return whether models of this kind can be stacked: whether the base is a chain of ``LAYERS`` and the head linear.

    Models with BatchNorm cannot be stacked, because they gain too little (docs/adr/0008-cohort.md).
    """
    return (
        isinstance(model.head, nn.Linear)
        and isinstance(model.base, nn.Sequential)
        and all(type(layer) in LAYERS for layer in model.base)
        and all(
            layer.groups == 1
            and layer.dilation == (1, 1)
            and layer.padding_mode == "zeros"
            and not isinstance(layer.padding, str)
            and layer.bias is not None
            for layer in model.base
            if isinstance(layer, nn.Conv2d)
        )
    )


def stacked_features(model: FeatureModel, weights: Mapping[str, Weights], x: Tensor) -> Tensor:
    """Return the features of k clients' samples, each client by its own weights.

    Args:
        model: Says what the layers are. Its weights are not read.
        weights: The clients' weights, by the model's names.
        x: Shape ``[k, B, channels, height, width]``.

    Returns:
        Shape ``[k, B, d]``.
    """
    for name, layer in model.base.named_children():
        of_layer = (weights[f"base.{name}.{key}"] for key, _ in layer.named_parameters())
        x = LAYERS[type(layer)](layer, x, *of_layer)
    return x if x.shape[2] == model.width else functional.adaptive_avg_pool1d(x, model.width)


@dataclass(frozen=True, slots=True)
class Stack:
    """The weights of k clients in one vector, tensor after tensor, so that the optimiser is called once.

    Attributes:
        vector: All weights, and zeros up to the padded length.
        weights: Views ``[k, ...]`` of the vector and of its gradient, by name.
    """

    vector: nn.Parameter
    weights: dict[str, Weights]

    @classmethod
    def of(cls, clients: Sequence[Mapping[str, Tensor]]) -> "Stack":
        """Copy the weights of some clients, given by name."""
        stacked = {name: torch.stack([client[name].detach() for client in clients]) for name in clients[0]}
        return cls.over(_joined(stacked.values()), {name: tensor.shape for name, tensor in stacked.items()})

    @classmethod
    def over(cls, vector: Tensor, shapes: Mapping[str, torch.Size]) -> "Stack":
        """Make a stack of a vector that holds tensors of these shapes one after the other."""
        parameter, slope = nn.Parameter(vector), torch.zeros_like(vector)
        parameter.grad = slope
        values, gradients = (_parts(row, shapes.values()) for row in (vector, slope))
        return cls(parameter, dict(zip(shapes, map(Weights, values, gradients), strict=True)))

    @property
    def clients(self) -> int:
        """The number k of clients."""
        return len(next(iter(self.weights.values())).value)

    def narrowed(
        self, active: int, optimizer: torch.optim.Optimizer, settings: LocalSettings
    ) -> tuple["Stack", torch.optim.Optimizer]:
        """Return a stack of the first clients only, and an optimiser with the state that they had."""
        shapes = [weights.value.shape for weights in self.weights.values()]

        def narrow(vector: Tensor) -> Tensor:
            return _joined(part[:active] for part in _parts(vector, shapes))

        kept = {name: weights.value[:active].shape for name, weights in self.weights.items()}
        stack = Stack.over(narrow(self.vector.detach()), kept)
        heir = make_optimizer(nn.ParameterList([stack.vector]), settings)
        for key, value in optimizer.state[self.vector].items():
            heir.state[stack.vector][key] = narrow(value) if value.shape == self.vector.shape else value
        return stack, heir

    def first(self, active: int) -> dict[str, Weights]:
        """Return the weights of the first clients.

        The optimiser still changes the weights of the other clients, by old gradients. Nothing reads them any more.
        """
        return {
            name: Weights(value[:active].requires_grad_(), gradient[:active])
            for name, (value, gradient) in self.weights.items()
        }

    def row(self, i: int) -> dict[str, Tensor]:
        """Return a copy of one client's weights."""
        return {name: value[i].clone() for name, (value, _) in self.weights.items()}


def _joined(tensors: Iterable[Tensor]) -> Tensor:
    """Return all numbers of some tensors in one vector, and zeros up to the padded length."""
    vector = torch.cat([tensor.flatten() for tensor in tensors])
    return functional.pad(vector, (0, padded_length(len(vector)) - len(vector)))


def _parts(vector: Tensor, shapes: Iterable[torch.Size]) -> list[Tensor]:
    """Return the tensors that :func:`_joined` put into a vector, as views of these shapes."""
    sizes = [shape.numel() for shape in shapes]
    parts = vector[: sum(sizes)].split(sizes)
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
