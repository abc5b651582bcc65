"""`citrus attack NETWORK --eps E`: how a network fares against universal perturbations."""

from dataclasses import asdict, dataclass
from pathlib import Path

from citrus.certify import Certification
from citrus.commands.target import NetworkFlags, find_target, parse_flags, take_word
from citrus.console import table
from citrus.data import as_float
from citrus.files import write_json
from citrus.inputs import format_eps
from citrus.training import Evaluation, evaluate, pick_device, uap_file


@dataclass
class AttackFlags(NetworkFlags):
    """Attack a network (run folder, ONNX file or name of the zoo) on its test set: citrus attack RUN --eps 0.2"""

    images: int = 1000
    """Test images to attack."""
    seed: int = 0
    """Seed of the attack."""
    device: str = "auto"
    """cpu, cuda or auto."""


def run(arguments: list[str]) -> None:
    name, rest = take_word(arguments)
    flags, _ = parse_flags(AttackFlags, "attack", rest)
    target, device = find_target(name, "attack", flags), pick_device(flags.device)
    eps, test = target.eps, target.test_set().to(device)
    result, _ = evaluate(
        target.load(test.shape).to(device),
        as_float(test.images),
        test.labels,
        eps,
        group_size=target.group_size,
        attacked=flags.images,
        clip=target.clip,
        seed=flags.seed,
        out=target.folder,
        classes=test.classes,
    )
    path = uap_file(target.folder, eps)
    write_json(path.with_suffix(".json"), asdict(result))
    picture = save_picture(path) or "needs matplotlib: pip install 'citrus-uap[report]'"
    print(f"{evaluation_table(result)}\n\nperturbations  {path}\npicture        {picture}")


def evaluation_table(result: Evaluation, certified: Certification | None = None) -> str:
    """One line per measure, with how it was measured; `certified` is about the images that were attacked."""
    n, k = result.images, result.attacked_images
    universal = result.universal
    if certified and not result.clip:  # the verifier's attack does not clip, so it says nothing about clipped images
        universal = min(universal, certified.attacked)
    box = "clipped to [0, 1]" if result.clip else "not clipped"
    rows = [
        ["clean accuracy", f"{result.clean:.2f}", f"{n} test images"],
        ["certified one by one (IBP)", f"{result.ibp_certified:.2f}", f"{n} test images, proved"],
        [f"attacked one by one (PGD-{result.pgd_steps})", f"{result.pgd:.2f}", f"first {k}"],
        ["attacked by universal perturbations", f"{universal:.2f}", f"first {k}, groups of {result.group_size}"],
    ]
    if certified:
        shown = f"first {certified.images}, groups of {certified.group_size}, proved"
        rows.insert(2, ["certified against universal perturbations", f"{certified.certified:.2f}", shown])
    title = f"percent of test images classified right at eps {format_eps(result.eps)} (perturbed images {box})"
    return table(["measure", "percent", "on"], rows, title)


def save_picture(uap: Path) -> Path | None:
    """The strongest perturbation in a file as a PNG beside it; None when matplotlib is not installed."""
    try:
        from citrus.report.picture import draw_perturbation
    except ImportError:
        return None
    return draw_perturbation(uap)
