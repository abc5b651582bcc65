"""Hand-made ONNX files of every supported kind agree with onnxruntime, and the others are refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.limits import little_memory
from torch import Tensor

from citrus.errors import CitrusError
from citrus.networks.onnx import load_onnx

onnx = pytest.importorskip("onnx", reason="onnx is not installed (pip install 'citrus-uap[onnx]')")
Make = onnx.helper.make_node
FLOAT = onnx.TensorProto.FLOAT


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def write(path: Path, nodes: list[Any], shape: tuple[Any, ...] = (1, 2, 6, 6), opset: int = 13) -> Path:
    """A file whose nodes lead from "x" to "y" with the CONSTANTS that they name."""
    read = {name for node in nodes for name in node.input} - {name for node in nodes for name in node.output}
    held = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in CONSTANTS.items() if n in read]
    ends = [onnx.helper.make_tensor_value_info(n, FLOAT, s) for n, s in (("x", shape), ("y", ["n", "c"]))]
    if opset == 9:  # as exporters did then: weights are listed among the inputs
        ends[1:1] = [onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in held]
    body = onnx.helper.make_graph(nodes, "test", ends[:-1], ends[-1:], held)
    opsets = [onnx.helper.make_opsetid("", opset)]
    onnx.save(onnx.helper.make_model(body, opset_imports=opsets, ir_version=4 if opset == 9 else 8), path)
    return path


def runtime(path: Path, x: Tensor) -> Tensor:
    """The file's own answer, image by image: many files are made for a batch of one."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (value,) = session.get_inputs()
    return torch.cat(
        [torch.from_numpy(session.run(None, {value.name: x[i : i + 1].numpy()})[0]) for i in range(len(x))]
    )


def assert_close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5 * float(1 + b.abs().max()))


Step = tuple[str, list[str], dict[str, Any]]


def pool(*kernel: int, **attributes: Any) -> Step:
    return "AveragePool", ["<"], {"kernel_shape": kernel, **attributes}


def chain(*steps: Step) -> list[Any]:
    """Nodes where each reads the one before it; "<" marks its place among the inputs."""
    nodes, value = [], "x"
    for i, (kind, inputs, attributes) in enumerate(steps):
        result = "y" if i == len(steps) - 1 else f"v{i}"
        nodes.append(Make(kind, [value if n == "<" else n for n in inputs], [result], f"n{i}", **attributes))
        value = result
    return nodes


RANDOM = (
    "k 4 2 3 3, kb 4, w 3 72, wt 72 3, b 3, w4 3 144, mean 1 2 1 1, map 2 6 6, map4 1 4 6 6, gamma 4, k2 2 1 3 3, s 3"
)
SIZES = {
    "same": [-1, 2, 0, 6],
    "whole": [3, 72],
    "zero": [0],
    "minus": [-1],
    "zeros": [0] * 8,
    "pads": [0, 0, 2, 1] * 2,
}
TARGETS = ([1, -1], [-1, 72], [0, -1], [0, 72], [1, 2, 36], [72])
CONSTANTS: dict[str, Any] = {
    **{name: weights(*map(int, shape)) for name, *shape in map(str.split, RANDOM.split(", "))},
    **{name: np.array(sizes, np.int64) for name, sizes in SIZES.items()},
    **{f"to{i}": np.array(target, np.int64) for i, target in enumerate(TARGETS)},
    "std": np.full((2, 1, 1), 0.3, np.float32),
    "var": np.abs(weights(4, seed=1)),
    "sv": np.abs(weights(3)),
    "scalar": np.float32(0.7),
    "half": np.float32(0.5),
    "none": np.float32(0),
    "no": np.array(False),
    "bad": np.full((3, 72), np.nan, np.float32),
    "double": weights(3, 72).astype(np.float64) / 3,
    "ints": np.ones((3, 72), np.int32),
}
CONV: Step = ("Conv", ["<", "k", "kb"], {"pads": [1, 1, 1, 1]})
FLAT: Step = ("Flatten", ["<"], {})
GEMM: Step = ("Gemm", ["<", "w", "b"], {"transB": 1})
GEMM4: Step = ("Gemm", ["<", "w4", "b"], {"transB": 1})
NORM = ("BatchNormalization", ["<", "gamma", "kb", "gamma", "var"], {"epsilon": 0.01})
SHAPE_OF = [
    ("Shape", ["v"], "s0", {}),
    ("Gather", ["s0", "zero"], "s1", {}),
    ("Concat", ["s1", "minus"], "s2", {"axis": 0}),
]

