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
    path: str | os.PathLike[str],
    images: Tensor,
    labels: Tensor,
    eps: str | float,
    classes: int,
    survivors: int | None = None,
    subset: Sequence[int] | None = None,
) -> None:
    """Write the query of `group_property` to a file."""
    write_text(Path(path), group_property(images, labels, eps, classes, survivors, subset))


def group_property(
    images: Tensor,
    labels: Tensor,
    eps: str | float,
    classes: int,
    survivors: int | None = None,
    subset: Sequence[int] | None = None,
) -> str:
    """The query whose unsatisfiability proves a claim about images (k, C, H, W) under one shared delta.

    `survivors` claims that at least so many images survive: the query is a disjunction over the smallest sets of images
    whose violation would refute it, an error where there are more than `MOST_SUBSETS`. `subset` claims that not all
    images of these positions are violated at once: only they appear in the query. With neither, all images are meant.
    """
    if classes < 2:
        raise CitrusError(f"A classifier needs at least two classes, got {classes}.")
    check_images(images, labels, classes)
    radius = parse_eps(eps)
    members, size = _members(len(images), survivors, subset)
    violated = {i: _violated(i, int(labels[i]), classes) for i in members}
    sets = [_join("and", [violated[i] for i in chosen]) for chosen in combinations(members, size)]
    shape = [1, *images.shape[1:]]
    lines = [
        "(vnnlib-version <2.0>)",
        f"; {len(members)} images, one shared delta with |delta| <= {radius!r}: are at least {size} violated at once?",
        f"; unsat proves that at least {len(members) - size + 1} of them survive every delta.",
        *(_declaration(i, members[0], shape, classes) for i in members),
        *_inputs(images, members, radius),
        f"(assert {_join('or', sets)})",
    ]
    return "\n".join(lines) + "\n"


def _members(count: int, survivors: int | None, subset: Sequence[int] | None) -> tuple[list[int], int]:
    """Positions of the images in the query, and how many of them must be violated to refute the claim."""
    if subset is not None:
        members = [int(i) for i in subset]
        if survivors is not None:
            raise CitrusError("Give either survivors or subset: a subset claims that one of its images survives.")
        if not members or len(set(members)) != len(members) or not 0 <= min(members) <= max(members) < count:
            raise CitrusError(f"subset must name different positions in 0..{count - 1}, got {list(subset)}.")
        return members, len(members)
    survivors = 1 if survivors is None else survivors
    if not 1 <= survivors <= count:
        raise CitrusError(f"survivors must lie in 1..{count}, the number of images, got {survivors}.")
    size = count - survivors + 1
    if math.comb(count, size) > MOST_SUBSETS:
        raise CitrusError(
            f"The claim that {survivors} of {count} images survive takes {math.comb(count, size)} subsets, more than "
            f"{MOST_SUBSETS}: use smaller groups, or write the subsets that matter one by one with subset=."
        )
    return list(range(count)), size


def _declaration(i: int, first: int, shape: Sequence[int], classes: int) -> str:
    copy = "" if i == first else f"(equal-to f{first}) "
    axes = ",".join(str(size) for size in shape)
    return f"(declare-network f{i} {copy}(declare-input X{i} real [{axes}]) (declare-output Y{i} real [1,{classes}]))"


def _inputs(images: Tensor, members: Sequence[int], eps: float) -> Iterator[str]:
    """The box of delta, and the ties X_i = X_first + (x_i - x_first). The boxes of the other copies follow from these
    two; they are written as well because verifiers start from a box for each input."""
    places = [",".join(map(str, (0, *place))) for place in product(*(range(n) for n in images.shape[1:]))]
    radius = Decimal(eps)
    pixels = {i: [Decimal(v) for v in images[i].detach().cpu().double().flatten().tolist()] for i in members}
    first = members[0]
    for i in members:
        for place, pixel in zip(places, pixels[i], strict=True):
            yield f"(assert (>= X{i}[{place}] {_number(_EXACT.subtract(pixel, radius))}))"
            yield f"(assert (<= X{i}[{place}] {_number(_EXACT.add(pixel, radius))}))"
    for i in members[1:]:
        for place, pixel, anchor in zip(places, pixels[i], pixels[first], strict=True):
            shift = _number(_EXACT.subtract(pixel, anchor))
            yield f"(assert (== X{i}[{place}] (+ X{first}[{place}] {shift})))"


def _violated(i: int, label: int, classes: int) -> str:
    return _join("or", [f"(>= Y{i}[0,{wrong}] Y{i}[0,{label}])" for wrong in range(classes) if wrong != label])


def _join(connective: str, parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({connective} {' '.join(parts)})"


def _number(value: Decimal) -> str:
    """All digits, no exponent, and always a point: a bare 0 would be an integer, which has another type."""
    text = format(_EXACT.normalize(value) if value else Decimal(0), "f")
    return text if "." in text else text + ".0"
