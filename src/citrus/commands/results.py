"""How results are shown: the table of an evaluation and the picture of a universal perturbation."""

from pathlib import Path

from citrus.certify.result import Certification
from citrus.console import table
from citrus.inputs import format_eps
from citrus.training import Evaluation


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
