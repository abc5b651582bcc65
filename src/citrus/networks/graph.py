"""From a module to plain operations: normalisation and BatchNorm are folded into the layers beside them."""

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from citrus.errors import CitrusError
from citrus.networks.convolution import Pair
from citrus.networks.kernels import true_float32
from citrus.networks.operations import Add, Conv, Flatten, Graph, Linear, Node, Operation, Relu, Scale, Weighted
from citrus.networks.trace import BatchNorm, Normalize, Statistics, Trace, TracedLayer, batch_norm_affine, trace


def graph(module: nn.Module | Graph, input_shape: tuple[int, ...]) -> Graph:
    """The plain operations of a supported module in eval mode, for inputs (C, H, W); a graph is returned as it is.

    Weights in half precision are taken to float32, which holds them.
    """
    if isinstance(module, Graph):
        return module
    if any(m.training for m in module.modules()):
        raise CitrusError("The network is in training mode: call .eval() first, or fold it with batch statistics.")
    if any(t.dtype in (torch.float16, torch.bfloat16) for t in (*module.parameters(), *module.buffers())):
        module = copy.deepcopy(module).float()
    traced = trace(module, input_shape)
    plain = fold(traced)
    with torch.no_grad(), true_float32():
        plain = with_slack(plain, _nodes(traced.double(), like=torch.zeros((), dtype=torch.float64)))
    _check_same(module, plain)
    return plain


@torch.no_grad()
def _check_same(module: nn.Module, plain: Graph) -> None:
    """Values changed in place, hooks and unused branches escape a trace: so both are asked once."""
    like = next((t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()), torch.zeros(()))
    if like.is_meta:
        return
    x = torch.rand(2, *plain.input_shape, generator=torch.Generator().manual_seed(0)).to(like)
    with true_float32():
        ours, theirs = plain(x), module(x.clone())
    tolerance = 1e-4 * float(1 + theirs.abs().nan_to_num().max())
    if not torch.allclose(ours, theirs, rtol=0, atol=tolerance, equal_nan=True):
        off = float((ours - theirs).abs().max())
        raise CitrusError(
            f"{type(module).__name__} computes something else than its layers in their order (scores differ by "
            f"{off:.2g}, allowed are {tolerance:.2g}): does it change a value in place that is read again, leave out a "
            "branch, or have hooks?"
        )


def fold(traced: Trace, statistics: Statistics | None = None) -> Graph:
    """Plain operations with the module's present weights, differentiable in them.

    BatchNorm uses the given batch statistics, or the running ones. A value that two layers read is left as it is.
    Products are in true float32: what is proved is proved of these operations, so they have to be the module's.
    """
    with true_float32():
        return fuse(_nodes(traced, statistics), traced.input_shape)


def _nodes(traced: Trace, statistics: Statistics | None = None, like: Tensor | None = None) -> list[Node]:
    """Each layer by itself; those without weights, such as pooling, get them like the others', or as in `like`."""
    modules = [s.layer for s in traced.layers if isinstance(s.layer, nn.Module)]
    if like is None:
        like = next((t for m in modules for t in (*m.parameters(), *m.buffers())), torch.zeros(()))
    return [Node(_operation(s, statistics, like), s.inputs, s.name, s.shape) for s in traced.layers]


def with_slack(plain: Graph, layers: Sequence[Node]) -> Graph:
    """`plain`, whose folded operations know how far they are from the layers, given in float64, that they stand for.

    How large the numbers were that a bias was summed from is what the same layers give without signs.
    """
    exact = fuse(layers, plain.input_shape).nodes
    sizes = fuse([replace(node, op=_unsigned(node.op)) for node in layers], plain.input_shape).nodes
    stored = {id(node.op) for node in layers if not _rounded(node.op)}
    found = []
    for node, true, size in zip(plain.nodes, exact, sizes, strict=True):
        op, real, unsigned = node.op, true.op, size.op
        if isinstance(op, Weighted) and isinstance(real, Weighted) and isinstance(unsigned, Weighted):
            same = id(real) in stored and torch.equal(op.weight.double(), real.weight)
            op = op if same else _beside(op, real, unsigned.bias)
        found.append(replace(node, op=op))
    return replace(plain, nodes=tuple(found))


def _beside(op: Weighted, real: Weighted, mass: Tensor) -> Operation:
    """`op`, which knows how far it may be from `real` in exact numbers."""
    few, many = 64 * unit_of(real.weight), (2 * op.weight[0].numel() + 64) * unit_of(real.bias)
    error, nothing = (op.weight.double() - real.weight).abs(), 2 * torch.finfo(op.weight.dtype).tiny
    tiny = real.weight.abs() < nothing  # subnormal numbers are off by far more than a share of themselves
    share = torch.where(tiny, 0.0, error / real.weight.abs()).max().item()
    stray = torch.where(tiny, error, 0.0).max().item() + few * nothing if bool(tiny.any()) else 0.0
    slack = (op.bias.double() - real.bias).abs() + many * mass
    return replace(op, mass=mass, slack=slack, off=share + few, stray=stray)


def unit_of(weights: Tensor) -> float:
    """The unit roundoff of the arithmetic of these numbers."""
    return torch.finfo(weights.dtype).eps / 2


def _rounded(op: Operation) -> bool:
    return isinstance(op, Weighted) and op.off > 0


def _unsigned(op: Operation) -> Operation:
    if not isinstance(op, Weighted):
        return op
    return replace(op, weight=op.weight.abs(), bias=op.bias.abs() if op.mass is None else op.mass, mass=None)


