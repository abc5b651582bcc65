"""`citrus export RUN --onnx FILE` and `--vnnlib FILE`: hand a network and its property to other tools."""

from dataclasses import dataclass
from pathlib import Path

from citrus.commands.check import load_graph
from citrus.commands.flags import parse_flags, take_word
from citrus.data import as_float, load
from citrus.errors import CitrusError
from citrus.inputs import parse_eps
from citrus.networks.onnx import save_onnx
from citrus.networks.vnnlib import write_vnnlib
from citrus.training import read_config


@dataclass
class ExportFlags:
    """Export the network of a run as ONNX, or the property of one group as VNN-LIB 2.0."""

    onnx: str | None = None
    """Write the network here."""
    vnnlib: str | None = None
    """Write the property of one group here: `survivors` images survive every shared perturbation."""
    group: int = 0
    """Number of the group, in the order of the test set."""
    group_size: int | None = None
    """Images per group; by default as in the run."""
    survivors: int | None = None
    """How many of them survive; by default all."""
    eps: str | None = None
    """Radius in pixel units; by default the run's own."""
    data_dir: str | None = None
    """Folder of the data sets; else CITRUS_DATA, else the user cache."""


def run(arguments: list[str]) -> int:
    folder, rest = take_word(arguments)
    flags, _ = parse_flags(ExportFlags, "export", rest)
    if not folder or not (flags.onnx or flags.vnnlib):
        raise CitrusError("What to export, and where to? citrus export RUN --onnx net.onnx --vnnlib group.vnnlib")
    config = read_config(Path(folder))
    test = load(config.data, data_dir=flags.data_dir, validation=config.validation).test
    if flags.onnx:
        save_onnx(load_graph(folder, test.shape, None, None), flags.onnx)
        print(f"network   {flags.onnx}")
    if flags.vnnlib:
        size = config.group_size if flags.group_size is None else flags.group_size
        part = slice(flags.group * size, (flags.group + 1) * size)
        if size < 1 or flags.group < 0 or part.start >= len(test):
            raise CitrusError(f"There is no group {flags.group} of {size} in {len(test)} test images.")
        eps = config.eps if flags.eps is None else parse_eps(flags.eps)
        images, labels = as_float(test.images[part]), test.labels[part]
        survivors = len(labels) if flags.survivors is None else flags.survivors
        write_vnnlib(flags.vnnlib, images, labels, eps, len(test.classes), survivors=survivors)
        print(f"property  {flags.vnnlib}: at least {survivors} of {len(labels)} images survive (unsat if so)")
    return 0
