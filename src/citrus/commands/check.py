"""`citrus check CERTIFICATES`: verify proofs in float64 without trusting whoever made them."""

from dataclasses import dataclass
from pathlib import Path

from citrus.checker.certificate import read_certificate
from citrus.checker.check import CheckReport, certificate_files, check
from citrus.checker.proofs import Certificate
from citrus.commands.flags import parse_flags, take_word
from citrus.console import Bar
from citrus.errors import CitrusError
from citrus.inputs import format_eps, parse_number
from citrus.networks import Graph, graph

SHOWN = 5  # failures that are printed


@dataclass
class CheckFlags:
    """Check certificates, a folder or one file: citrus check RUN/certificates --network RUN_OR_ONNX"""

    network: str | None = None
    """Run folder or ONNX file; by default the one named in the certificate."""
    mean: str | None = None
    """For an ONNX file without normalisation: mean of each channel, such as 0.1307 or 0.49,0.48,0.45."""
    std: str | None = None
    """For an ONNX file without normalisation: standard deviation of each channel."""


def run(arguments: list[str]) -> int:
    path, rest = take_word(arguments)
    flags, _ = parse_flags(CheckFlags, "check", rest)
    if not path:
        raise CitrusError("Which certificates? citrus check RUN/certificates")
    first = _first_readable(certificate_files(path))
    name = flags.network or first.network_path
    if not name:
        raise CitrusError("The certificate does not say where its network is: add --network RUN_OR_ONNX.")
    network = load_graph(name, tuple(first.images.shape[1:]), numbers(flags.mean), numbers(flags.std))
    files = certificate_files(path)
    with Bar(len(files), "groups") as bar:
        report = check(path, network, lambda done, _, text: bar.update(done, text))
    print(_text(report, name, first.eps))
    return 1 if report.failures else 0


def load_graph(
    path: str, shape: tuple[int, ...], mean: tuple[float, ...] | None, std: tuple[float, ...] | None
) -> Graph:
    """The network of a run folder or an ONNX file as plain operations, for images of this shape."""
    if path.endswith(".onnx"):
        from citrus.networks.onnx import load_onnx

        return load_onnx(path, shape, mean, std)
    if mean or std:
        raise CitrusError("--mean and --std are for ONNX files; the network of a run knows its normalisation.")
    if not Path(path).is_dir():
        raise CitrusError(f"There is no network {path}: give --network a run folder or an .onnx file.")
    from citrus.training import load_run

    return graph(load_run(path).network, shape)


def _first_readable(files: list[Path]) -> Certificate:
    """A certificate that says which network and what images; that others are damaged is reported later."""
    for k, file in enumerate(files):
        try:
            return read_certificate(file)
        except CitrusError:
            if k == len(files) - 1:
                raise
    raise AssertionError("certificate_files returns at least one file")


def numbers(text: str | None) -> tuple[float, ...] | None:
    """0.1 or 0.49,0.48,0.45 as numbers."""
    return None if text is None else tuple(parse_number(part) for part in text.split(","))


def _text(report: CheckReport, network: str, eps: float) -> str:
    lines = [f"FAILED  {failure}" for failure in report.failures[:SHOWN]]
    if len(report.failures) > SHOWN:
        lines.append(f"FAILED  ... and {len(report.failures) - SHOWN} more")
    lines += [
        f"network   {network}",
        f"eps       {format_eps(eps)}",
        f"proofs    {report.holding} of {report.proofs} hold",
        f"groups    {report.confirmed} of {report.groups} confirmed",
        f"images    {report.certified} of {report.images} certified",
        f"time      {report.seconds:.1f} s",
    ]
    return "\n".join(lines)
