"""What tiny networks truly do, in exact rational arithmetic: no float is rounded anywhere.

    steps, _ = steps_of(list(network), (1, 1, 2))                        # of an nn.Sequential, as exact matrices
    most = most_violated(steps, [exact(x) for x in images], labels, Fraction(eps))

A network of two inputs is piecewise linear in a perturbation delta of the square [-eps, eps]^2. The square is cut along
the lines where a ReLU changes, into convex polygons on which all values are affine in delta, and these are cut to where
a margin is <= 0. Corners are triples of integers (X, Y, W) for (X / W, Y / W), lines are triples (a, b, c) for
a x + b y + c; both grow with each cut, and are never rounded. Networks with more inputs are looked at on slices: all
inputs but two stay at a corner of the box.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from citrus.networks import Normalize

Triple = tuple[int, int, int]
Polygon = list[Triple]
"""Corners in order, with W > 0; a polygon may be a segment or a point."""
Matrix = list[list[Fraction]]
ROOT_BITS = 400


@dataclass(frozen=True)
class Step:
    """An affine map in exact numbers, or a ReLU (no matrix), or x + branch(x)."""

    matrix: Matrix | None = None
    bias: list[Fraction] | None = None
    branch: "tuple[Step, ...] | None" = None

    @property
    def size(self) -> int:
        assert self.bias is not None
        return len(self.bias)


@dataclass(frozen=True)
class Piece:
    """A polygon, the lines of which it is the side <= 0, and the values there as lines with a common denominator."""

    polygon: Polygon
    sides: tuple[Triple, ...]
    values: list[Triple]
    scale: int


def cut(polygon: Polygon, line: Triple) -> Polygon:
    """The closed part where the line is <= 0."""
    a, b, c = line
    signs = [a * x + b * y + c * w for x, y, w in polygon]
    if all(s <= 0 for s in signs):
        return polygon
    found: Polygon = []
    for here, there, s, t in zip(polygon, polygon[1:] + polygon[:1], signs, signs[1:] + signs[:1], strict=True):
        if s <= 0:
            found.append(here)
        if (s < 0 < t) or (t < 0 < s):
            weight, other = abs(t), abs(s)
            x, y, w = (weight * p + other * q for p, q in zip(here, there, strict=True))
            shared = math.gcd(x, y, w)
            found.append((x // shared, y // shared, w // shared))
    return found


def through(steps: Sequence[Step], pieces: list[Piece]) -> list[Piece]:
    for step in steps:
        if step.branch is not None:
            pieces = [_sum(piece, inner) for piece in pieces for inner in through(step.branch, [piece])]
        elif step.matrix is None:
            pieces = [part for piece in pieces for part in _relu(piece)]
        else:
            pieces = [_affine(piece, step) for piece in pieces]
    return pieces


def _affine(piece: Piece, step: Step) -> Piece:
    assert step.matrix is not None
    assert step.bias is not None
    entries = [v for row in step.matrix for v in row] + step.bias
    common = math.lcm(*(v.denominator for v in entries))
    values = []
    for row, shift in zip(step.matrix, step.bias, strict=True):
        whole = [v.numerator * (common // v.denominator) for v in row]
        a, b, c = (sum(w * value[k] for w, value in zip(whole, piece.values, strict=True)) for k in range(3))
        values.append((a, b, c + shift.numerator * (common // shift.denominator) * piece.scale))
    return Piece(piece.polygon, piece.sides, values, piece.scale * common)


def _sum(outer: Piece, inner: Piece) -> Piece:
    common = math.lcm(outer.scale, inner.scale)
    one, two = common // outer.scale, common // inner.scale
    values = [
        (one * a + two * d, one * b + two * e, one * c + two * f)
        for (a, b, c), (d, e, f) in zip(outer.values, inner.values, strict=True)
    ]
    return Piece(inner.polygon, inner.sides, values, common)


def _relu(piece: Piece) -> list[Piece]:
    pieces = [Piece(piece.polygon, piece.sides, [], piece.scale)]
    for line in piece.values:
        a, b, c = line
        grown = []
        for part in pieces:
            signs = [a * x + b * y + c * w for x, y, w in part.polygon]
            if max(signs) > 0:
                above = part.polygon if min(signs) >= 0 else cut(part.polygon, (-a, -b, -c))
                sides = part.sides if min(signs) >= 0 else (*part.sides, (-a, -b, -c))
                grown.append(Piece(above, sides, [*part.values, line], part.scale))
            if min(signs) < 0 or max(signs) == 0:
                under = part.polygon if max(signs) <= 0 else cut(part.polygon, line)
                sides = part.sides if max(signs) <= 0 else (*part.sides, line)
                grown.append(Piece(under, sides, [*part.values, (0, 0, 0)], part.scale))
        pieces = grown
    return pieces


def pieces_of(steps: Sequence[Step], image: list[Fraction], eps: Fraction) -> Iterator[list[Piece]]:
    """The pieces of the network around an image; of each slice, if it has more than two inputs. Every polygon of a
    slice is over the same two inputs for all images."""
    places = range(len(image))
    for x, y in combinations(places, 2) if len(image) > 1 else [(0, 0)]:
        for corner in product((-1, 1), repeat=max(0, len(image) - 2)):
            rest = iter(corner)
            shifted = [v if i in (x, y) else v + next(rest) * eps for i, v in enumerate(image)]
            scale = math.lcm(eps.denominator, *(v.denominator for v in shifted))
            values = []
            for i, v in enumerate(shifted):
                constant = v.numerator * (scale // v.denominator)
                values.append((scale if i == x else 0, scale if i == y and y != x else 0, constant))
            e, w = eps.numerator, eps.denominator
            square = [(-e, -e, w), (e, -e, w), (e, e, w), (-e, e, w)]
            yield through(steps, [Piece(square, (), values, scale)])


Region = tuple[Polygon, tuple[Triple, ...]]


def violated(pieces: Sequence[Piece], label: int, only: int | None = None) -> list[Region]:
    """Where some margin of the label is <= 0, or the one over label `only`."""
    found = []
    for piece in pieces:
        for j, other in enumerate(piece.values):
            margin = tuple(p - q for p, q in zip(piece.values[label], other, strict=True))
            if j != label and only in (None, j) and (polygon := cut(piece.polygon, margin)):  # type: ignore[arg-type]
                found.append((polygon, (*piece.sides, margin)))
    return found  # type: ignore[return-value]


def most_violated(steps: Sequence[Step], images: Sequence[list[Fraction]], labels: Sequence[int], eps: Fraction) -> int:
    """The most images that one perturbation violates (on any slice, if there are more than two inputs)."""
    most = 0
    for slices in zip(*(pieces_of(steps, image, eps) for image in images), strict=True):
        regions = [violated(pieces, label) for pieces, label in zip(slices, labels, strict=True)]
        most = max(most, deepest([r for r in regions if r]))
    return most


def deepest(regions: list[list[Region]], polygon: Polygon | None = None) -> int:
    """The most regions, one of each list, that have a point in common (and in `polygon`, if there is one)."""
    if not regions:
        return 0
    best = deepest(regions[1:], polygon)
    for own, sides in regions[0]:
        shared = own if polygon is None else polygon
        for side in sides if polygon is not None else ():
            shared = cut(shared, side)
            if not shared:
                break
        if shared and best < len(regions):
            best = max(best, 1 + deepest(regions[1:], shared))
    return best


def least_margin(steps: Sequence[Step], image: list[Fraction], label: int, wrong: int, eps: Fraction) -> Fraction:
    """The least that a margin is on the box (or on its slices)."""
    least = None
    for pieces in pieces_of(steps, image, eps):
        for piece in pieces:
            a, b, c = (p - q for p, q in zip(piece.values[label], piece.values[wrong], strict=True))
            for x, y, w in piece.polygon:
                value = Fraction(a * x + b * y + c * w, w * piece.scale)
                least = value if least is None else min(least, value)
    assert least is not None
    return least


# Layers in exact numbers.


def exact(values: Tensor) -> list[Fraction]:
    return [Fraction(v) for v in values.detach().double().flatten().tolist()]


def root(value: Fraction) -> Fraction:
    """The square root, to 400 bits behind the point."""
    return Fraction(math.isqrt((value.numerator << (2 * ROOT_BITS)) // value.denominator), 1 << ROOT_BITS)


def steps_of(layers: Sequence[nn.Module], shape: tuple[int, ...]) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """The exact steps of layers on values of this shape, and the shape of their result."""
    found: list[Step] = []
    for layer in layers:
        if isinstance(layer, nn.ReLU):
            found.append(Step())
        elif isinstance(layer, Skip):
            found.append(Step(branch=steps_of(list(layer.branch), shape)[0]))
        elif isinstance(layer, nn.Flatten):
            shape = (math.prod(shape),)
        else:
            step, shape = _step(layer, shape)
            found.append(step)
    return tuple(found), shape


class Skip(nn.Module):
    """x + branch(x)."""

    def __init__(self, *branch: nn.Module) -> None:
        super().__init__()
        self.branch = nn.Sequential(*branch)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def _step(layer: nn.Module, shape: tuple[int, ...]) -> tuple[Step, tuple[int, ...]]:
    size = math.prod(shape)
    unit = torch.eye(size, dtype=torch.float64).view(size, *shape)
    if isinstance(layer, nn.Linear):
        columns, bias = unit @ layer.weight.detach().double().T, layer.bias
    elif isinstance(layer, nn.Conv2d):  # a sum of one weight and zeros is exact
        columns = F.conv2d(unit, layer.weight.detach().double(), None, layer.stride, layer.padding)
        bias = layer.bias
    elif isinstance(layer, nn.AvgPool2d):
        assert isinstance(layer.kernel_size, tuple)
        ones = torch.ones(shape[0], 1, *layer.kernel_size, dtype=torch.float64)
        columns, bias = F.conv2d(unit, ones, None, layer.stride, layer.padding, groups=shape[0]), None
    else:
        return _diagonal(layer, shape), shape
    result = tuple(columns.shape[1:])
    matrix = [exact(row) for row in columns.flatten(1).T]
    if isinstance(layer, nn.AvgPool2d):
        matrix = [[v / math.prod(layer.kernel_size) for v in row] for row in matrix]  # type: ignore[arg-type]
    per_channel = [Fraction(0)] * result[0] if bias is None else exact(bias)
    shifts = [b for b in per_channel for _ in range(math.prod(result[1:]))]
    return Step(matrix, shifts), result


def _diagonal(layer: nn.Module, shape: tuple[int, ...]) -> Step:
    """BatchNorm with its running statistics, or normalisation."""
    if isinstance(layer, Normalize):
        factors = [1 / v for v in exact(layer.std)]
        shifts = [-m * f for m, f in zip(exact(layer.mean), factors, strict=True)]
    else:
        assert isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)
        assert layer.running_mean is not None
        assert layer.running_var is not None
        roots = [root(v + Fraction(layer.eps)) for v in exact(layer.running_var)]
        factors = [w / r for w, r in zip(exact(layer.weight), roots, strict=True)]
        parts = zip(exact(layer.bias), exact(layer.running_mean), factors, strict=True)
        shifts = [b - m * f for b, m, f in parts]
    repeat = math.prod(shape[1:])
    size = len(factors) * repeat
    matrix = [[factors[i // repeat] if i == j else Fraction(0) for j in range(size)] for i in range(size)]
    return Step(matrix, [s for s in shifts for _ in range(repeat)])
