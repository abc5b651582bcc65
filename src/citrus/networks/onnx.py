"""ONNX in and out.

    network = load_onnx("mnist_0.1.onnx", mean=(0.1307,), std=(0.3081,))  # a Graph of plain operations
    save_onnx(network, "copy.onnx")

A file is a network for images in [0, 1]: normalisation belongs into it, as Sub and Div at its head, or is given to
`load_onnx`. Weights are combined in float64 and rounded once to float32. The graph that comes back runs on any batch,
also where the file was exported for a batch of one.
"""

import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from citrus.errors import CitrusError
from citrus.files import replace_file
from citrus.networks.graph import fuse, unit_of, with_slack
from citrus.networks.graph import graph as graph_of
from citrus.networks.onnx_nodes import called, read
from citrus.networks.onnx_program import Program, first_line
from citrus.networks.operations import Conv, Flatten, Graph, Linear, Operation, Scale
from citrus.networks.trace import Normalize

OPSET, IR_VERSION = 13, 8  # old enough for every runtime in use, new enough for nothing to be missing
OLDEST_OPSET = 7  # before it, Add and Gemm broadcast by other rules


def load_onnx(
    path: str | os.PathLike[str],
    input_shape: tuple[int, ...] | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> Graph:
    """The network in an ONNX file as plain operations.

    `input_shape` (C, H, W) is needed where the file leaves it open, and turns a network on flat vectors into one on
    images. `mean` and `std` are put in front of a network that has no normalisation of its own.
    """
    try:
        return _read(_load(Path(path)), path, input_shape, mean, std)
    except CitrusError:
        raise
    except Exception as error:  # names, sizes and weights of damaged files break protobuf and torch in many ways
        raise CitrusError(f"{path} cannot be read as a network ({first_line(error)}).") from error


def _read(
    model: Any,
    path: str | os.PathLike[str],
    input_shape: tuple[int, ...] | None,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
) -> Graph:
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    images = [value for value in model.graph.input if value.name not in weights]
    if len(images) != 1 or len(model.graph.output) != 1:
        names = ", ".join(repr(value.name) for value in (*images, *model.graph.output))
        raise CitrusError(
            f"{path} has {len(images)} inputs and {len(model.graph.output)} outputs ({names}), but a classifier takes "
            "images and returns scores, one of each."
        )
    batch, shape = _shape_of(images[0], input_shape, path)
    program = Program(model, batch, [tuple(input_shape or shape)])
    program.limit(math.prod(shape))
    _normalise(program, mean, std)
    if program.shapes[0] != shape:
        program.append(Flatten(), (len(program.nodes),), "flatten")
    program.values[images[0].name] = len(program.nodes)
    _read_nodes(program, weights, path)
    result = program.values.get(model.graph.output[0].name)
    if not result or result != len(program.nodes) or len(program.shapes[-1]) != 1:
        raise CitrusError(f"{path} must end in a vector of class scores, not in shape {program.shapes[result or 0]}.")
    graph = with_slack(fuse(program.nodes, program.shapes[0]).map(Tensor.float), program.nodes)
    _check_finite(graph, str(path))
    return graph


def _onnx() -> Any:
    try:
        import onnx
        import onnx.checker
    except ImportError as error:
        raise CitrusError("ONNX files need the onnx package: pip install 'citrus-uap[onnx]'.") from error
    return onnx


def _load(path: Path) -> Any:
    onnx = _onnx()
    if not path.is_file():
        raise CitrusError(f"There is no ONNX file {path}.")
    try:
        model = onnx.load(path)
    except Exception as error:  # protobuf, onnx and the file system each raise their own types
        raise CitrusError(f"{path} cannot be read as an ONNX file ({first_line(error)}).") from error
    if not model.graph.node:
        raise CitrusError(f"{path} is not an ONNX file, or it holds no network.")
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    if opset < OLDEST_OPSET:
        raise CitrusError(f"{path} is written for ONNX opset {opset}; opset {OLDEST_OPSET} or later is needed.")
    return model


def _shape_of(
    value: Any, given: tuple[int, ...] | None, path: str | os.PathLike[str]
) -> tuple[int | None, tuple[int, ...]]:
    """Batch size (None if free) and shape of the images that the file itself reads."""
    sizes = [axis.dim_value or None for axis in value.type.tensor_type.shape.dim]
    if not sizes and given is not None:
        sizes = [None] * (len(given) + 1)
    if len(sizes) not in (2, 4):
        raise CitrusError(
            f"The input {value.name!r} of {path} has {len(sizes)} axes; it must be (batch, C, H, W) or (batch, n), "
            "and input_shape says what a file leaves open."
        )
    batch, inner = sizes[0], sizes[1:]
    wanted = inner if given is None else list(given)
    if given is not None and len(inner) == 1 and len(given) == 3:  # a network on flat vectors that is to take images
        wanted = [torch.Size(given).numel()]
    if len(wanted) != len(inner) or any(a not in (None, b) for a, b in zip(inner, wanted, strict=True)):
        raise CitrusError(f"input_shape {given} does not fit the input {value.name!r} of {path}, which is {sizes}.")
    shape = tuple(size for size in wanted if size)
    if len(shape) != len(wanted):
        raise CitrusError(f"{path} leaves the shape of its input {value.name!r} open: give input_shape=(C, H, W).")
    return batch, shape


def _normalise(program: Program, mean: tuple[float, ...] | None, std: tuple[float, ...] | None) -> None:
    if mean is None and std is None:
        return
    shape = program.shapes[0]
    count = max(len(mean or ()), len(std or ()))
    layer = Normalize(tuple(mean or (0.0,) * count), tuple(std or (1.0,) * count))
    if count not in (1, shape[0] if len(shape) == 3 else 1):
        raise CitrusError(f"mean and std have {count} channels, but the network's input has shape {shape}.")
    ones = (1,) * (len(shape) - 1)
    offset, width = (t.double().reshape(-1, *ones).expand(shape[0], *ones) for t in (layer.mean, layer.std))
    program.append(Scale(1 / width, -offset / width, off=unit_of(width)), (0,), "normalize")


def _read_nodes(program: Program, weights: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Read the nodes that the output depends on; exporters leave others behind."""
    onnx, file = _onnx(), program.model.graph
    wanted = {file.output[0].name}
    live = []
    for place, node in reversed(list(enumerate(file.node))):
        if wanted.intersection(node.output):
            live.append((place, node))
            wanted.update(node.input)
    try:
        calls = [called(node, place, program) for place, node in reversed(live)]
        onnx.checker.check_model(program.model)
        program.constants.update((n, onnx.numpy_helper.to_array(t)) for n, t in weights.items() if n in wanted)
    except CitrusError:
        raise
    except Exception as error:  # the checker and the decoder of weights raise many types on damaged files
        raise CitrusError(f"{path} is not a valid ONNX file ({first_line(error)}).") from error
    for call in calls:
        read(call)


def _check_finite(graph: Graph, what: str) -> None:
    for place, node in enumerate(graph.nodes):
        if not all(torch.isfinite(t).all() for t in vars(node.op).values() if isinstance(t, Tensor)):
            raise CitrusError(f"{what}: operation {place}, {node.name!r}, has weights that are NaN or infinite.")


def save_onnx(
    network: Graph | nn.Module, path: str | os.PathLike[str], input_shape: tuple[int, ...] | None = None
) -> None:
    """Write a network as an ONNX file for images in [0, 1], any batch size. A module needs the shape (C, H, W)."""
    onnx = _onnx()
    if isinstance(network, nn.Module):
        if input_shape is None:
            raise CitrusError("A module does not say how large its images are: give input_shape=(C, H, W).")
        network = graph_of(network, input_shape)
    elif input_shape is not None and tuple(input_shape) != network.input_shape:
        raise CitrusError(f"The network takes images of shape {network.input_shape}, not {tuple(input_shape)}.")
    graph = network.map(lambda t: t.detach().cpu().float().contiguous())
    _check_finite(graph, "The network cannot be exported")
    nodes, weights = _export(onnx, graph)
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", *shape])
        for name, shape in (("input", graph.input_shape), ("output", graph.nodes[-1].shape))
    ]
    body = onnx.helper.make_graph(nodes, "citrus", ends[:1], ends[1:], weights)
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(body, producer_name="citrus", opset_imports=opsets, ir_version=IR_VERSION)
    onnx.checker.check_model(model, full_check=True)
    replace_file(Path(path), lambda part: part.write_bytes(model.SerializeToString()))


def _export(onnx: Any, graph: Graph) -> tuple[list[Any], list[Any]]:
    """The ONNX nodes of a network, and their weights."""
    nodes: list[Any] = []
    weights: list[Any] = []
    values = ["input", *(f"value_{i}" for i in range(1, len(graph.nodes))), "output"]
    names: set[str] = set()
    for i, node in enumerate(graph.nodes):
        name = node.name if node.name not in names else f"{node.name}_{i}_{len(names)}"
        names.add(name)
        reads, parts = [values[j] for j in node.inputs], _parts(node.op)
        for part, (kind, suffix, tensors, attributes) in enumerate(parts):
            held = [onnx.numpy_helper.from_array(t.numpy(), f"{name}.{field}") for field, t in tensors.items()]
            result = values[i + 1] if part == len(parts) - 1 else f"{name}.inner"
            reads += [tensor.name for tensor in held]
            nodes.append(onnx.helper.make_node(kind, reads, [result], name + suffix, **attributes))
            weights += held
            reads = [result]
    return nodes, weights


def _parts(op: Operation) -> list[tuple[str, str, dict[str, Tensor], dict[str, Any]]]:
    """The ONNX nodes of one operation in order: kind, what its name ends in, weights, attributes."""
    match op:
        case Conv():
            shape: dict[str, Any] = {"kernel_shape": op.weight.shape[2:], "strides": op.stride, "pads": op.padding * 2}
            shape |= {"dilations": op.dilation, "group": op.groups}
            if op.bias.dim() == 1:
                return [("Conv", "", {"weight": op.weight, "bias": op.bias}, shape)]
            # ONNX has one bias per channel, a bias per pixel is added behind
            return [("Conv", "", {"weight": op.weight}, shape), ("Add", ".add", {"bias": op.bias}, {})]
        case Linear():
            return [("Gemm", "", {"weight": op.weight, "bias": op.bias}, {"transB": 1})]
        case Scale():
            return [("Mul", ".multiply", {"weight": op.weight}, {}), ("Add", "", {"bias": op.bias}, {})]
        case Flatten():
            return [("Flatten", "", {}, {"axis": 1})]
    return [(type(op).__name__, "", {}, {})]
