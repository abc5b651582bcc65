"""What a command is told: its flags, and the network that it is about: a run folder, one of the zoo, or a file."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, TypeVar

from torch import nn

from citrus.data import Dataset, Splits, load
from citrus.errors import CitrusError, suggest
from citrus.inputs import parse_eps, parse_number
from citrus.networks import Graph
from citrus.networks.saved import load_network, weights_file
from citrus.networks.zoo import cards
from citrus.training import read_config

T = TypeVar("T")

DEMO, DEMO_EPS = "mnist-0.1", 0.13
"""The demonstration's network, and a radius beyond its own at which groups make a difference."""
"""`citrus certify demo`: this network of the zoo on images of the package, so that nothing need be fetched."""


def parse_flags(kind: type[T], command: str, arguments: list[str], extra: Sequence[str] = ()) -> tuple[T, list[str]]:
    """The flags of `kind`, a dataclass, among the arguments (by tyro), and the rest, whose names must be in `extra`."""
    import tyro

    names = [*(f.name for f in fields(kind)), *extra]  # type: ignore[arg-type]
    known = ["--" + name.replace("_", "-") for name in names]
    for flag in (word.split("=")[0] for word in arguments if word.startswith("--")):
        if flag.replace("_", "-") not in ["--help", *known]:
            raise CitrusError(f"Unknown flag {flag} of `citrus {command}`: {suggest(flag, known)}")
    result, rest = tyro.cli(kind, prog=f"citrus {command}", args=arguments, return_unknown_args=True)
    if rest and not extra:
        raise CitrusError(f"`citrus {command}` does not understand {' '.join(rest)!r}; see `citrus {command} --help`.")
    return result, rest


def pairs(words: list[str]) -> dict[str, str]:
    """`--name value`, `--name=value` and `--name several values` (joined by commas) as a dictionary."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name] = [value] if equals else []
        elif not name:
            raise CitrusError(f"Expected a flag such as --epochs before {word!r}.")
        else:
            found[name].append(word)
    for name, values in found.items():
        if not values:
            raise CitrusError(f"--{name} needs a value.")
    return {name: ",".join(values) for name, values in found.items()}


def take_word(arguments: list[str]) -> tuple[str | None, list[str]]:
    """The leading word that is no flag, if there is one, and the rest."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    return None, arguments


@dataclass
class NetworkFlags:
    """What every command takes that is about a network and test images."""

    data: str | None = None
    """Data set of the test images; by default the network's own."""
    eps: str | None = None
    """Radius in pixel units, such as 0.1 or 8/255; by default the network's own."""
    group_size: str | None = None
    """Images that share one perturbation: all of them (the default) or a number; certify takes several: 1,5,20,all."""
    data_dir: str | None = None
    """Folder of the data sets; else CITRUS_DATA, else the user cache."""
    mean: str | None = None
    """For an ONNX file without normalisation: mean of each channel, such as 0.1307 or 0.49,0.48,0.45."""
    std: str | None = None
    """For an ONNX file without normalisation: standard deviation of each channel."""


@dataclass(frozen=True)
class Target:
    """A network by name, what is known of it, and the flags that say more or something else."""

    flags: NetworkFlags
    network: str
    folder: Path
    """Where results about it go."""
    own_data: str | None = None
    own_eps: float | None = None
    clip: bool = False
    own_sizes: str = "all"

    @property
    def eps(self) -> float:
        if self.flags.eps is not None:
            return parse_eps(self.flags.eps)
        if self.own_eps is None:
            raise CitrusError(f"{self.network} does not say what radius it is for: add --eps E, such as --eps 8/255.")
        return self.own_eps

    @property
    def sizes(self) -> tuple[int | Literal["all"], ...]:
        """Images that share one perturbation."""
        return parse_sizes(self.flags.group_size or self.own_sizes)

    def group_size(self, images: int) -> int:
        """The only one, of so many images."""
        if self.flags.group_size and len(self.sizes) > 1:
            raise CitrusError(f"One group size is needed here, got {self.flags.group_size}.")
        return images if self.sizes[-1] == "all" else self.sizes[-1]

    def test_set(self) -> Dataset:
        return self._data().test

    def training_set(self) -> Dataset:
        return self._data().train

    def _data(self) -> Splits:
        name = self.flags.data or self.own_data
        if name is None:
            raise CitrusError(f"{self.network} does not say what images it is for: add --data NAME.")
        return load(name, data_dir=self.flags.data_dir)

    def used(self, test: Dataset) -> str:
        """What these images were used for before, as far as the network says; nothing if it may be judged by them."""
        if self.network in cards() and cards()[self.network].chosen_by:
            return cards()[self.network].chosen_by
        if not (self.folder / "config.json").exists():
            return ""
        train = load(read_config(self.folder).data, data_dir=self.flags.data_dir).train
        return seen_in_training(train, test, self.network)

    def load(self, shape: tuple[int, ...]) -> nn.Module | Graph:
        """The network for images of this shape."""
        return load_network(self.network, shape, numbers(self.flags.mean), numbers(self.flags.std))


def seen_in_training(train: Dataset, test: Dataset, network: str) -> str:
    """What a network's training had to do with test images; nothing, as it should be."""
    again = test.also_in(train)
    return f"{again} of these images are in the training set of {network}" if again else ""


def find_target(name: str | None, command: str, flags: NetworkFlags) -> Target:
    """What a word on the command line names; a folder of that name comes first."""
    if not name:
        raise CitrusError(
            f"Which network? citrus {command} RUN_FOLDER, citrus {command} NET.onnx --data mnist --eps 0.1, or one of "
            f"the zoo: {', '.join(['demo', *cards()])}."
        )
    path = Path(name)
    if path.is_dir():
        config = read_config(path)
        return Target(flags, name, path, config.data, config.eps, config.clip)
    if name == "demo":
        return Target(flags, DEMO, Path("runs/demo"), "demo", DEMO_EPS, own_sizes="1,5,20,all")
    if path.suffix != ".onnx" and weights_file(path) != path:
        return Target(flags, name, Path("runs") / name, cards()[name].data, cards()[name].eps)
    return Target(flags, name, Path("runs") / path.stem)


def parse_sizes(text: str) -> tuple[int | Literal["all"], ...]:
    """1,5,20,all as numbers and the word."""
    sizes: list[int | Literal["all"]] = []
    for word in text.split(","):
        if word.strip() == "all":
            sizes.append("all")
        elif word.strip().isdigit() and int(word) > 0:
            sizes.append(int(word))
        else:
            raise CitrusError(f"A group size is a number from 1 on, or all, got {word!r} in --group-size {text}.")
    return tuple(dict.fromkeys(sizes))


def numbers(text: str | None) -> tuple[float, ...] | None:
    """0.1 or 0.49,0.48,0.45 as numbers."""
    return None if text is None else tuple(parse_number(part) for part in text.split(","))