FILES: dict[str, list[Any]] = {
    "gemm": chain(FLAT, GEMM),
    "gemm_plain": chain(FLAT, ("Gemm", ["<", "wt"], {"alpha": 0.5})),
    "gemm_scaled": chain(FLAT, ("Gemm", ["<", "wt", "scalar"], {"alpha": 0.5, "beta": 2.0})),
    "matmul_add": chain(FLAT, ("MatMul", ["<", "wt"], {}), ("Add", ["b", "<"], {})),
    "transposed_weight": [Make("Transpose", ["w"], ["t"]), *chain(FLAT, ("MatMul", ["<", "t"], {}))],
    "head": chain(("Sub", ["<", "mean"], {}), ("Div", ["<", "std"], {}), CONV, FLAT, GEMM4),
    "head_scalars": chain(("Mul", ["scalar", "<"], {}), ("Sub", ["scalar", "<"], {}), CONV, FLAT, GEMM4),
    "head_maps": chain(("Mul", ["<", "map"], {}), ("Add", ["<", "map"], {}), CONV, FLAT, GEMM4),
    "head_map_unpadded": chain(
        ("Add", ["<", "map"], {}), ("Conv", ["<", "k2"], {"group": 2}), FLAT, ("Relu", ["<"], {})
    ),
    "bias_map": chain(CONV, ("Add", ["<", "map4"], {}), ("Mul", ["<", "map4"], {}), FLAT, GEMM4),
    "flat_scale": chain(("Sub", ["<", "map"], {}), FLAT, GEMM, ("Mul", ["<", "b"], {}), ("Sub", ["<", "scalar"], {})),
    **{f"reshape_{i}": chain(("Reshape", ["<", f"to{i}"], {}), GEMM) for i in range(4)},
    "reshape_same": chain(("Reshape", ["<", "same"], {}), FLAT, ("Reshape", ["<", "to1"], {}), GEMM),
    "reshape_from_shape": [
        Make("Relu", ["x"], ["v"]),
        *(Make(kind, inputs, [out], **attributes) for kind, inputs, out, attributes in SHAPE_OF),
        *(Make("Reshape", ["v", "s2"], ["f"]), Make("Gemm", ["f", "w", "b"], ["y"], transB=1)),
    ],
    "batch_norm": chain(CONV, NORM, ("Relu", ["<"], {}), NORM, ("Relu", ["<"], {}), NORM, FLAT, GEMM4),
    "batch_norm_flat": chain(FLAT, GEMM, ("BatchNormalization", ["<", "s", "b", "s", "sv"], {})),
    "dropout": chain(("Identity", ["<"], {}), ("Dropout", ["<", "half", "no"], {}), FLAT, GEMM),
    "pool": chain(pool(3, 1, pads=[1, 0, 1, 0], count_include_pad=1), FLAT, GEMM),
    "pool_strided": chain(pool(2, 2, strides=[2, 3]), FLAT),
    "pad": chain(("Pad", ["<", "zeros"], {}), ("Pad", ["<", "pads"], {}), pool(3, 3), FLAT),
    "dilated": chain(("Conv", ["<", "k"], {"dilations": [2, 1], "strides": [1, 2], "auto_pad": "VALID"}), FLAT),
    "transpose": chain(("Transpose", ["<"], {"perm": [0, 1, 2, 3]}), FLAT, GEMM),
    "branches": [
        *(Make("Conv", ["x", "k", "kb"], ["a"], pads=[1, 1, 1, 1]), Make("Relu", ["a"], ["r"])),
        *(Make("Add", ["a", "r"], ["sum"]), Make("Flatten", ["sum"], ["f"], axis=-3)),
        *(Make("Gemm", ["f", "w4"], ["y"], transB=1), Make("Softmax", ["a"], ["left over"])),
    ],
}


