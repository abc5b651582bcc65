"""The group property as VNN-LIB 2.0, so that other verifiers can be asked the same question.

    write_vnnlib("group.vnnlib", images, labels, eps="8/255", classes=10, survivors=3)

The claim is "at least `survivors` of the k images survive every shared delta with |delta| <= eps". The file asks for
its opposite: k copies of one network, whose inputs differ by constants only (copy i reads x_i + delta), of which at
least k - survivors + 1 are violated at once. `unsat` proves the claim; a model holds a delta that refutes it. An image
is violated if a wrong score reaches the right one, so a tie counts against the network. Like the papers, and unlike a
camera, the query does not cut x_i + delta to [0, 1]. The network is the file that `save_onnx` writes.

Rounding. VNN-LIB has decimal numbers without exponents. Every number here is the exact decimal expansion of what was
given: pixels as stored, eps as a float64 (8/255 is rounded to the nearest one), and sums and differences of these. So
the file is about exactly these images and this radius, and the only rounding left is the reader's. Variables are of
type `real`: in float32 the ties between the inputs would have few solutions or none, and `unsat` would mean little.
"""

import math
import os
from collections.abc import Iterator, Sequence
from decimal import Context, Decimal, Inexact
from itertools import combinations, product
from pathlib import Path

from torch import Tensor

from citrus.errors import CitrusError
from citrus.files import write_text
from citrus.inputs import check_images, parse_eps

MOST_SUBSETS = 5000
_EXACT = Context(prec=2000, traps=[Inexact])  # more digits than a sum of two float64 can have


def write_vnnlib(
    path: str | os.PathLike[str], images: Tensor, labels: Tensor, eps: str | float, classes: int, survivors: int = 1
) -> None:
    """Write the query of `group_property` to a file."""
    write_text(Path(path), group_property(images, labels, eps, classes, survivors))


def group_property(images: Tensor, labels: Tensor, eps: str | float, classes: int, survivors: int = 1) -> str:
    """The query that is unsatisfiable if at least `survivors` of the images (k, C, H, W) survive every shared delta.

    It is a disjunction over the smallest sets of images whose violation would refute the claim; more than
    `MOST_SUBSETS` of them are an error.
    """
    check_images(images, labels, classes)
    radius, count = parse_eps(eps), len(images)
    if not 1 <= survivors <= count:
        raise CitrusError(f"survivors must lie in 1..{count}, the number of images, got {survivors}.")
    size = count - survivors + 1
    if math.comb(count, size) > MOST_SUBSETS:
        raise CitrusError(
            f"The claim that {survivors} of {count} images survive takes {math.comb(count, size)} subsets, more than "
            f"{MOST_SUBSETS}: use smaller groups."
        )
    violated = [_violated(i, int(labels[i]), classes) for i in range(count)]
    sets = [_join("and", chosen) for chosen in combinations(violated, size)]
    lines = [
        "(vnnlib-version <2.0>)",
        f"; {count} images, one shared delta with |delta| <= {radius!r}: are at least {size} violated at once?",
        f"; unsat proves that at least {survivors} of them survive every delta.",
        *(_declaration(i, [1, *images.shape[1:]], classes) for i in range(count)),
        *_inputs(images, radius),
        f"(assert {_join('or', sets)})",
    ]
    return "\n".join(lines) + "\n"


def _declaration(i: int, shape: Sequence[int], classes: int) -> str:
    copy = "(equal-to f0) " if i else ""
    axes = ",".join(str(size) for size in shape)
    return f"(declare-network f{i} {copy}(declare-input X{i} real [{axes}]) (declare-output Y{i} real [1,{classes}]))"


def _inputs(images: Tensor, eps: float) -> Iterator[str]:
    """The box of delta, and the ties X_i = X_0 + (x_i - x_0). The boxes of the other copies follow from these two; they
    are written as well because verifiers start from a box for each input."""
    places = [",".join(map(str, (0, *place))) for place in product(*(range(n) for n in images.shape[1:]))]
    radius = Decimal(eps)
    pixels = [[Decimal(v) for v in image.detach().cpu().double().flatten().tolist()] for image in images]
    for i, image in enumerate(pixels):
        for place, pixel in zip(places, image, strict=True):
            yield f"(assert (>= X{i}[{place}] {_number(_EXACT.subtract(pixel, radius))}))"
            yield f"(assert (<= X{i}[{place}] {_number(_EXACT.add(pixel, radius))}))"
    for i, image in enumerate(pixels[1:], start=1):
        for place, pixel, first in zip(places, image, pixels[0], strict=True):
            shift = _number(_EXACT.subtract(pixel, first))
            yield f"(assert (== X{i}[{place}] (+ X0[{place}] {shift})))"


def _violated(i: int, label: int, classes: int) -> str:
    return _join("or", [f"(>= Y{i}[0,{wrong}] Y{i}[0,{label}])" for wrong in range(classes) if wrong != label])


def _join(connective: str, parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({connective} {' '.join(parts)})"


def _number(value: Decimal) -> str:
    """All digits, no exponent, and always a point: a bare 0 would be an integer, which has another type."""
    text = format(_EXACT.normalize(value) if value else Decimal(0), "f")
    return text if "." in text else text + ".0"
