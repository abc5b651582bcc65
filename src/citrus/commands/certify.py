"""`citrus certify NETWORK`: prove how many images of each group survive every shared perturbation."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from citrus.certify import Certification, CertifySettings, GroupResult, certify_into
from citrus.certify.run_folder import certificate_folder, row_path
from citrus.certify.settings import Grouping, Intermediate
from citrus.certify.targets import Targets, certify_targets, save_targets, targets_path
from citrus.certify.unseen import check_confidence
from citrus.commands.target import NetworkFlags, Target, find_target, parse_flags, take_word
from citrus.console import Bar, duration, table
from citrus.data import as_float
from citrus.errors import CitrusError, code_of
from citrus.inputs import format_eps
from citrus.networks import graph
from citrus.networks.operations import Arithmetic
from citrus.training import pick_device


@dataclass
class CertifyFlags(NetworkFlags):
    """Certify a network (run folder, ONNX file or name of the zoo): citrus certify NETWORK --data mnist --eps 0.1"""

    grouping: Grouping = "correct"
    """dataset: in order. correct: misclassified images dropped first. adaptive: images that need it are grouped."""
    verifier: str = "citrus"
    """citrus (strongest), racoon or zeng (the published systems)."""
    intermediate: Intermediate = "auto"
    """Boxes of the inner layers: crown, early (by crown in the first two ReLU layers only), interval or auto."""
    budget: str = "10s"
    """Time per group for search and refinement, such as 10s or 2m; groups of more than 50 images may take more."""
    images: int | None = None
    """Certify the first so many test images; by default all."""
    certificates: bool = False
    """Also write the proofs, for `citrus check`."""
    out: str | None = None
    """Folder of the results; by default RUN/certify, or runs/NETWORK/certify."""
    arithmetic: Arithmetic = "real"
    """real: the network as a function of real numbers. float32: every program that runs it in float32."""
    memory: str | None = None
    """Memory that one perturbation for many images may take, such as 8GB; by default half of what is free."""
    confidence: float = 0.99
    """Of what is said about inputs that nobody has seen."""
    targets: bool = False
    """Instead: for each class, how many images one perturbation for all can have taken for it."""
    seed: int = 0
    """Seed of the attack."""
    device: str = "auto"
    """cpu, cuda or auto."""


def run(arguments: list[str]) -> int:
    name, rest = take_word(arguments)
    flags, _ = parse_flags(CertifyFlags, "certify", rest)
    work = _Work(find_target(name, "certify", flags), flags)
    found = []
    try:
        if flags.targets:
            return work.targets()
        for size in work.sizes:
            found.append(work.certify(size))
    except KeyboardInterrupt as stop:
        print("Interrupted; the same command goes on where it stopped.", file=sys.stderr)
        return code_of(stop)
    print(work.told(found[0], work.sizes[0]) if len(found) == 1 else work.compared(found))
    return 2 if any(result.errors for result in found) else 0


class _Work:
    """A network and images to certify it with; what is missing or wrong is told before data are looked for."""

    def __init__(self, target: Target, flags: CertifyFlags) -> None:
        self.target, self.flags, self.eps, self.sizes = target, flags, target.eps, target.sizes
        check_confidence(flags.confidence)
        if flags.images is not None and flags.images < 1:
            raise CitrusError(f"There are no images to certify: --images must be at least 1, got {flags.images}.")
        self.settings = CertifySettings(
            grouping=flags.grouping,
            verifier=flags.verifier,
            intermediate=flags.intermediate,
            budget=parse_seconds(flags.budget),
            memory=None if flags.memory is None else parse_bytes(flags.memory),
            seed=flags.seed,
            arithmetic=flags.arithmetic,
        )
        self.out = Path(flags.out) if flags.out else target.folder / "certify"
        test, device = target.test_set().subset(slice(0, flags.images)), pick_device(flags.device)
        self.used, self.test = target.used(test), test.to(device)
        self.network = graph(target.load(test.shape), test.shape).to(device)

    def certify(self, size: int | Literal["all"]) -> Certification:
        """Certify for one group size, with a line for each group and a bar."""
        with Bar("groups") as bar:

            def on_rows(rows: Sequence[GroupResult], done: int, total: int) -> None:
                for row in rows if len(self.sizes) == 1 else ():
                    print(line(row))
                bar.update(done, total)

            return certify_into(
                self.out,
                self.network,
                as_float(self.test.images),
                self.test.labels,
                self.eps,
                replace(self.settings, group_size=size),
                certificates=self.flags.certificates,
                name=self.target.network,
                used=self.used,
                classes=self.test.classes,
                on_rows=on_rows,
                on_text=bar.say,
            )

    def targets(self) -> int:
        """The table of target classes, and its file."""
        with Bar("targets") as bar:
            found = certify_targets(self.network, as_float(self.test.images), self.eps, self.settings, tell=bar.say)
        path = targets_path(self.out, found.eps, self.settings)
        save_targets(path, found, self.test.classes)
        print(f"{by_target(found, self.test.classes)}\n\nfile  {path}")
        return 2 if any(one.is_broken for one in found.classes) else 0

    def told(self, result: Certification, size: int | Literal["all"]) -> str:
        """What came of one group size, and where it is."""
        settings = replace(self.settings, group_size=size)
        rows = f"rows          {row_path(self.out, self.eps, settings)}"
        text = "\n\n".join([summary(result), unseen(result, self.flags.confidence, self.used), rows])
        if not self.flags.certificates:
            return text
        folder = certificate_folder(self.out, self.eps, settings)
        return f"{text}\ncertificates  {folder}\nnext          citrus check {folder}"

    def compared(self, found: Sequence[Certification]) -> str:
        """What came of several group sizes, in one table."""
        largest = max(found, key=lambda result: result.group_size)
        seconds = sum(sum(result.stage_seconds.values()) for result in found)
        return "\n\n".join(
            [
                f"\n{by_size(found)}",
                unseen(largest, self.flags.confidence, self.used),
                f"rows   {self.out}\ntime   {duration(seconds)}",
            ]
        )


def line(row: GroupResult) -> str:
    stages = " ".join(f"{name} {count}" for name, count in row.stages.items())
    counts = f"[{row.certified}, {row.attacked}] of {len(row.index)}"
    return (
        f"group {row.group:5}  {counts:14}  {row.verdict.value:9}  {row.seconds:6.2f} s  {stages} {row.note}".rstrip()
    )


def summary(result: Certification) -> str:
    """Percentages, every image once, and what each stage cost."""
    radius, n = format_eps(result.eps), result.images
    title = f"\n{n} images, eps {radius}, {groups_of(result)} ({result.grouping}), verifier {result.verifier}"
    title += f", {result.arithmetic} arithmetic"
    rows = [
        ["clean accuracy", f"{result.correct:.2f}"],
        ["certified UAP accuracy (proved)", f"{result.certified:.2f}"],
        ["UAP accuracy under attack (upper bound)", f"{result.attacked:.2f}"],
    ]
    parts = result.images_by_outcome()
    counted = ", ".join(f"{name} {count}" for name, count in parts.items())
    stages = ", ".join(f"{name} {duration(s) if s > 60 else f'{s:.1f} s'}" for name, s in result.stage_seconds.items())
    return f"{table(['percent of all images', ''], rows, title)}\n\n{counted}: {sum(parts.values())} in all\n{stages}"


def unseen(result: Certification, confidence: float, used: str) -> str:
    """What follows about inputs that nobody has seen, and when."""
    if used:
        return f"nothing follows about other inputs: {used}"
    batches = result.from_batches(confidence)
    beside = f" (from batches, by Zeng et al.: {batches:.2f} %)" if batches is not None else ""
    least = f"no perturbation leaves less than {result.unseen(confidence):.2f} % right{beside}"
    return (
        f"inputs nobody has seen: with {100 * confidence:g} % confidence {least},\n"
        "if these images were drawn at random, and the network was neither trained nor chosen with them"
    )


def groups_of(result: Certification) -> str:
    """Who shares a perturbation, in words."""
    size, n = result.group_size, result.images
    return f"one perturbation for all {n}" if size >= n > 1 else f"groups of {size}"


def by_size(found: Sequence[Certification]) -> str:
    """What one perturbation for more and more images can do: a line for each group size."""
    one, rows = found[0], list[list[str]]()
    for result in found:
        size = f"all {result.images}" if result.group_size >= result.images else str(result.group_size)
        rows.append([size, f"{result.certified:.2f}", f"{result.attacked:.2f}"])
    title = f"percent of {one.images} images that stay right at eps {format_eps(one.eps)}; {one.correct:.2f} are right"
    return table(["images that share one perturbation", "proved", "under attack"], rows, f"{title} without any")


def by_target(found: Targets, classes: Sequence[str]) -> str:
    """A line for each class that an attacker may want."""
    rows = [
        [
            classes[one.label] if one.label < len(classes) else str(one.label),
            str(one.candidates),
            f"{100 * one.most / found.images:.2f}",
            f"{100 * one.attacked / found.images:.2f}"
            + (" (breaks the proof: please report)" if one.is_broken else ""),
        ]
        for one in found.classes
    ]
    title = f"percent of {found.images} images that one perturbation sends to a class at eps {format_eps(found.eps)}"
    return table(["class", "images not in it", "at most (proved)", "at least (attack)"], rows, title)


def parse_seconds(text: str) -> float:
    """10, 10s, 2m or 1h in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?)([smh]?)", text.strip())
    if not found:
        raise CitrusError(f"A time budget is written 10s, 2m or 1h, got {text!r}.")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def parse_bytes(text: str) -> int:
    """500MB, 8GB or 1.5GB in bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?) ?([MG])B?", text.strip(), re.IGNORECASE)
    if not found:
        raise CitrusError(f"Memory is written 500MB or 8GB, got {text!r}.")
    return int(float(found[1]) * {"M": 1 << 20, "G": 1 << 30}[found[2].upper()])
