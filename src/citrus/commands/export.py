"""`citrus export NETWORK --onnx FILE` and `--vnnlib FILE`: hand a network and its property to other tools."""

from dataclasses import dataclass

from citrus.commands.target import NetworkFlags, find_target, parse_flags, take_word
from citrus.data import as_float
from citrus.errors import CitrusError
from citrus.networks.onnx import save_onnx
from citrus.networks.vnnlib import write_vnnlib


@dataclass
class ExportFlags(NetworkFlags):
    """Export a network as ONNX, or the property of one group as VNN-LIB 2.0."""

    onnx: str | None = None
    """Write the network here."""
    vnnlib: str | None = None
    """Write the property of one group here: `survivors` images survive every shared perturbation."""
    group_size: str = "5"
    """Images of the group."""
    group: int = 0
    """Number of the group, in the order of the test set."""
    survivors: int | None = None
    """How many of them survive; by default all."""


def run(arguments: list[str]) -> None:
    name, rest = take_word(arguments)
    flags, _ = parse_flags(ExportFlags, "export", rest)
    if not name or not (flags.onnx or flags.vnnlib):
        raise CitrusError("What to export, and where to? citrus export RUN --onnx net.onnx --vnnlib group.vnnlib")
    target = find_target(name, "export", flags)
    test = target.test_set()
    if flags.onnx:
        save_onnx(target.load(test.shape), flags.onnx, test.shape)
        print(f"network   {flags.onnx}")
    if flags.vnnlib:
        size = target.group_size(len(test))
        part = slice(flags.group * size, (flags.group + 1) * size)
        if size < 1 or flags.group < 0 or part.start >= len(test):
            raise CitrusError(f"There is no group {flags.group} of {size} in {len(test)} test images.")
        images, labels = as_float(test.images[part]), test.labels[part]
        survivors = len(labels) if flags.survivors is None else flags.survivors
        write_vnnlib(flags.vnnlib, images, labels, target.eps, len(test.classes), survivors)
        print(f"property  {flags.vnnlib}: at least {survivors} of {len(labels)} images survive (unsat if so)")
