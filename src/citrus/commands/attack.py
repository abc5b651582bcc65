"""`citrus attack NETWORK --eps E`: how a network fares against universal perturbations."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from citrus.attacks.kept import predictions
from citrus.attacks.whole import attack_all
from citrus.commands.target import NetworkFlags, Target, find_target, parse_flags, take_word
from citrus.console import table
from citrus.data import Dataset, as_float
from citrus.errors import CitrusError
from citrus.files import locked, write_json
from citrus.inputs import format_eps
from citrus.networks import Graph
from citrus.networks.kernels import true_float32
from citrus.training import Evaluation, evaluate, pick_device, uap_file
from citrus.training.evaluation import UNIVERSAL, broken_folder, percent


@dataclass
class AttackFlags(NetworkFlags):
    """Attack a network (run folder, ONNX file or name of the zoo) on its test set: citrus attack RUN --eps 0.2"""

    images: int = 1000
    """Test images to attack."""
    transfer: bool = False
    """First find one perturbation on as many training images, say what it does to test images, and go on from it."""
    seed: int = 0
    """Seed of the attack."""
    device: str = "auto"
    """cpu, cuda or auto."""


def run(arguments: list[str]) -> int:
    name, rest = take_word(arguments)
    flags, _ = parse_flags(AttackFlags, "attack", rest)
    target, device = find_target(name, "attack", flags), pick_device(flags.device)
    eps, test = target.eps, target.test_set().to(device)
    with locked(target.folder):
        network = target.load(test.shape).to(device)
        starts = [_transferred(network, target, test, eps, flags)] if flags.transfer else []
        result, _ = evaluate(
            network,
            as_float(test.images),
            test.labels,
            eps,
            group_size=target.group_size(min(flags.images, len(test))),
            attacked=flags.images,
            clip=target.clip,
            seed=flags.seed,
            out=target.folder,
            classes=test.classes,
            name=target.network,
            starts=starts,
        )
        path = uap_file(target.folder, eps)
        write_json(path.with_suffix(".json"), asdict(result))
    picture = save_picture(path) or "needs matplotlib: pip install 'citrus-uap[report]'"
    print(f"{evaluation_table(result)}\n\nperturbations  {path}\npicture        {picture}")
    return exit_code(result, target.folder)


def _transferred(network: nn.Module | Graph, target: Target, test: Dataset, eps: float, flags: AttackFlags) -> Tensor:
    """A perturbation of training images, by somebody who has no test images yet."""
    if target.group_size(flags.images) < flags.images:
        raise CitrusError("--transfer is about one perturbation for all images: leave --group-size away.")
    train = target.training_set().subset(slice(0, flags.images)).to(test.images.device)
    some, generator = test.subset(slice(0, flags.images)), torch.Generator(test.images.device).manual_seed(flags.seed)
    with true_float32():
        delta = attack_all(network, as_float(train.images), train.labels, eps, UNIVERSAL, generator)
    images = as_float(some.images)
    before, after = (percent(predictions(network, x) == some.labels) for x in (images, images + delta))
    said = f"one perturbation of {len(train)} training images leaves {after:.2f} % of {len(some)} test images right"
    print(f"{said}, {before:.2f} % without it\n")
    return delta


def exit_code(result: Evaluation, folder: Path) -> int:
    """2, with where to look, after an attack that broke proofs."""
    if result.errors:
        where = broken_folder(folder, result.eps)
        print(
            f"error: an attack fools {result.errors} images that are certified, a bug in Citrus. Please report it "
            f"with what `citrus check FILE` shows of the files in {where}",
            file=sys.stderr,
        )
    return 2 if result.errors else 0


def evaluation_table(result: Evaluation) -> str:
    """One line per measure, with how it was measured."""
    n, k = result.images, result.attacked_images
    shared = f"first {k}, one for all" if result.group_size >= k else f"first {k}, groups of {result.group_size}"
    box = "clipped to [0, 1]" if result.clip else "not clipped"
    rows = [
        ["clean accuracy", f"{result.clean:.2f}", f"{n} test images"],
        ["certified one by one (IBP)", f"{result.ibp_certified:.2f}", f"{n} test images, proved"],
        [f"attacked one by one (PGD-{result.pgd_steps})", f"{result.pgd:.2f}", f"first {k}"],
        ["attacked by universal perturbations", f"{result.universal:.2f}", shared],
    ]
    title = f"percent of test images classified right at eps {format_eps(result.eps)} (perturbed images {box})"
    return table(["measure", "percent", "on"], rows, title)


def save_picture(uap: Path) -> Path | None:
    """The strongest perturbation in a file as a PNG beside it; None when matplotlib is not installed."""
    try:
        from citrus.report.picture import draw_perturbation
    except ImportError:
        return None
    return draw_perturbation(uap)
