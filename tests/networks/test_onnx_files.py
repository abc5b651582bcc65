"""A network written and read again is the same; damaged, foreign and missing files; the public networks."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from citrus.errors import CitrusError
from citrus.networks import Graph, Normalize, build, graph
from citrus.networks.onnx import load_onnx, save_onnx

onnx = pytest.importorskip("onnx", reason="onnx is not installed (pip install 'citrus-uap[onnx]')")

SHAPE = (1, 12, 12)


def assert_close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = Normalize((0.5, 0.4), (0.2, 0.3))
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.inner = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Sequential(nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4 * 36, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(self.norm(x)))
        return self.head(x + self.inner(x))


NORMALIZE = ((0.4, 0.5), (0.2, 0.3))
MODULES = {
    "cnn7": lambda: build("cnn7", (2, 12, 12), 4, *NORMALIZE),
    "convsmall": lambda: build("convsmall", (2, 12, 12), 4, *NORMALIZE),
    "residual": Residual,
    "grouped": lambda: nn.Sequential(
        Normalize(*NORMALIZE), nn.Conv2d(2, 4, (3, 2), (2, 1), (1, 2), (2, 1), groups=2), nn.Flatten(), nn.LazyLinear(3)
    ),
    "pool": lambda: nn.Sequential(nn.AvgPool2d(3, 2, 1), Normalize(*NORMALIZE), nn.Flatten(), nn.LazyLinear(3)),
    "scale": lambda: nn.Sequential(nn.ReLU(), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)),
    "flat": lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3)),
}


@pytest.mark.parametrize("name", MODULES)
def test_module_to_file_to_graph(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = MODULES[name](), torch.rand(5, 2, 12, 12)
    module.train()(x)  # makes lazy layers, and statistics that are not 0 and 1
    module.eval()
    save_onnx(module, tmp_path / "net.onnx", (2, 12, 12))
    loaded = load_onnx(tmp_path / "net.onnx")
    with torch.no_grad():
        expected = module(x)
    assert_close(loaded(x), expected)
    made = graph(module, (2, 12, 12))
    assert [(type(n.op), n.inputs, n.shape, n.name) for n in loaded.nodes] == [
        (type(n.op), n.inputs, n.shape, n.name) for n in made.nodes
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"), providers=["CPUExecutionProvider"])
    for batch in (1, 5):  # the export runs on any batch as well
        (scores,) = session.run(None, {"input": x[:batch].numpy()})
        assert_close(torch.from_numpy(scores), expected[:batch])


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return build("mlp", SHAPE, 3, (0.5,), (0.2,)).eval()


@pytest.fixture
def path(network: nn.Module, tmp_path: Path) -> Path:
    save_onnx(network, tmp_path / "net.onnx", SHAPE)
    return tmp_path / "net.onnx"


def test_export_is_an_ordinary_file(path: Path) -> None:
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert model.opset_import[0].version >= 13
    (batch, *_), (again, classes) = (v.type.tensor_type.shape.dim for v in (*model.graph.input, *model.graph.output))
    assert batch.dim_param == again.dim_param == "batch"
    assert classes.dim_value == 3


def test_export_again_is_the_same(path: Path, tmp_path: Path) -> None:
    loaded, x = load_onnx(path), torch.rand(2, *SHAPE)
    save_onnx(loaded, tmp_path / "again.onnx")
    assert torch.equal(load_onnx(tmp_path / "again.onnx")(x), loaded(x))
    assert (tmp_path / "again.onnx").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("content", [b"", b"this is no network", bytes(range(256))])
def test_not_an_onnx_file(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(content)
    with pytest.raises(CitrusError, match=r"net.onnx (is not|cannot be read as) an ONNX file"):
        load_onnx(tmp_path / "net.onnx")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_truncated(share: float, path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(CitrusError, match=r"net.onnx (is not|cannot be read as) an"):
        load_onnx(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CitrusError, match="There is no ONNX file"):
        load_onnx(tmp_path / "none.onnx")


def test_external_weights(path: Path, tmp_path: Path) -> None:
    x, expected = torch.rand(2, *SHAPE), load_onnx(path)
    onnx.save(onnx.load(path), tmp_path / "big.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    assert torch.equal(load_onnx(tmp_path / "big.onnx")(x), expected(x))
    (tmp_path / "w.bin").unlink()
    with pytest.raises(CitrusError, match=r"big.onnx cannot be read as an ONNX file \(.*w.bin"):
        load_onnx(tmp_path / "big.onnx")


def changed(path: Path, change: Any) -> Path:
    model = onnx.load(path)
    change(model)
    onnx.save(model, path)
    return path


def test_weights_of_the_wrong_size(path: Path) -> None:
    def change(model: Any) -> None:
        model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-4]

    with pytest.raises(CitrusError, match="is not a valid ONNX file"):
        load_onnx(changed(path, change))


def test_two_inputs_or_outputs(path: Path) -> None:
    second = onnx.helper.make_tensor_value_info("mask", onnx.TensorProto.FLOAT, [1])
    with pytest.raises(CitrusError, match=r"2 inputs and 1 outputs.*'input', 'mask', 'output'"):
        load_onnx(changed(path, lambda model: model.graph.input.append(second)))


def test_old_opset(path: Path) -> None:
    def change(model: Any) -> None:
        model.opset_import[0].version = 6

    with pytest.raises(CitrusError, match="opset 6; opset 7 or later"):
        load_onnx(changed(path, change))


def test_input_of_other_axes(path: Path) -> None:
    with pytest.raises(CitrusError, match=r"'input' of .* has 3 axes"):
        load_onnx(changed(path, lambda model: model.graph.input[0].type.tensor_type.shape.dim.pop()))


def test_channels_of_mean(path: Path) -> None:
    with pytest.raises(CitrusError, match="mean and std have 3 channels"):
        load_onnx(path, mean=(0.1, 0.2, 0.3))
    with pytest.raises(CitrusError, match="one positive std per mean"):
        load_onnx(path, mean=(0.1, 0.2, 0.3), std=(0.1,))


def test_export_mistakes(network: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(CitrusError, match=r"give input_shape=\(C, H, W\)"):
        save_onnx(network, tmp_path / "net.onnx")
    with pytest.raises(CitrusError, match=r"call \.eval"):
        save_onnx(network.train(), tmp_path / "net.onnx", SHAPE)
    plain: Graph = graph(network.eval(), SHAPE)
    with pytest.raises(CitrusError, match="takes images of shape"):
        save_onnx(plain, tmp_path / "net.onnx", (1, 9, 16))
    (tmp_path / "folder").mkdir()
    with pytest.raises(CitrusError, match="Cannot write"):
        save_onnx(plain, tmp_path / "folder")
    with torch.no_grad():
        network[-1].weight[0, 0] = float("nan")
    with pytest.raises(CitrusError, match="cannot be exported: operation 5, '6', has weights that are NaN"):
        save_onnx(network, tmp_path / "net.onnx", SHAPE)
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_onnx_is_optional(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(CitrusError, match=r"pip install 'citrus-uap\[onnx\]'"):
        load_onnx(tmp_path / "net.onnx")
    code = "import sys, citrus, citrus.networks.onnx, citrus.networks.vnnlib; sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


PUBLIC = (
    *("mnistconvSmallRELUDiffAI", "mnistconvSmallRELU__PGDK", "mnist_0.1"),
    *("cifar10convSmallRELUDiffAI", "convSmallRELU__Point"),
)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_networks(name: str) -> None:
    """Networks that others trained; docs say where to get them."""
    folder = os.environ.get("CITRUS_NETS")
    if folder is None:
        pytest.skip("CITRUS_NETS does not name a folder with the public networks")
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    file = str(Path(folder) / f"{name}.onnx")
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    loaded = load_onnx(file)
    x = torch.rand(20, *loaded.input_shape, generator=torch.Generator().manual_seed(0))
    value = session.get_inputs()[0].name
    expected = np.concatenate([session.run(None, {value: image[None].numpy()})[0] for image in x])
    torch.testing.assert_close(loaded(x), torch.from_numpy(expected), rtol=1e-5, atol=3e-5)
    assert [type(n.op).__name__ for n in loaded.nodes].count("Scale") == 0


def renamed(model: Any) -> None:
    """The output is the input, and no node is needed."""
    model.graph.output[0].name = model.graph.input[0].name


def without_type(model: Any) -> None:
    model.graph.node[0].attribute[0].ClearField("type")


@pytest.mark.parametrize("change", [renamed, without_type])
def test_files_that_the_format_does_not_allow_are_refused(change: Callable[[Any], None], path: Path) -> None:
    """Found by `make fuzz`."""
    with pytest.raises(CitrusError):
        load_onnx(changed(path, change))


@pytest.mark.parametrize("place", ["../secret", "/etc/passwd", "link"])
def test_weights_outside_of_the_folder_are_not_read(place: str, path: Path) -> None:
    (path.parent.parent / "secret").write_bytes(bytes(10_000))
    (path.parent / "link").symlink_to(path.parent.parent / "secret")

    def outside(model: Any) -> None:
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", place

    with pytest.raises(CitrusError, match="cannot be read as an ONNX file"):
        load_onnx(changed(path, outside))
