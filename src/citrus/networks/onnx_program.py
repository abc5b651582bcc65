"""What is known while an ONNX file is read, node by node: see onnx_nodes.py."""

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from citrus.errors import CitrusError
from citrus.networks.operations import Conv, Graph, Linear, Node, Operation

SUPPORTED = (
    "Conv, Gemm, MatMul with a constant, BatchNormalization, Relu, AveragePool, Pad, Flatten, Reshape that flattens, "
    "Transpose that moves nothing, Add of two branches, Add, Sub, Mul and Div with a constant, Identity, Dropout"
)
MOST_NUMBERS = 1 << 25
MOST_WORK = 1 << 36  # VGG16 takes 1.5e10
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
    work: int = 0
    """Multiplications of all operations on one image."""
    made: int = 0
    """Numbers of all constants that are made while reading."""

    def append(self, op: Operation, inputs: tuple[int, ...], name: str) -> int:
        # Running the operation without numbers tells the shape, and refuses weights that do not fit.
        given = [torch.empty(1, *self.shapes[i], dtype=torch.float64, device="meta") for i in inputs]
        plain = Graph((Node(op, inputs, name, ()),), ()).map(lambda t: t.to("meta")).nodes[0].op
        result = plain(*given)
        self.work += result.numel() * (op.weight[0].numel() if isinstance(op, Conv | Linear) else 1)
        self.limit(result.numel())
        self.shapes.append(tuple(result.shape[1:]))
        self.nodes.append(Node(op, inputs, name, self.shapes[-1]))
        return len(self.nodes)

    def limit(self, numbers: int, kept: bool = False) -> None:
        """Small files may claim any size: so many numbers at once must be usual for a file of its size."""
        self.made += numbers if kept else 0
        if max(numbers, self.made) > self.most_numbers or self.work > MOST_WORK:
            raise ValueError(f"it takes {numbers} numbers and {self.work} multiplications so far, which is too much")

    @cached_property
    def most_numbers(self) -> int:
        return MOST_NUMBERS + int(self.model.ByteSize())

    @cached_property
    def readers(self) -> dict[str, set[str]]:
        """What kinds of nodes read a value."""
        found = defaultdict[str, set[str]](set)
        for node in self.model.graph.node:
            for name in node.input:
                found[name].add(node.op_type)
        return found


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


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