def fuse(nodes: Sequence[Node], input_shape: tuple[int, ...]) -> Graph:
    """The same function in fewer operations: diagonal maps are absorbed by the layers beside them where they can be."""
    readers = Counter(j for node in nodes for j in node.inputs)
    fused: list[Node] = []
    place = {0: 0}  # value before -> value after
    for i, node in enumerate(nodes, start=1):
        inputs = tuple(place[j] for j in node.inputs)
        operations, name = [node.op], node.name
        if fused and inputs == (len(fused),) and readers[node.inputs[0]] == 1:
            before = fused[-1]
            shape = Graph(tuple(fused), input_shape).shape_of(before.inputs[0])
            merged = _fuse(before.op, node.op, shape)
            if merged:
                fused.pop()
                operations, inputs = merged, before.inputs
                name = before.name if isinstance(before.op, Conv | Linear) else name
        for operation in operations:
            fused.append(Node(operation, inputs, name, node.shape))
            inputs = (len(fused),)
        place[i] = len(fused)
    return Graph(tuple(fused), input_shape)


def _operation(traced: TracedLayer, statistics: Statistics | None, like: Tensor) -> Operation:
    layer = traced.layer
    if isinstance(layer, nn.Conv2d):
        padding = (0, 0) if layer.padding == "valid" else layer.padding
        bias = layer.weight.new_zeros(layer.out_channels) if layer.bias is None else layer.bias
        return Conv(layer.weight, bias, layer.stride, padding, layer.dilation, layer.groups)  # type: ignore[arg-type]
    if isinstance(layer, nn.Linear):
        return Linear(layer.weight, layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias)
    if isinstance(layer, BatchNorm):
        return _batch_norm(traced, layer, statistics)
    if isinstance(layer, Normalize):
        return Scale(1 / layer.std, -layer.mean / layer.std, off=unit_of(like))
    if isinstance(layer, nn.AvgPool2d):
        kernel, stride, padding = (_pair(v) for v in (layer.kernel_size, layer.stride, layer.padding))
        return average_pool(traced.shape[0], kernel, stride, padding, like, layer.divisor_override)
    plain: dict[type, Operation] = {nn.Flatten: Flatten(), nn.ReLU: Relu(), Add: Add()}
    return plain[type(layer)]


def _batch_norm(traced: TracedLayer, layer: BatchNorm, statistics: Statistics | None) -> Scale:
    mean, variance = statistics[traced.name] if statistics is not None else (layer.running_mean, layer.running_var)
    if mean is None or variance is None:
        raise CitrusError(f"Layer {traced.name!r} ({layer}) keeps no running statistics, so it has no eval mode.")
    scale, shift = batch_norm_affine(layer, mean, variance, len(traced.shape))
    if statistics is not None:
        return Scale(scale, shift)
    given = layer.bias.abs() if layer.affine else torch.zeros_like(mean)
    mass = given.view_as(shift) + (mean.view_as(shift) * scale).abs()
    return Scale(scale, shift, mass, off=unit_of(scale))


def average_pool(
    channels: int, kernel: Pair, stride: Pair, padding: Pair, like: Tensor, divisor: int | None = None
) -> Conv:
    """Average pooling is a depthwise convolution with equal weights."""
    weight = like.new_full((channels, 1, *kernel), 1 / (divisor or kernel[0] * kernel[1]))
    return Conv(weight, like.new_zeros(channels), stride, padding, (1, 1), channels, off=unit_of(like))


def _pair(value: int | Pair) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _fuse(before: Operation, op: Operation, shape: tuple[int, ...]) -> list[Operation] | None:
    """The operations that equal `before` then `op`, when a diagonal map can be absorbed; `shape` enters `before`."""
    match before, op:
        case (Conv(), Scale(weight=factors)) | (Scale(weight=factors), Conv()) if factors.shape[1:] != (1, 1):
            return None  # a factor per pixel cannot be moved into a kernel
        case Conv() | Linear() | Scale(), Scale():
            return [_scale_after(before, op)]
        case Scale(), Linear():
            return [Linear(op.weight * before.weight, op.bias + op.weight @ before.bias.expand(shape))]
        case Scale(), Conv():
            return [_scale_before(before, op, shape)]
        case Scale(), Flatten():
            return [Flatten(), Scale(before.weight.expand(shape).flatten(), before.bias.expand(shape).flatten())]
    return None


def _scale_after(before: Conv | Linear | Scale, scale: Scale) -> Operation:
    if isinstance(before, Scale | Linear):
        factors = scale.weight if isinstance(before, Scale) else scale.weight[:, None]
        return replace(before, weight=before.weight * factors, bias=before.bias * scale.weight + scale.bias)
    bias = before.bias if before.bias.dim() == 3 else before.bias.view(-1, 1, 1)
    bias = bias * scale.weight + scale.bias
    weight = before.weight * scale.weight.view(-1, 1, 1, 1)
    return replace(before, weight=weight, bias=bias.flatten() if bias.shape[1:] == (1, 1) else bias)


def _scale_before(scale: Scale, conv: Conv, shape: tuple[int, ...]) -> Conv:
    """x -> conv(s x + t). Padding puts zeros, not t, around s x + t: so t enters as a map of its own, conv(t)."""
    factors = scale.weight.reshape(conv.groups, 1, conv.weight.shape[1], 1, 1)
    weight = (conv.weight.unflatten(0, (conv.groups, -1)) * factors).flatten(0, 1)
    offset = scale.bias.expand(shape)[None]
    if any(conv.padding) or scale.bias.shape[1:] != (1, 1):
        bias = conv(offset)[0]
    else:  # every pixel sees the same sum
        kernel = conv.weight.sum((2, 3), keepdim=True)
        bias = F.conv2d(offset[..., :1, :1], kernel, conv.bias, groups=conv.groups).flatten()
    return replace(conv, weight=weight, bias=bias)
