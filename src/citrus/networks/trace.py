"""From any supported nn.Module to the order in which its layers run.

A `Trace` is made once per network. It can run the network with the statistics of the batch at hand
(`forward_with_statistics`), and `graph.fold` turns it into plain operations as often as the weights change.
"""

import copy
import operator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from citrus.errors import CitrusError
from citrus.networks.kernels import compilable
from citrus.networks.operations import Add

SUPPORTED = (
    "Conv2d, Linear, BatchNorm1d, BatchNorm2d, ReLU, Flatten, AvgPool2d, Normalize (citrus.networks), Identity, "
    "nn.Sequential in any nesting, and x + y of two branches"
)
LAYERS = (nn.Conv2d, nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d, nn.ReLU, nn.Flatten, nn.AvgPool2d, nn.Identity)
RELU_FUNCTIONS = {torch.relu, F.relu, "relu"}
ADD_FUNCTIONS = {operator.add, operator.iadd, torch.add, "add"}
FLATTEN_FUNCTIONS = {torch.flatten, "flatten"}

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d
Statistics = dict[str, tuple[Tensor, Tensor]]
"""Mean and biased variance of the inputs of each BatchNorm layer, by the layer's name."""


class Normalize(nn.Module):
    """(x - mean) / std per channel: the first layer of a network, so that images and eps stay in pixel units."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        if len(mean) != len(std) or min(std) <= 0:
            raise CitrusError(f"Normalize needs one positive std per mean, got mean {mean} and std {std}.")
        self.channels = len(mean)
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


@dataclass(frozen=True)
class TracedLayer:
    """One layer in running order; value 0 is the input, layer i computes value i + 1."""

    layer: nn.Module | Add
    inputs: tuple[int, ...]
    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Trace:
    """The layers of a module in the order in which they run, with the shapes between them."""

    layers: tuple[TracedLayer, ...]
    input_shape: tuple[int, ...]

    @compilable
    def forward_with_statistics(self, x: Tensor) -> tuple[Tensor, Statistics]:
        """Run with batch statistics, as in training, and return them with their gradients attached."""
        values, statistics = [x], Statistics()
        for traced in self.layers:
            arguments = [values[i] for i in traced.inputs]
            if isinstance(traced.layer, BatchNorm):
                value, statistics[traced.name] = _batch_norm(traced.layer, arguments[0])
            else:
                value = traced.layer(*arguments)
            values.append(value)
        return values[-1], statistics

    def double(self) -> "Trace":
        """The same layers in float64."""
        made = copy.deepcopy(self)
        for traced in made.layers:
            if isinstance(traced.layer, nn.Module):
                traced.layer.double()
        return made

    def batch_norms(self) -> dict[str, BatchNorm]:
        return {traced.name: traced.layer for traced in self.layers if isinstance(traced.layer, BatchNorm)}


def _batch_norm(layer: BatchNorm, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    if x.numel() == x.shape[1]:
        raise CitrusError("Batch statistics need more than one image in the batch.")
    variance, mean = torch.var_mean(x, [0, *range(2, x.dim())], correction=0)
    scale, shift = batch_norm_affine(layer, mean, variance, x.dim() - 1)
    return x * scale + shift, (mean, variance)


def batch_norm_affine(layer: BatchNorm, mean: Tensor, variance: Tensor, axes: int) -> tuple[Tensor, Tensor]:
    """BatchNorm with fixed statistics is x * scale + shift, per channel of a value with so many axes."""
    weight, bias = (layer.weight, layer.bias) if layer.affine else (1, 0)
    scale = (variance + layer.eps).rsqrt() * weight
    per_channel = (-1,) + (1,) * (axes - 1)
    return scale.view(per_channel), (bias - mean * scale).view(per_channel)


class _Value(fx.Proxy):
    """A traced value whose `x += y` is told apart from x + y: fx alone writes down the sum and forgets the change."""

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})


class _Tracer(fx.Tracer):
    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Value(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Normalize) or super().is_leaf_module(m, module_qualified_name)


def trace(module: nn.Module, input_shape: tuple[int, ...]) -> Trace:
    """Find the running order of `module` for inputs of shape (C, H, W); unsupported layers are named in the error."""
    try:
        nodes = list(_Tracer().trace(module).nodes)
    except Exception as error:  # fx raises many types for control flow that depends on data
        raise CitrusError(
            f"{type(module).__name__} cannot be traced into a list of layers ({error}); supported: {SUPPORTED}."
        ) from error
    _check_readers(nodes, module)
    layers: list[TracedLayer] = []
    shapes = [tuple(input_shape)]
    index: dict[fx.Node, int] = {}  # the value that each node computes
    for node in nodes:
        if node.op == "placeholder":
            if index:
                raise CitrusError(f"{type(module).__name__} takes more than one input; networks take images only.")
            index[node] = 0
        elif node.op == "output":
            if not isinstance(node.args[0], fx.Node) or index.get(node.args[0]) != len(layers):
                raise CitrusError(f"{type(module).__name__} must return the value of its last layer and nothing else.")
        else:
            layer, read = _layer(node, module, len(layers))
            inputs = tuple(index[i] for i in read)
            if isinstance(layer, nn.Identity):
                index[node] = inputs[0]
                continue
            name = str(node.target) if node.op == "call_module" else node.name
            if isinstance(layer, BatchNorm) and any(before.name == name for before in layers):
                raise CitrusError(f"Layer {len(layers)}, {name!r}, runs twice: give each place a BatchNorm of its own.")
            shapes.append(_shape(layer, name, [shapes[i] for i in inputs]))
            layers.append(TracedLayer(layer, inputs, name, shapes[-1]))
            index[node] = len(layers)
    if not layers or len(shapes[-1]) != 1:
        raise CitrusError(f"The network must end in a vector of class scores, not in shape {shapes[-1]}.")
    return Trace(tuple(layers), tuple(input_shape))


def _layer(node: fx.Node, module: nn.Module, place: int) -> tuple[nn.Module | Add, list[fx.Node]]:
    """The layer that a traced node stands for, and the nodes it reads."""
    inputs = [a for a in node.args if isinstance(a, fx.Node)]
    rest = [a for a in node.args if not isinstance(a, fx.Node)]
    target: Any = node.target
    what, problem = f"{getattr(target, '__name__', target)} ({node.op})", "is not supported"
    if any(isinstance(a, fx.Node) for a in node.kwargs.values()):
        problem = "has its input as a keyword argument"
    elif node.op == "call_module":
        layer = module.get_submodule(target)
        what, setting = f"{type(layer).__name__} {target!r}", _unsupported(layer)
        if type(layer) in (*LAYERS, Normalize) and not setting:
            return layer, inputs
        problem = f"uses {setting}" if setting else problem
    elif target in RELU_FUNCTIONS:
        return nn.ReLU(), inputs
    elif target in ADD_FUNCTIONS and len(inputs) == 2 and not rest and not node.kwargs:
        return Add(), inputs
    elif target in FLATTEN_FUNCTIONS and _flattens_all(*rest, **node.kwargs):
        return nn.Flatten(), inputs
    raise CitrusError(f"Layer {place}, {what}, {problem}; supported: {SUPPORTED}.")


def _flattens_all(start_dim: Any = 0, end_dim: Any = -1) -> bool:
    return (start_dim, end_dim) == (1, -1)


def _unsupported(layer: nn.Module) -> str | None:
    """A setting of a known layer that changes its meaning."""
    match layer:
        case nn.Conv2d() if layer.padding_mode != "zeros":
            return f"padding_mode {layer.padding_mode!r} (only 'zeros')"
        case nn.Conv2d(padding="same"):
            return "padding 'same' (write it as numbers)"
        case nn.AvgPool2d(ceil_mode=True):
            return "ceil_mode=True"
        case nn.AvgPool2d(count_include_pad=False) if layer.padding not in (0, (0, 0)):
            return "padding without count_include_pad"
        case nn.Flatten() if (layer.start_dim, layer.end_dim) != (1, -1):
            return "other axes than (1, -1)"
    return None


def _check_readers(nodes: list[fx.Node], module: nn.Module) -> None:
    """Refuse values that nobody reads, and ones that are read after a layer has changed them in place.

    A trace shows the order of layers, not what lies in memory when they run.
    """
    memory: dict[fx.Node, fx.Node] = {}  # the node that first held a value's memory: views and changed values share it
    stale: set[fx.Node] = set()  # values whose memory has been overwritten
    for node in nodes:
        if not node.users and node.op != "output":
            raise CitrusError(f"Nothing reads {node.name!r}: a network may not compute values that it does not use.")
        for read in node.all_input_nodes:
            if read in stale:
                raise CitrusError(f"{read.name!r} is read after a change in place: use layers with inplace=False.")
        layer = module.get_submodule(str(node.target)) if node.op == "call_module" else None
        flagged = node.kwargs.get("inplace") or (node.target is F.relu and any(a is True for a in node.args))
        changes = flagged or node.target is operator.iadd or getattr(layer, "inplace", False)
        views = isinstance(layer, nn.Flatten | nn.Identity) or node.target in FLATTEN_FUNCTIONS
        owner = memory[node.all_input_nodes[0]] if (changes or views) and node.all_input_nodes else node
        if changes:
            stale.update(value for value in memory if memory[value] is owner)
        memory[node] = owner


def _shape(layer: nn.Module | Add, name: str, inputs: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Shape of a layer's result; of a convolution, pooling or flattening found by running it on meta tensors.

    Arithmetic and products on those would load torch's compiler, which takes seconds.
    """
    first = inputs[0]
    try:
        match layer:
            case nn.Linear(in_features=size) | nn.BatchNorm1d(num_features=size) if first != (size,):
                raise RuntimeError(f"a flat vector of {size} values expected")
            case nn.BatchNorm2d(num_features=size) | Normalize(channels=size) if len(first) != 3 or first[0] != size:
                raise RuntimeError(f"maps of {size} channels expected")
            case Add() if first != inputs[1]:
                raise RuntimeError("the branches must have one shape")
            case nn.Linear():
                return (layer.out_features,)
            case nn.Conv2d() | nn.AvgPool2d() | nn.Flatten():
                result = copy.deepcopy(layer).to("meta", torch.float32)(torch.empty(2, *first, device="meta"))
                return tuple(result.shape[1:])
        return first
    except RuntimeError as error:
        given, reason = " and ".join(str(shape) for shape in inputs), str(error).rstrip(".")
        raise CitrusError(f"Layer {name!r} ({layer}) cannot take an input of shape {given}: {reason}.") from error
