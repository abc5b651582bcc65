"""`citrus check CERTIFICATES`: verify proofs in float64 without trusting whoever made them."""

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from citrus.attacks.alarm import Alarm, is_alarm, load_alarm
from citrus.checker.certificate import read_certificate
from citrus.checker.check import CheckReport, certificate_files, check
from citrus.checker.points import margin_at
from citrus.checker.proofs import Certificate
from citrus.commands.target import numbers, parse_flags, take_word
from citrus.console import Bar, table
from citrus.errors import CitrusError
from citrus.inputs import format_eps
from citrus.networks import graph, load_network

SHOWN = 5  # failures that are printed


@dataclass
class CheckFlags:
    """Check certificates, a folder or one file: citrus check RUN/certify/citrus-0.1-n5-correct-certificates"""

    network: str | None = None
    """Run folder, ONNX file or name of the zoo; by default the one named in the certificate."""
    mean: str | None = None
    """For an ONNX file without normalisation: mean of each channel, such as 0.1307 or 0.49,0.48,0.45."""
    std: str | None = None
    """For an ONNX file without normalisation: standard deviation of each channel."""


def run(arguments: list[str]) -> int:
    path, rest = take_word(arguments)
    flags, _ = parse_flags(CheckFlags, "check", rest)
    if not path:
        raise CitrusError("Which certificates? `citrus certify NETWORK --certificates` says where it wrote them.")
    if is_alarm(Path(path)):
        return _show(load_alarm(Path(path)), flags)
    files = certificate_files(path)
    first = _first_readable(files)
    name = flags.network or first.network_path
    if not name:
        raise CitrusError("The certificate does not say where its network is: add --network NETWORK.")
    shape = tuple(first.images.shape[1:])
    network = graph(load_network(name, shape, numbers(flags.mean), numbers(flags.std)), shape)
    with Bar("groups") as bar:
        report = check(path, network, bar.update)
    print(_text(report, name, first.eps))
    return 1 if report.failures else 0


def _show(alarm: Alarm, flags: CheckFlags) -> int:
    """Both witnesses of a proof that was broken: what was claimed, and what the network answers."""
    name, shape = flags.network or alarm.network, tuple(alarm.images.shape[1:])
    if not name:
        raise CitrusError("The file does not say where its network is: add --network NETWORK.")
    network = graph(load_network(name, shape, numbers(flags.mean), numbers(flags.std)), shape)
    network = replace(network, arithmetic=alarm.arithmetic)
    delta = alarm.delta.double().clamp(-alarm.eps, alarm.eps)
    rows, fallen = [], 0
    for index, image, label in zip(alarm.index.tolist(), alarm.images, alarm.labels.tolist(), strict=True):
        before, after = (margin_at(network, x, label) for x in (image.double(), image.double() + delta))
        fallen += before[0] > 0 >= after[1]
        rows.append([str(index), str(label), f"{before[0]:.6g}", f"{after[1]:.6g}", _answer(after)])
    print(table(["image", "label", "margin, at least", "perturbed, at most", "perturbed it is"], rows))
    print(f"claimed   {alarm.claim}\nnetwork   {name}\neps       {format_eps(alarm.eps)}")
    print(f"fooled    {fallen} of {len(rows)} images that are right without the perturbation, whatever is rounded")
    return 1


def _answer(margin: tuple[float, float]) -> str:
    return "right" if margin[0] > 0 else "wrong" if margin[1] <= 0 else "a tie"


def _first_readable(files: list[Path]) -> Certificate:
    """A certificate that says which network and what images; that others are damaged is reported later."""
    for file in files:
        with suppress(CitrusError):
            return read_certificate(file)
    return read_certificate(files[-1])


def _text(report: CheckReport, network: str, eps: float) -> str:
    lines = [f"FAILED  {failure}" for failure in report.failures[:SHOWN]]
    if len(report.failures) > SHOWN:
        lines.append(f"FAILED  ... and {len(report.failures) - SHOWN} more")
    lines += [
        f"network   {network}",
        f"eps       {format_eps(eps)}",
        f"numbers   {report.arithmetic} arithmetic",
        f"proofs    {report.holding} of {report.proofs} hold",
        f"groups    {report.confirmed} of {report.groups} confirmed",
        f"images    {report.certified} of {report.images} certified",
        f"time      {report.seconds:.1f} s",
    ]
    return "\n".join(lines)
