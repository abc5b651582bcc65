"""What is known while an ONNX file is read, and the questions that the readers of its nodes ask.

A value of an ONNX graph is either a constant (weights, shapes) or depends on the image. The batch axis is left out of
every shape here; where a file computes with shapes, it counts as 0, which Reshape understands as "the size before".
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from citrus.errors import CitrusError
from citrus.networks.operations import Node, Operation

SUPPORTED = (
    "Conv, Gemm, MatMul with a constant, BatchNormalization, Relu, AveragePool, Pad, Flatten, Reshape that flattens, "
    "Transpose that moves nothing, Add of two branches, Add, Sub, Mul and Div with a constant, Identity, Dropout"
)
Array = np.ndarray[Any, Any]


@dataclass
class Program:
    """What has been read so far: constants, and the values that depend on the image as a list of operations."""

    shapes: list[tuple[int, ...]]  # of value i; value 0 is the image
    batch: int | None  # the batch size that the file was exported for, None if it is free
    values: dict[str, int]
    readers: dict[str, list[str]]  # types of the nodes that read a value
    constants: dict[str, Array] = field(default_factory=dict)
    from_shape: set[str] = field(default_factory=set)  # constants in which the batch axis may stand as 0
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

        self.kind: str = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        self.inputs: list[str] = list(node.input)
        self.output: str = node.output[0]
        self.program = program
        self.name: str = node.name or f"{self.kind}_{place}"
        self.where = f"Node {place}, {self.kind} {node.name or self.output!r},"
        self.attributes: dict[str, Any] = {a.name: get_attribute_value(a) for a in node.attribute}

    def refuse(self, problem: str) -> CitrusError:
        return CitrusError(f"{self.where} {problem}; supported: {SUPPORTED}.")

    def data(self) -> tuple[int, ...]:
        return tuple(self.program.values[name] for name in self.inputs if name in self.program.values)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first value that depends on the image."""
        return self.program.shapes[self.data()[0]]

    def constant(self, i: int, shapes: bool = False) -> Array:
        name = self.inputs[i]
        if name not in self.program.constants or (name in self.program.from_shape and not shapes):
            raise self.refuse(f"needs a constant, but its input {name!r} is computed")
        return self.program.constants[name]

    def has(self, i: int) -> bool:
        return i < len(self.inputs) and self.inputs[i] != ""

    def weight(self, i: int) -> Tensor:
        array = self.constant(i)
        if array.dtype.kind != "f":
            raise self.refuse(f"has weights {self.inputs[i]!r} of type {array.dtype}, not floating-point numbers")
        return torch.from_numpy(np.array(array, dtype=np.float64))

    def pair(self, key: str, default: int) -> tuple[int, int]:
        values = list(self.attributes.get(key, (default, default)))
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
