"""`citrus certify NETWORK`: prove how many images of each group survive every shared perturbation."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from citrus.certify import Certification, CertifySettings, GroupResult, certify_into
from citrus.certify.run_folder import OnRows, certificate_folder, row_path
from citrus.certify.settings import Grouping, Intermediate
from citrus.commands.flags import parse_flags, take_word
from citrus.commands.target import find_target
from citrus.console import Bar, duration, table
from citrus.data import as_float
from citrus.errors import CitrusError
from citrus.inputs import format_eps
from citrus.networks import graph
from citrus.training.run import pick_device


@dataclass
class CertifyFlags:
    """Certify a network (run folder, ONNX file or name of the zoo): citrus certify NETWORK --data mnist --eps 0.1"""

    data: str | None = None
    """Data set whose test images are certified; by default the network's own."""
    eps: str | None = None
    """Radius in pixel units, such as 0.1 or 8/255; by default the network's own."""
    group_size: int = 5
    """Images that share one perturbation; 1 is ordinary certification."""
    grouping: Grouping = "correct"
    """dataset: in order. correct: misclassified images dropped first. adaptive: images that need it are grouped."""
    verifier: str = "citrus"
    """citrus (strongest), racoon or zeng (the published systems)."""
    intermediate: Intermediate = "auto"
    """Boxes of the inner layers: crown, early (by crown in the first two ReLU layers only), interval or auto."""
    budget: str = "10s"
    """Time per group for search and refinement, such as 10s or 2m."""
    images: int | None = None
    """Certify the first so many test images; by default all."""
    certificates: bool = False
    """Also write the proofs, for `citrus check`."""
    out: str | None = None
    """Folder of the results; by default RUN/certify, or runs/NETWORK/certify."""
    seed: int = 0
    """Seed of the attack."""
    data_dir: str | None = None
    """Folder of the data sets; else CITRUS_DATA, else the user cache."""
    device: str = "auto"
    """cpu, cuda or auto."""
    mean: str | None = None
    """For an ONNX file without normalisation: mean of each channel, such as 0.1307."""
    std: str | None = None
    """For an ONNX file without normalisation: standard deviation of each channel."""


def run(arguments: list[str]) -> int:
    name, rest = take_word(arguments)
    flags, _ = parse_flags(CertifyFlags, "certify", rest)
    target = find_target(name, "certify")
    if flags.images is not None and flags.images < 1:
        raise CitrusError(f"There are no images to certify: --images must be at least 1, got {flags.images}.")
    device, eps = pick_device(flags.device), target.radius(flags.eps)
    test = target.test_set(flags.data, flags.data_dir, device)
    plain = graph(target.load(test.shape, flags.mean, flags.std), test.shape).to(device)
    settings = CertifySettings(
        group_size=flags.group_size,
        grouping=flags.grouping,
        verifier=flags.verifier,
        intermediate=flags.intermediate,
        budget=parse_seconds(flags.budget),
        seed=flags.seed,
    )
    out = Path(flags.out) if flags.out else target.folder / "certify"
    try:
        with shown(print) as on_rows:
            result = certify_into(
                out,
                plain,
                as_float(test.images[: flags.images]),
                test.labels[: flags.images],
                eps,
                settings,
                certificates=flags.certificates,
                name=target.network,
                on_rows=on_rows,
            )
    except KeyboardInterrupt:
        print("Interrupted; the same command goes on where it stopped.", file=sys.stderr)
        return 130
    print(f"{summary(result)}\n\nrows          {row_path(out, eps, settings)}")
    if flags.certificates:
        folder = certificate_folder(out, eps, settings)
        print(f"certificates  {folder}\nnext          citrus check {folder}")
    return 2 if result.errors else 0


@contextmanager
def shown(report: Callable[[str], None] = lambda text: None) -> Iterator[OnRows]:
    """A bar, and a line per group for whoever wants it, while `certify_into` works."""
    bar: Bar | None = None

    def on_rows(rows: Sequence[GroupResult], done: int, total: int) -> None:
        nonlocal bar
        bar = bar or Bar(total, "groups", start=done)
        for row in rows:
            report(line(row))
        bar.update(done)

    try:
        yield on_rows
    finally:
        if bar:
            bar.close()


def line(row: GroupResult) -> str:
    stages = " ".join(f"{name} {count}" for name, count in row.stages.items())
    counts = f"[{row.certified}, {row.attacked}] of {len(row.index)}"
    return (
        f"group {row.group:5}  {counts:14}  {row.verdict.value:9}  {row.seconds:6.2f} s  {stages} {row.note}".rstrip()
    )


def summary(result: Certification) -> str:
    """Percentages, every image once, and what each stage cost."""
    radius, n = format_eps(result.eps), result.images
    title = f"\n{n} images, eps {radius}, groups of {result.group_size} ({result.grouping}), verifier {result.verifier}"
    rows = [
        ["clean accuracy", f"{result.correct:.2f}"],
        ["certified UAP accuracy (proved)", f"{result.certified:.2f}"],
        ["UAP accuracy under attack (upper bound)", f"{result.attacked:.2f}"],
    ]
    parts = result.images_by_outcome()
    counted = ", ".join(f"{name} {count}" for name, count in parts.items())
    stages = ", ".join(f"{name} {duration(s) if s > 60 else f'{s:.1f} s'}" for name, s in result.stage_seconds.items())
    return f"{table(['percent of all images', ''], rows, title)}\n\n{counted}: {sum(parts.values())} in all\n{stages}"


def parse_seconds(text: str) -> float:
    """10, 10s, 2m or 1h in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?)([smh]?)", text.strip())
    if not found:
        raise CitrusError(f"A time budget is written 10s, 2m or 1h, got {text!r}.")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]