@pytest.mark.parametrize("name", FILES)
def test_file_agrees_with_onnxruntime(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "net.onnx", FILES[name])
    x = torch.rand(3, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    assert_close(load_onnx(path)(x), runtime(path, x))


@pytest.mark.parametrize("batch", [1, "batch"])
@pytest.mark.parametrize("inline", [False, True])
def test_opset_9(batch: Any, inline: bool, tmp_path: Path) -> None:
    """As exporters wrote in 2019: shapes computed, constants as nodes, weights also listed as inputs."""
    index = onnx.numpy_helper.from_array(np.array(0), "index")
    minus = onnx.numpy_helper.from_array(np.array(-1), "minus")
    nodes = [
        *chain(("Sub", ["<", "mean"], {}), ("Div", ["<", "std"], {}), CONV, NORM, ("Dropout", ["<"], {"ratio": 0.3}))[
            :-1
        ],
        *(Make("Dropout", ["v3"], ["v"]), Make("Shape", ["v"], ["s0"])),
        *(Make("Constant", [], ["i"], value=index), Make("Constant", [], ["m"], value=minus)),
        *(Make("Gather", ["s0", "i"], ["s1"], axis=0), Make("Unsqueeze", ["s1"], ["s2"], axes=[0])),
        *(Make("Unsqueeze", ["m"], ["s3"], axes=[0]), Make("Concat", ["s2", "s3"], ["s4"], axis=0)),
        *(Make("Reshape", ["v", "s4"], ["f"]), Make("Gemm", ["f", "w4", "b"], ["y"], transB=1)),
    ]
    if inline:
        values = [onnx.numpy_helper.from_array(CONSTANTS[name], name) for name in ("mean", "w4")]
        nodes = [Make("Constant", [], [value.name], value=value) for value in values] + nodes
    path = write(tmp_path / "net.onnx", nodes, (batch, 2, 6, 6), opset=9)
    x = torch.rand(3, 2, 6, 6)
    loaded = load_onnx(path)
    assert_close(loaded(x), runtime(path, x))
    assert [type(n.op).__name__ for n in loaded.nodes] == ["Conv", "Flatten", "Linear"]


def test_normalisation_is_put_in_front(tmp_path: Path) -> None:
    nodes = chain(CONV, FLAT, GEMM4)
    path, x = write(tmp_path / "net.onnx", nodes), torch.rand(3, 2, 6, 6)
    mean, std = torch.tensor([0.1, 0.3]).view(2, 1, 1), torch.tensor([0.2, 0.4]).view(2, 1, 1)
    assert_close(load_onnx(path, mean=(0.1, 0.3), std=(0.2, 0.4))(x), load_onnx(path)((x - mean) / std))
    assert_close(load_onnx(path, mean=(0.1,))(x), load_onnx(path)(x - 0.1))


def test_flat_input_becomes_images(tmp_path: Path) -> None:
    path = write(tmp_path / "net.onnx", chain(GEMM), (1, 72))
    x = torch.rand(3, 2, 6, 6)
    expected = load_onnx(path)((x.flatten(1) - 0.3) / 0.5)
    assert_close(load_onnx(path, (2, 6, 6), mean=(0.3,), std=(0.5,))(x), expected)
    assert_close(load_onnx(path, mean=(0.3,), std=(0.5,))(x.flatten(1)), expected)


def test_open_shape_is_given(tmp_path: Path) -> None:
    path = write(tmp_path / "net.onnx", chain(FLAT, GEMM), ("n", 2, "h", "w"))
    assert load_onnx(path, (2, 6, 6)).classes == 3
    with pytest.raises(CitrusError, match="leaves the shape of its input 'x' open"):
        load_onnx(path)
    with pytest.raises(CitrusError, match="does not fit the input 'x'"):
        load_onnx(path, (1, 6, 12))


def test_one_channel_moved_behind_pixels_is_no_move(tmp_path: Path) -> None:
    nodes = chain(("Transpose", ["<"], {"perm": [0, 2, 3, 1]}), ("Reshape", ["<", "to2"], {}), GEMM)
    path, x = write(tmp_path / "net.onnx", nodes, (1, 1, 8, 9)), torch.rand(2, 1, 8, 9)
    assert_close(load_onnx(path)(x), runtime(path, x))


def test_float64_weights_become_float32(tmp_path: Path) -> None:
    path = write(tmp_path / "net.onnx", chain(FLAT, ("Gemm", ["<", "double"], {"transB": 1})))
    loaded, x = load_onnx(path), torch.rand(2, 2, 6, 6)
    assert loaded(x).dtype == torch.float32
    assert_close(loaded(x), (x.flatten(1).double() @ torch.from_numpy(CONSTANTS["double"]).T).float())


MOVED = [
    *(Make("Flatten", ["x"], ["v"]), Make("Shape", ["v"], ["s0"]), Make("Gather", ["s0", "zero"], ["s1"])),
    Make("Concat", ["minus", "s1"], ["s2"], axis=0),
]
ERRORS: dict[str, tuple[list[Any], str]] = {
    "softmax": (
        chain(FLAT, GEMM, ("Softmax", ["<"], {})),
        r"Node 2, Softmax 'n2', is not supported; supported: Conv, ",
    ),
    "made up": (chain(("Foo", ["<"], {})), r"Node 0, Foo 'n0', is not supported"),
    "pads": (chain(("Conv", ["<", "k"], {"pads": [0, 0, 1, 1]}), FLAT), r"Node 0, Conv 'n0', has pads \[0, 0, 1, 1\]"),
    "auto_pad": (chain(("Conv", ["<", "k"], {"auto_pad": "SAME_UPPER"}), FLAT), "auto_pad SAME_UPPER"),
    "reshape": (chain(("Reshape", ["<", "to4"], {})), r"\(batch, 2, 6, 6\) into \[1, 2, 36\], which is no flattening"),
    "no batch": (chain(("Reshape", ["<", "to5"], {})), r"into \[72\]"),
    "batch of 3": (chain(("Reshape", ["<", "whole"], {})), r"into \[3, 72\]"),
    "flatten": (chain(("Flatten", ["<"], {"axis": 2})), "flattens from axis 2"),
    "transpose": (chain(("Transpose", ["<"], {"perm": [0, 2, 3, 1]}), FLAT, GEMM), "permutes the axes"),
    "nan": (chain(FLAT, ("Gemm", ["<", "bad"], {"transB": 1})), "Node 1, Gemm 'n1', has weights that are NaN or inf"),
    "ints": (chain(FLAT, ("Gemm", ["<", "ints"], {"transB": 1})), "weights 'ints' of type int32"),
    "zero": (chain(("Div", ["<", "none"], {}), FLAT, GEMM), "Node 0, Div 'n0', divides by zero"),
    "division": (chain(("Div", ["scalar", "<"], {}), FLAT, GEMM), "divides a constant by a computed value"),
    "product": (chain(("Mul", ["<", "<"], {}), FLAT, GEMM), "joins two branches"),
    "computed": (chain(FLAT, ("Gemm", ["<", "<"], {})), "Node 1, Gemm 'n1', needs a constant"),
    "too wide": (chain(FLAT, GEMM4), r"Node 1, Gemm 'n1', cannot take an input of shape \(72,\)"),
    "not flat": (chain(("MatMul", ["<", "wt"], {})), "not a flat vector by a constant matrix"),
    "image": (chain(CONV), r"must end in a vector of class scores, not in shape \(4, 6, 6\)"),
    "pad": (chain(("Pad", ["<", "pads", "half"], {}), FLAT), r"pads by \[0, 0, 2, 1, 0, 0, 2, 1\], but only zeros"),
    "ceil": (chain(pool(4, 4, ceil_mode=1), FLAT), "uses ceil_mode"),
    "pool": (chain(pool(3, 3, pads=[1] * 4), FLAT), "without count_include_pad"),
    "broadcast": (
        chain(("Add", ["<", "b"], {}), FLAT, GEMM),
        r"Node 0, Add 'n0', cannot take an input of shape \(2, 6, 6\)",
    ),
    "channels": (chain(("BatchNormalization", ["<", "gamma", "kb", "kb", "var"], {}), FLAT), "cannot take an input of"),
    "batch moved": (
        [*MOVED, Make("Reshape", ["v", "s2"], ["y"])],
        "Node 4, Reshape 'y', puts the batch axis elsewhere",
    ),
    "nothing": (chain(FLAT, ("Gemm", ["<", "lost"], {})), "not a valid ONNX file"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_unsupported(name: str, tmp_path: Path) -> None:
    nodes, message = ERRORS[name]
    path = write(tmp_path / "net.onnx", nodes)
    with pytest.raises(CitrusError, match=message):
        load_onnx(path)


WIDE = ["wide", "high"]
HUGE: dict[str, tuple[list[Any], tuple[Any, ...]]] = {
    "padding of a convolution": (
        [Make("Conv", ["x", "kernel"], ["y"], pads=[30_000] * 4)], (1, 2, 6, 6)
    ),
    "padding": ([Make("Pad", ["x", "pads"], ["y"])], (1, 2, 6, 6)),
    "a window": (
        [Make("AveragePool", ["x"], ["y"], kernel_shape=[40_000] * 2, pads=[20_000] * 4, count_include_pad=1)],
        (1, 2, 6, 6)
    ),
    "images": ([Make("Flatten", ["x"], ["y"])], (1, 2, 1 << 20, 1 << 20)),
    "images of negative size": ([Make("Flatten", ["x"], ["y"])], (1, 2, -6, -6)),
    "constants joined again and again": (
        [Make("Concat", [f"c{i}" if i else "long"] * 2, [f"c{i + 1}"], axis=0) for i in range(40)]
        + [Make("Add", ["x", "c40"], ["y"])], (1, 2, 6, 6)
    ),
    "constants of two axes": ([Make("Add", WIDE, ["c"]), Make("Add", ["x", "c"], ["y"])], (1, 2, 6, 6)),
    "products of constants": ([Make("MatMul", ["high", "wide"], ["c"]), Make("Add", ["x", "c"], ["y"])], (1, 2, 6, 6)),
    "padding of a constant": ([Make("Pad", ["long", "far"], ["c"]), Make("Add", ["x", "c"], ["y"])], (1, 2, 6, 6)),
    "a sparse constant": (
        [
            Make("Constant", [], ["c"], sparse_value=onnx.helper.make_sparse_tensor(
                onnx.numpy_helper.from_array(np.ones(1, np.float32), "v"),
                onnx.numpy_helper.from_array(np.zeros(1, np.int64), "i"), [1 << 40])),
            Make("Add", ["x", "c"], ["y"]),
        ],
        (1, 2, 6, 6),
    ),
}  # fmt: skip


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", HUGE)
def test_small_files_that_claim_any_size_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by `make fuzz`."""
    long = np.ones(100_000, np.float32)
    held = {"wide": long[None], "high": long[:, None], "long": long, "far": np.array([0, 1 << 40])}
    held |= {"kernel": weights(3, 2, 3, 3), "pads": np.array([0, 0, 30_000, 30_000] * 2)}
    for key, array in held.items():
        monkeypatch.setitem(CONSTANTS, key, array)
    nodes, shape = HUGE[name]
    with little_memory(), pytest.raises(CitrusError) as error:
        load_onnx(write(tmp_path / "net.onnx", nodes, shape))
    assert "allocate" not in str(error.value)  # refused before memory is asked for
