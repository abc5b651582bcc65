"""ONNX nodes to plain operations, one at a time: what `citrus.networks.onnx` reads files with.

A value of an ONNX graph is either a constant (weights, shapes) or depends on the image. The batch axis is left out of
every shape here; where a file computes with shapes, it counts as 0, which Reshape understands as "the size before".
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from citrus.errors import CitrusError
from citrus.networks.graph import average_pool, unit_of
from citrus.networks.onnx_program import Array, Call, Program, first_line
from citrus.networks.operations import Add, Conv, Flatten, Linear, Operation, Relu, Scale

KEEPS_BATCH_AXIS = ("Identity", "Cast", "Unsqueeze", "Gather", "Concat")  # of shapes, where it stands as 0
FOLDED = (
    "Constant",
    "Relu",
    "Reshape",
    "Transpose",
    "Flatten",
    "Dropout",
    "Gemm",
    "MatMul",
    "Add",
    "Sub",
    "Mul",
    "Div",
)
"""With these, what is done to constants alone."""
ZERO = torch.zeros((), dtype=torch.float64)


def called(node: Any, place: int, program: Program) -> Call:
    """A node whose kind is known."""
    call = Call(node, place, program)
    if call.kind not in (*OPERATIONS, *KEEPS_BATCH_AXIS, "Constant", "Shape"):
        raise call.refuse("is not supported")
    return call


def read(call: Call) -> None:
    """Add one node to its program."""
    program, data = call.program, call.data()
    try:
        if call.kind == "Shape" and data:
            whole = np.array([0, *call.shape], dtype=np.int64)
            program.constants[call.output] = whole[call.attributes.get("start", 0) : call.attributes.get("end")]
            program.from_shape.add(call.output)
        elif not data:
            program.constants[call.output] = _fold_constant(call)
        elif call.kind not in OPERATIONS:
            raise call.refuse("is not supported")
        else:
            op = OPERATIONS[call.kind](call)
            program.values[call.output] = program.append(op, data, call.name) if op else data[0]
    except CitrusError:
        raise
    except Exception as error:  # numpy, torch and onnx raise many types on sizes that clash
        given = f"an input of shape {call.shape}" if data else "its constants"
        raise call.refuse(f"cannot take {given} ({first_line(error)})") from error


def _fold_constant(call: Call) -> Array:
    """Constants that are made from constants, and what exporters write to compute a shape."""
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    feeds = {name: call.constant(i, shapes=True) for i, name in enumerate(call.inputs) if name}
    made = call.program.from_shape.intersection(feeds)
    if made:
        if call.kind not in KEEPS_BATCH_AXIS or (call.kind == "Gather" and call.inputs[1] in made):
            raise call.refuse("computes with shapes in a way that is not supported (export with constants folded)")
        call.program.from_shape.add(call.output)
    opsets = call.program.model.opset_import
    call.program.limit(_folded(call, [feeds[name] for name in call.inputs if name]), kept=True)
    function = helper.make_function("citrus", "constant", list(feeds), [call.output], [call.node], opsets)
    (array,) = ReferenceEvaluator(function).run(None, feeds, attributes={})
    return np.asarray(array)


def _folded(call: Call, given: list[Array]) -> int:
    """How many numbers a constant that is made from constants has at most."""
    sizes = [array.size for array in given]
    if call.kind not in (*FOLDED, *KEEPS_BATCH_AXIS) or "sparse_value" in call.attributes:
        raise call.refuse("computes with constants in a way that is not supported (export with constants folded)")
    if call.kind in ("Add", "Sub", "Mul", "Div"):
        return math.prod(np.broadcast_shapes(*(array.shape for array in given)))
    if call.kind in ("Gemm", "MatMul", "Gather"):
        shared = 1 if call.kind == "Gather" else min((*given[0].shape, *given[1].shape), default=1)
        return sizes[0] * sizes[1] // max(shared, 1)
    return sum(sizes)


def _conv(call: Call) -> Operation:
    weight = call.weight(1)
    if weight.dim() != 4 or len(call.shape) != 3:
        raise call.refuse(f"convolves {tuple(weight.shape)} with {call.shape}, but only images with two axes are known")
    bias = call.weight(2).view(len(weight)) if call.has(2) else weight.new_zeros(len(weight))
    groups = int(call.attributes.get("group", 1))
    return Conv(weight, bias, call.pair("strides"), call.padding(), call.pair("dilations"), groups)


def _linear(call: Call) -> Operation:
    """Gemm is alpha x B + beta C, MatMul is x B."""
    weight = call.weight(1)
    if weight.dim() != 2 or len(call.shape) != 1 or call.attributes.get("transA", 0):
        raise call.refuse(f"multiplies {call.shape} by {tuple(weight.shape)}, not a flat vector by a constant matrix")
    weight = weight if call.attributes.get("transB", 0) else weight.T
    bias = weight.new_zeros(len(weight))
    if call.kind == "Gemm" and call.has(2):
        given = call.weight(2)
        if given.numel() not in (1, len(weight)) or given.shape[:-1].numel() > 1:
            raise call.refuse(f"has a bias of shape {tuple(given.shape)} for {len(weight)} outputs")
        bias = given.reshape(-1).expand(len(weight)) * call.attributes.get("beta", 1.0)
    return Linear(weight.contiguous() * call.attributes.get("alpha", 1.0), bias, off=unit_of(weight))


def _batch_norm(call: Call) -> Operation:
    if call.attributes.get("training_mode", 0):
        raise call.refuse("is in training mode")
    gamma, beta, mean, variance = (call.weight(i).view(call.shape[0]) for i in range(1, 5))
    scale = gamma / (variance + call.attributes.get("epsilon", 1e-5)).sqrt()
    shape = (-1,) + (1,) * (len(call.shape) - 1)
    mass = beta.abs() + (mean * scale).abs()
    return Scale(scale.view(shape), (beta - mean * scale).view(shape), mass.view(shape), off=unit_of(scale))


def _arithmetic(call: Call) -> Operation:
    """Add, Sub, Mul, Div: with a constant a diagonal map, as normalisation and biases are written."""
    if len(call.data()) == 2:
        first, second = (call.program.shapes[i] for i in call.data())
        if call.kind != "Add" or first != second:
            raise call.refuse(f"joins two branches of shapes {first} and {second}, but only Add of one shape is known")
        return Add()
    constant_second = call.inputs[0] in call.program.values
    value = _broadcast(call, call.weight(1 if constant_second else 0))
    one = value.new_ones(call.shape[0], *(1 for _ in call.shape[1:]))
    match call.kind:
        case "Add":
            return Scale(one, value)
        case "Sub":
            return Scale(one, -value) if constant_second else Scale(-one, value)
        case "Mul":
            return Scale(value, one * 0)
    if not constant_second or (value == 0).any():
        raise call.refuse("divides by zero" if constant_second else "divides a constant by a computed value")
    return Scale(1 / value, one * 0, off=unit_of(value))


def _broadcast(call: Call, value: Tensor) -> Tensor:
    """A constant as (C, 1, 1), (C, H, W) or (n,), whichever it needs."""
    value = value.expand(1, *call.shape)[0]
    per_channel = value[(slice(None), *(slice(1) for _ in call.shape[1:]))]
    return per_channel if (value == per_channel).all() else value


def _average_pool(call: Call) -> Operation:
    padding = call.padding()
    without = any(padding) and not call.attributes.get("count_include_pad", 0)
    if without or call.attributes.get("ceil_mode", 0) or call.pair("dilations") != (1, 1):
        raise call.refuse("uses " + ("padding without count_include_pad" if without else "ceil_mode or dilations"))
    kernel = call.pair("kernel_shape")
    if any(size > side + 2 * pad for size, side, pad in zip(kernel, call.shape[1:], padding, strict=True)):
        raise call.refuse(f"averages {kernel} of {call.shape}")
    call.program.limit(call.shape[0] * math.prod(kernel), kept=True)
    return average_pool(call.shape[0], kernel, call.pair("strides"), padding, ZERO)


def _pad(call: Call) -> Operation | None:
    """Zeros around an image, as exporters write in front of pooling: a depthwise convolution with the kernel 1."""
    pads = [int(size) for size in (call.constant(1) if call.has(1) else call.attributes["pads"])]
    filled = call.weight(2).any() if call.has(2) else call.attributes.get("value", 0)
    outer, before, after = pads[:2] + pads[4:6], pads[2:4], pads[6:]
    other_mode = call.attributes.get("mode", b"constant") != b"constant"
    if other_mode or filled or call.has(3) or any(outer) or before != after:
        raise call.refuse(f"pads by {pads}, but only zeros, as many on opposite sides of an image, are known")
    return average_pool(call.shape[0], (1, 1), (1, 1), (before[0], before[1]), ZERO) if any(pads) else None


def _flatten(call: Call) -> Operation | None:
    axis = call.attributes.get("axis", 1)
    if axis not in (1, -len(call.shape)):
        raise call.refuse(f"flattens from axis {axis}, but only everything behind the batch axis can be flattened")
    return Flatten() if len(call.shape) > 1 else None


def _reshape(call: Call) -> Operation | None:
    target = [int(size) for size in call.constant(1, shapes=True).reshape(-1)]
    head, rest = target[:1], target[1:]
    whole = math.prod(call.shape)
    if 0 in rest and call.inputs[1] in call.program.from_shape:
        raise call.refuse("puts the batch axis elsewhere")
    as_before = {-1, call.program.batch or 1}
    if not call.attributes.get("allowzero", 0):  # 0 stands for the size before
        as_before.add(0)
        rest = [call.shape[i] if size == 0 and i < len(call.shape) else size for i, size in enumerate(rest)]
    if rest.count(-1) == 1 and head != [-1] and (known := -math.prod(rest)) > 0:
        rest = [whole // known if size == -1 else size for size in rest]
    if head and head[0] in as_before and tuple(rest) in (call.shape, (whole,)):
        return None if tuple(rest) == call.shape else Flatten()
    raise call.refuse(f"turns (batch, {str(call.shape)[1:-1].rstrip(',')}) into {target}, which is no flattening")


def _transpose(call: Call) -> Operation | None:
    order = list(call.attributes.get("perm", range(len(call.shape), -1, -1)))
    moved = [axis for axis in order if axis and call.shape[axis - 1] > 1]
    after = tuple(call.shape[axis - 1] for axis in order[1:] if axis)
    if order[0] == 0 and moved == sorted(moved):  # only axes of size 1 change places: every number stays where it is
        if after == call.shape:
            return None
        if call.program.readers[call.output] <= {"Flatten", "Reshape"}:
            return Flatten()
    raise call.refuse(f"permutes the axes of (batch, {str(call.shape)[1:-1]}) to {order}")


def _identity(call: Call) -> None:
    if call.kind == "Dropout" and call.has(2) and call.constant(2).any():
        raise call.refuse("is in training mode")


OPERATIONS: dict[str, Callable[[Call], Operation | None]] = {
    "Conv": _conv,
    "BatchNormalization": _batch_norm,
    "Relu": lambda call: Relu(),
    "AveragePool": _average_pool,
    "Pad": _pad,
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Transpose": _transpose,
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), _arithmetic),
    **dict.fromkeys(("Gemm", "MatMul"), _linear),
    **dict.fromkeys(("Identity", "Dropout"), _identity),
}
