"""The network that a command is about: a run folder, a network of the zoo, or a file."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from citrus.data import Dataset, load
from citrus.errors import CitrusError
from citrus.inputs import parse_eps, parse_number
from citrus.networks import Graph
from citrus.networks.saved import load_network, weights_file
from citrus.networks.zoo import cards
from citrus.training import read_config

DEMO = {"network": "mnist-0.1", "data": "demo"}
"""`citrus certify demo`: a certified network at once, without training or data."""


@dataclass(frozen=True)
class Target:
    """A network by name, and what is known of it without being told."""

    network: str
    folder: Path
    """Where results about it go."""
    data: str | None = None
    eps: float | None = None
    validation: int = 0
    """Images held out of its training set."""
    group_size: int = 5
    clip: bool = False

    def load(self, shape: tuple[int, ...], mean: str | None = None, std: str | None = None) -> nn.Module | Graph:
        """The network for images of this shape; `mean` and `std` are flags for ONNX files."""
        return load_network(self.network, shape, numbers(mean), numbers(std))

    def test_set(self, data: str | None, data_dir: str | None, device: torch.device | str = "cpu") -> Dataset:
        """The test images of a data set, by default of the target's own."""
        name = data or self.data
        if name is None:
            raise CitrusError(f"{self.network} does not say what images it is for: add --data NAME.")
        held_out = self.validation if name == self.data else 0
        return load(name, data_dir=data_dir, validation=held_out).test.to(device)

    def radius(self, eps: str | None) -> float:
        """The radius of a flag, by default the target's own."""
        if eps is None and self.eps is None:
            raise CitrusError(f"{self.network} does not say what radius it is for: add --eps E, such as --eps 8/255.")
        return parse_eps(eps if eps is not None else self.eps or 0.0)


def find_target(name: str | None, command: str) -> Target:
    """What a word on the command line names; a folder of that name comes first."""
    if not name:
        raise CitrusError(
            f"Which network? citrus {command} RUN_FOLDER, citrus {command} NET.onnx --data mnist --eps 0.1, or one of "
            f"the zoo: {', '.join(['demo', *cards()])}."
        )
    path = Path(name)
    if path.is_dir():
        config = read_config(path)
        own = Target(name, path, config.data, config.eps)
        return replace(own, validation=config.validation, group_size=config.group_size, clip=config.clip)
    folder = Path("runs") / path.stem
    if name == "demo":
        return replace(find_target(DEMO["network"], command), folder=folder, data=DEMO["data"])
    if path.suffix != ".onnx" and weights_file(path) != path:
        return Target(name, Path("runs") / name, data=cards()[name].data, eps=cards()[name].eps)
    return Target(name, folder)


def numbers(text: str | None) -> tuple[float, ...] | None:
    """0.1 or 0.49,0.48,0.45 as numbers."""
    return None if text is None else tuple(parse_number(part) for part in text.split(","))
