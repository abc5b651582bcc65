"""ONNX nodes to plain operations, one at a time: what `citrus.networks.onnx` reads files with.

A value of an ONNX graph is either a constant (weights, shapes) or depends on the image. The batch axis is left out of
every shape here; where a file computes with shapes, it counts as 0, which Reshape understands as "the size before".
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from citrus.errors import CitrusError
from citrus.networks.graph import average_pool
from citrus.networks.operations import Add, Conv, Flatten, Linear, Node, Operation, Relu, Scale

SUPPORTED = (
    "Conv, Gemm, MatMul with a constant, BatchNormalization, Relu, AveragePool, Pad, Flatten, Reshape that flattens, "
    "Transpose that moves nothing, Add of two branches, Add, Sub, Mul and Div with a constant, Identity, Dropout"
)
KEEPS_BATCH_AXIS = ("Identity", "Cast", "Unsqueeze", "Gather", "Concat")  # of shapes, where it stands as 0
ZERO = torch.zeros((), dtype=torch.float64)
Array = np.ndarray[Any, Any]


@dataclass
class Program:
    """What has been read so far: constants, and the values that depend on the image as a list of operations."""

    model: Any
    """The whole ONNX file."""
    batch: int | None
    """The batch size that it was exported for, None if it is free."""
    shapes: list[tuple[int, ...]]
    """Of every value; value 0 is the image."""
    values: dict[str, int] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    from_shape: set[str] = field(default_factory=set)
    """Constants in which the batch axis may stand as 0."""
    nodes: list[Node] = field(default_factory=list)

    def append(self, op: Operation, inputs: tuple[int, ...], name: str) -> int:
        # The shape is found by running the operation: cheap on one image, and it refuses weights that do not fit.
        result = op(*(torch.zeros(1, *self.shapes[i], dtype=torch.float64) for i in inputs))
        self.shapes.append(tuple(result.shape[1:]))
        self.nodes.append(Node(op, inputs, name, self.shapes[-1]))
        return len(self.nodes)


class Call:
    """One ONNX node with its attributes, and the questions its reader asks."""

    def __init__(self, node: Any, place: int, program: Program) -> None:
        from onnx.helper import get_attribute_value

        self.node, self.program = node, program
        self.kind: str = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        self.inputs: list[str] = list(node.input)
        self.output: str = node.output[0]
        self.name: str = node.name or f"{self.kind}_{place}"
        self.where = f"Node {place}, {self.kind} {node.name or self.output!r},"
        self.attributes: dict[str, Any] = {a.name: get_attribute_value(a) for a in node.attribute}
        if self.kind not in (*OPERATIONS, *KEEPS_BATCH_AXIS, "Constant", "Shape"):
            raise self.refuse("is not supported")

    def refuse(self, problem: str) -> CitrusError:
        return CitrusError(f"{self.where} {problem}; supported: {SUPPORTED}.")

    def data(self) -> tuple[int, ...]:
        """The values that depend on the image."""
        return tuple(self.program.values[name] for name in self.inputs if name in self.program.values)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first of them."""
        return self.program.shapes[self.data()[0]]

    def has(self, i: int) -> bool:
        return i < len(self.inputs) and self.inputs[i] != ""

    def constant(self, i: int, shapes: bool = False) -> Array:
        name = self.inputs[i]
        if name not in self.program.constants or (name in self.program.from_shape and not shapes):
            raise self.refuse(f"needs a constant, but its input {name!r} is computed")
        return self.program.constants[name]

    def weight(self, i: int) -> Tensor:
        array = self.constant(i)
        if array.dtype.kind != "f":
            raise self.refuse(f"has weights {self.inputs[i]!r} of type {array.dtype}, not floating-point numbers")
        if not np.isfinite(array).all():
            raise self.refuse("has weights that are NaN or infinite")
        return torch.from_numpy(np.array(array, dtype=np.float64))

    def pair(self, key: str) -> tuple[int, int]:
        values = list(self.attributes.get(key, (1, 1)))
        if len(values) != 2:
            raise self.refuse(f"has {key} {values}, but only images with two axes are known")
        return int(values[0]), int(values[1])

    def padding(self) -> tuple[int, int]:
        auto = self.attributes.get("auto_pad", b"NOTSET").decode()
        pads = [int(size) for size in self.attributes.get("pads", [0, 0, 0, 0])]
        if auto not in ("NOTSET", "VALID"):
            raise self.refuse(f"has auto_pad {auto}, but padding must be written as numbers")
        if len(pads) != 4 or pads[:2] != pads[2:]:
            raise self.refuse(f"has pads {pads}, but padding must be equal on opposite sides")
        return (pads[0], pads[1]) if auto == "NOTSET" else (0, 0)


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


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


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
    function = helper.make_function("citrus", "constant", list(feeds), [call.output], [call.node], opsets)
    (array,) = ReferenceEvaluator(function).run(None, feeds, attributes={})
    return np.asarray(array)


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
    return Linear(weight.contiguous() * call.attributes.get("alpha", 1.0), bias)


def _batch_norm(call: Call) -> Operation:
    if call.attributes.get("training_mode", 0):
        raise call.refuse("is in training mode")
    gamma, beta, mean, variance = (call.weight(i).view(call.shape[0]) for i in range(1, 5))
    scale = gamma / (variance + call.attributes.get("epsilon", 1e-5)).sqrt()
    shape = (-1,) + (1,) * (len(call.shape) - 1)
    return Scale(scale.view(shape), (beta - mean * scale).view(shape))


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
    return Scale(1 / value, one * 0)


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
    return average_pool(call.shape[0], call.pair("kernel_shape"), call.pair("strides"), padding, ZERO)


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
        readers = {node.op_type for node in call.program.model.graph.node if call.output in node.input}
        if readers <= {"Flatten", "Reshape"}:
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
