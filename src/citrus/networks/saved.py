"""Networks as files: those that training saved, those of the zoo, and ONNX files, all by one function.

network = load_network("cifar10-2-255")                                # a name of citrus.networks.zoo
network = load_network("runs/quickstart")                              # a run folder, or its model.safetensors
network = load_network("net.onnx", mean=(0.1307,), std=(0.3081,))
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from citrus.errors import CitrusError, suggest
from citrus.files import load_tensors, save_tensors
from citrus.networks.architectures import build
from citrus.networks.operations import Graph
from citrus.networks.zoo import cards

MODEL = "model.safetensors"
"""The network of a run folder."""
LARGEST = 1 << 20  # channels, height, width or classes


def load_network(
    name: str | Path,
    input_shape: tuple[int, ...] | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> nn.Module | Graph:
    """A trained network by its name in the zoo, its run folder, or its file (.safetensors of Citrus, or .onnx).

    `input_shape`, `mean` and `std` are for ONNX files: see `citrus.load_onnx`.
    """
    path = Path(name)
    if path.suffix == ".onnx":
        from citrus.networks.onnx import load_onnx

        return load_onnx(path, input_shape, mean, std)
    if mean or std:
        raise CitrusError("mean and std are for ONNX files; other networks know their normalisation.")
    tensors, made = read_weights(weights_file(path))
    network = build(**made)
    network.load_state_dict(tensors)
    return network.eval()


def weights_file(path: Path) -> Path:
    """The file of a network that is named by its run folder, by itself, or by its name in the zoo."""
    if path.is_dir():
        if not (path / MODEL).exists():
            raise CitrusError(f"{path} has no finished network yet: `citrus train --resume --out {path}`.")
        return path / MODEL
    if path.exists():
        return path
    if str(path) not in cards():
        raise CitrusError(
            f"There is no network {str(path)!r}: give a run folder, an .onnx or .safetensors file, or a name of the "
            f"zoo; {suggest(str(path), cards())}"
        )
    return cards()[str(path)].path


def save_network(path: Path, network: nn.Module, made: dict[str, Any], about: dict[str, Any]) -> None:
    """Write a network that `load_network` can read: `made` holds the arguments of `build` by name."""
    save_tensors(path, dict(network.state_dict()), {"network": made, **about})


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights in a file, and the arguments of `build` for the network that they belong to."""
    tensors, header = load_tensors(path)
    made = header.get("network")
    if not isinstance(made, dict) or made.keys() != {"name", "shape", "classes", "mean", "std"}:
        raise CitrusError(f"{path} holds no network of Citrus.")
    name, shape, classes, mean, std = (made[key] for key in ("name", "shape", "classes", "mean", "std"))
    sizes = all(isinstance(v, list) for v in (shape, mean, std)) and len(shape) == 3 and isinstance(name, str)
    counts = sizes and all(type(n) is int and 0 < n < LARGEST for n in (*shape, classes))
    if not counts or not all(type(x) in (int, float) and abs(x) < 1e30 for x in (*mean, *std)):
        raise CitrusError(f"{path} holds no network of Citrus: it describes one that cannot be.")
    _check_fit(path, tensors, made)
    return tensors, made


def _check_fit(path: Path, tensors: dict[str, Tensor], made: dict[str, Any]) -> None:
    """Whether the weights are those of the network; it is not made before that, since it may claim any size."""
    with torch.device("meta"):
        wanted = build(**made).state_dict()
    for name in sorted({*wanted, *tensors}):
        one, other = wanted.get(name), tensors.get(name)
        if (
            one is None
            or other is None
            or (one.shape, one.is_floating_point())
            != (
                other.shape,
                other.is_floating_point(),
            )
        ):
            raise CitrusError(f"{path} is damaged: its weights {name!r} are not those of the network it describes.")
