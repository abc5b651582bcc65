"""Linear bounds of inner layers: only neurons that are undecided so far, tile by tile of a map, chunk by chunk.

A neuron of an early convolution looks at few pixels. Neurons are therefore taken in tiles of neighbouring pixels, so
that their rows live on small windows all the way back to the input.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from citrus.bounds.chunks import MemoryLimit, in_chunks
from citrus.bounds.interval import Box
from citrus.bounds.substitution import Relaxation, Rows, concretise, footprint, substitute
from citrus.networks.operations import Add, Affine, Conv, Corner, Graph, Linear, Relu


@dataclass(frozen=True)
class Problem:
    """A network on a batch of boxes, and all its values at their centres."""

    graph: Graph
    centre: Tensor
    radius: Tensor
    at_centre: tuple[Tensor, ...]
    budget: MemoryLimit

    def select(self, index: Tensor) -> "Problem":
        """Some images, possibly repeated."""
        at_centre = tuple(v[index] for v in self.at_centre)
        return Problem(self.graph, self.centre[index], self.radius[index], at_centre, self.budget)

    def detach(self) -> "Problem":
        graph, at_centre = self.graph.map(Tensor.detach), tuple(v.detach() for v in self.at_centre)
        return Problem(graph, self.centre.detach(), self.radius.detach(), at_centre, self.budget)


def select_box(box: Box, index: Tensor) -> Box:
    return Box(box.centre[index], box.radius[index])


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


def refine(problem: Problem, value: int, box: Box, sides: Sequence[list[Relaxation]], intersect: bool) -> Box:
    """A tighter box for a value; `sides` are the relaxations of the ReLUs before it, for both bounds or for each."""
    lower, upper = box.lower, box.upper
    undecided = (lower < 0) & (upper > 0)
    found = [_refine_tile(problem, value, undecided, tile, sides) for tile in _tiles(problem, value, undecided)]
    found = [part for part in found if part is not None]
    if not found:
        return box
    images, neurons, low, high = (torch.cat(parts) for parts in zip(*found, strict=True))
    place = (images, neurons)
    if intersect:
        low = torch.maximum(low, lower.flatten(1)[place])
        high = torch.minimum(high, upper.flatten(1)[place])
    centre = box.centre.flatten(1).index_put(place, (low + high) / 2)
    radius = box.radius.flatten(1).index_put(place, ((high - low) / 2).clamp(min=0))
    return Box(centre.view_as(lower), radius.view_as(lower))


@dataclass(frozen=True)
class _Tile:
    """A window of a map; for a vector the whole of it."""

    corner: Corner
    shape: tuple[int, ...]

    @property
    def size(self) -> tuple[int, int]:
        return (self.shape[1], self.shape[2]) if len(self.shape) == 3 else (0, 0)


def _tiles(problem: Problem, value: int, undecided: Tensor) -> Iterator[_Tile]:
    """Tiles as small as pays: a tile's work should be worth the dozen kernel calls it takes."""
    shape = problem.graph.shape_of(value)
    if len(shape) == 1:
        yield _Tile((0, 0), shape)
        return
    _, height, width = shape
    worth = 2**19 if undecided.device.type == "cpu" else 2**26
    density = 2 * int(undecided.sum()) / (height * width)
    side = 1
    while side < max(height, width):
        if density * side**2 * footprint(problem.graph, value, (side, side)) >= worth:
            break
        side *= 2
    for top in range(0, height, side):
        for left in range(0, width, side):
            yield _Tile((top, left), (shape[0], min(side, height - top), min(side, width - left)))


def _refine_tile(
    problem: Problem, value: int, undecided: Tensor, tile: _Tile, sides: Sequence[list[Relaxation]]
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """(image, neuron, lower, upper) of the undecided neurons of a tile."""
    graph = problem.graph
    local = undecided
    if len(tile.shape) == 3:
        (top, left), (_, height, width) = tile.corner, tile.shape
        local = undecided[..., top : top + height, left : left + width]
    chosen, neurons = _chosen(local.flatten(1), tile, undecided.shape)
    size = local[0].numel()
    if chosen.shape[1] == 0:
        return None

    def work(images: slice, rows: slice) -> tuple[Tensor, ...]:
        which = chosen[images, rows]
        count = int((which < size).any(0).sum())
        if count == 0:
            empty = problem.centre.new_zeros(which.shape)
            return empty, empty
        start_value, start = _start(graph, value, which[:, :count], tile, problem.centre.dtype)
        at_centre = problem.at_centre[value].flatten(1)[images].gather(1, neurons[images, rows][:, :count])
        signs = [1, -1]
        if len(sides) == 1:  # both bounds in one pass
            start = Rows(torch.cat([start.values, -start.values], 1), start.corner)
            at_centre = torch.cat([at_centre, -at_centre], 1)
            signs = [1]
        bounds = []
        for sign, relaxed in zip(signs, sides, strict=True):
            part = [r.part(images, slice(None)) for r in relaxed]
            over_input, given = substitute(graph, start_value, Rows(sign * start.values, start.corner), part)
            bounds.append(sign * at_centre + given - concretise(over_input, problem.radius[images]))
        low, high = torch.cat(bounds, 1).split(count, 1)
        missing = (0, which.shape[1] - count)
        return F.pad(low, missing), F.pad(-high, missing)

    row_bytes = 6 * footprint(graph, value, tile.size) * problem.centre.element_size()
    low, high = in_chunks((chosen.shape[0], chosen.shape[1]), row_bytes, problem.budget, work)
    real = chosen < size
    images = torch.arange(len(chosen), device=chosen.device)[:, None].expand_as(chosen)
    return images[real], neurons[real], low[real], high[real]


def _chosen(local: Tensor, tile: _Tile, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Per image the undecided neurons of a tile, filled up with `size`; and where they are in the whole value."""
    size = local.shape[1]
    order = torch.arange(size, device=local.device)
    most = int(local.sum(1).max()) if len(local) else 0
    chosen = torch.where(local, order, size).sort(1).values[:, :most]
    inside = chosen.clamp(max=size - 1)
    if len(tile.shape) == 1:
        return chosen, inside
    _, height, width = tile.shape
    channel, pixel = inside // (height * width), inside % (height * width)
    row, column = tile.corner[0] + pixel // width, tile.corner[1] + pixel % width
    return chosen, (channel * shape[-2] + row) * shape[-1] + column


def _start(graph: Graph, value: int, which: Tensor, tile: _Tile, dtype: torch.dtype) -> tuple[int, Rows]:
    """One row e_j per chosen neuron j, zero for filled places; for a linear layer its weights, one value earlier."""
    node = graph.nodes[value - 1]
    if isinstance(node.op, Linear):
        return node.inputs[0], Rows(F.pad(node.op.weight, (0, 0, 0, 1))[which])
    size = math.prod(tile.shape)
    zeros = torch.zeros(*which.shape, size + 1, dtype=dtype, device=which.device)
    one_hot = zeros.scatter_(2, which[..., None], 1.0)[..., :size]
    return value, Rows(one_hot.reshape(*which.shape, *tile.shape), tile.corner)
