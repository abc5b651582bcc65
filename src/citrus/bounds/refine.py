"""Linear bounds of inner layers: only neurons that are undecided so far, tile by tile of a map, chunk by chunk.

A neuron of an early convolution looks at few pixels. Neurons are therefore taken in tiles of neighbouring pixels, so
that their rows live on small windows all the way back to the input.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from citrus.bounds.chunks import MemoryLimit, in_chunks
from citrus.bounds.interval import Box, checked_radius
from citrus.bounds.planes import added, lowest
from citrus.bounds.rounding import less
from citrus.bounds.substitution import Relaxation, Rows, footprint, substitute
from citrus.networks.operations import Add, Affine, Conv, Corner, Graph, Linear, Relu


@dataclass(frozen=True)
class Problem:
    """A network on a batch of boxes, and all its values at their centres.

    Boxes are computed in float64, by the network `wide`; rows in the precision of the images. `at_centre` are computed
    in float64 and rounded.
    """

    graph: Graph
    wide: Graph
    centre: Tensor
    radius: Tensor
    at_centre: tuple[Tensor, ...]
    budget: MemoryLimit
    box: Box
    """The input in float64."""

    @staticmethod
    def of(graph: Graph, centre: Tensor, radius: Tensor | float, memory: int | None) -> "Problem":
        """Check what the user gave, and run the network at the centres."""
        image, wide = centre.double(), graph.double()
        given = checked_radius(graph, image, radius.double() if isinstance(radius, Tensor) else radius).expand_as(image)
        box, values = Box(image, given), tuple(value.to(centre.dtype) for value in wide.values(image))
        return Problem(
            graph, wide, centre, box.around(centre.dtype).radius, values, MemoryLimit.of(memory, centre.device), box
        )


def affine_path(graph: Graph, value: int) -> list[Affine] | None:
    """The operations from the input to a value if they are one affine map: then its interval bound is exact."""
    path: list[Affine] = []
    while value:
        node = graph.nodes[value - 1]
        if isinstance(node.op, Relu | Add):
            return None
        path.insert(0, node.op)
        value = node.inputs[0]
    return path if sum(isinstance(op, Conv | Linear) for op in path) <= 1 else None


def refine(
    problem: Problem, value: int, box: Box, relaxed: Sequence[Relaxation], error: Tensor, intersect: bool
) -> Box:
    """A tighter box for a value, given the relaxations of the ReLUs before it and the error of the steps since."""
    undecided = ((box.lower < 0) & (box.upper > 0)).flatten(1)
    z, tiles = problem.at_centre[value], _tiles(problem, value, undecided)
    at_centre = torch.stack([less(sign * z, z.abs(), 0) - error for sign in (1, -1)], 1).flatten(2)
    found = [_refine_tile(problem, value, undecided, tile, relaxed, at_centre) for tile in tiles]
    if not found:
        return box
    images, neurons, *ends = (torch.cat(parts) for parts in zip(*found, strict=True))
    place, (low, high) = (images, neurons), (end.to(box.centre.dtype) for end in ends)
    if intersect:
        low = torch.maximum(low, box.lower.flatten(1)[place])
        high = torch.minimum(high, box.upper.flatten(1)[place])
    new = Box.between(low, high)
    centre = box.centre.flatten(1).index_put(place, new.centre)
    return Box(centre.view_as(box.centre), box.radius.flatten(1).index_put(place, new.radius).view_as(box.centre))


@dataclass(frozen=True)
class _Tile:
    """A window of a map, or the whole of a vector."""

    corner: Corner
    neurons: Tensor
    """The numbers of its neurons, in the shape of the window."""


def _tiles(problem: Problem, value: int, undecided: Tensor) -> Iterator[_Tile]:
    """Tiles that hold undecided neurons, as small as pays: a tile should be worth the dozen kernel calls it takes."""
    shape = problem.graph.shape_of(value)
    numbers = torch.arange(undecided.shape[1], device=undecided.device).view(shape)
    if len(shape) == 1:
        tiles = [_Tile((0, 0), numbers)]
    else:
        _, height, width = shape
        worth = 2**19 if undecided.device.type == "cpu" else 2**26
        density = 2 * int(undecided.sum()) / (height * width)
        side = 1
        while side < max(height, width) and density * side**2 * footprint(problem.graph, value, (side, side)) < worth:
            side *= 2
        tiles = [
            _Tile((top, left), numbers[:, top : top + side, left : left + side])
            for top in range(0, height, side)
            for left in range(0, width, side)
        ]
    some = undecided.any(0)
    yield from (tile for tile in tiles if bool(some[tile.neurons].any()))


def _refine_tile(
    problem: Problem, value: int, undecided: Tensor, tile: _Tile, relaxed: Sequence[Relaxation], at_centre: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(image, neuron, lower, upper) of the undecided neurons of a tile; `at_centre` (image, 2, neuron) bounds z and -z
    there from below."""
    graph, size = problem.graph, tile.neurons.numel()
    local = undecided[:, tile.neurons.flatten()]
    order = torch.arange(size, device=local.device)
    # Per image the undecided neurons by their place in the tile, filled up with `size`.
    chosen = torch.where(local, order, size).sort(1).values[:, : int(local.sum(1).max())]
    neurons = tile.neurons.flatten()[chosen.clamp(max=size - 1)]

    def work(images: slice, rows: slice) -> tuple[Tensor, ...]:
        which = chosen[images, rows]
        count = int((which < size).any(0).sum())
        if count == 0:
            empty = problem.centre.new_zeros(which.shape)
            return empty, empty
        start_value, start = _start(graph, value, which[:, :count], tile, problem.centre.dtype)
        places = neurons[images, rows][:, None, :count].expand(-1, 2, -1)
        own = at_centre[images].gather(2, places).flatten(1)
        both = Rows(torch.cat([start.values, -start.values], 1), start.corner)
        over_input, given = substitute(graph, start_value, both, [r.of_images(images) for r in relaxed])
        bounds = lowest(added(own, given), over_input, problem.radius[images])
        missing = (0, which.shape[1] - count)
        return F.pad(bounds[:, :count], missing), F.pad(-bounds[:, count:], missing)

    row_bytes = 6 * footprint(graph, value, tuple(tile.neurons.shape[1:])) * problem.centre.element_size()
    low, high = in_chunks((chosen.shape[0], chosen.shape[1]), row_bytes, problem.budget, work)
    real = chosen < size
    return real.nonzero()[:, 0], neurons[real], low[real], high[real]


def _start(graph: Graph, value: int, which: Tensor, tile: _Tile, dtype: torch.dtype) -> tuple[int, Rows]:
    """One row e_j per chosen neuron j, zero for filled places; for a linear layer its weights, one value earlier."""
    node = graph.nodes[value - 1]
    if isinstance(node.op, Linear):
        return node.inputs[0], Rows(F.pad(node.op.weight, (0, 0, 0, 1))[which])
    size = tile.neurons.numel()
    zeros = torch.zeros(*which.shape, size + 1, dtype=dtype, device=which.device)
    one_hot = zeros.scatter_(2, which[..., None], 1.0)[..., :size]
    return value, Rows(one_hot.reshape(*which.shape, *tile.neurons.shape), tile.corner)
