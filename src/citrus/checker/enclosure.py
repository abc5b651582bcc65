"""What a network does to one image and its perturbations, in float64 with every rounding error accounted for.

Interval propagation and backward substitution once more, written to be read and sharing no code with `citrus.bounds`.
The network is the real function of its weights as they are stored; arithmetic.py says how far off a computed sum is.

Forward, a box l <= x <= u with |x| <= X goes through x -> W x + w to W c + w -+ (|W| r + E), where

    E = gamma (|W| X + |w|),    c and r the box's centre and radius.

Backward, P y >= Q x + ... is kept for coefficients Q as they were rounded: for y = W x + w and Q = fl(P W) the
difference |(P W - Q) x| is at most |P| E, so each step adds |P| E to `error`, with the same vector E. At a ReLU any
slope in [0, 1] gives a lower line; an upper line of any slope s lies above relu on [l, u] once its height is
max(-s l, (1 - s) u), because relu(z) - s z is convex. So a rounded slope costs nothing but its product with P.

NaN and infinity pass through everything and fail the comparison at the end.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product as pairs
from math import prod

import torch
from torch import Tensor

from citrus.checker.arithmetic import (
    TINY,
    TINY_32,
    UNIT,
    Corner,
    LinearForms,
    Network,
    ReluLines,
    beside,
    bias_of,
    columns_of,
    gamma,
    gamma_of_float32,
    mass_of,
    pixels_read,
    product,
    terms_of,
    transposed,
)
from citrus.networks.operations import Add, Affine, Conv, Flatten, Linear, Relu, Scale

Ends = tuple[Tensor, Tensor]
"""Lower and upper ends of boxes."""
CHUNK = 1 << 21  # numbers in the largest tensor of one chunk of rows: 16 MB stay near the processor
TILE = 4  # pixels along a side of a tile of a map


class Enclosure:
    """Boxes of every value of the network for all perturbations of one image, and planes under its margins.

    The boxes that enter the first `refined` ReLU layers are intersected with bounds by backward substitution (CROWN)
    with adaptive slopes: 1 where u > -l, else 0. Maps are cut into tiles for it; `tile` 0 takes them whole.
    """

    def __init__(self, network: Network, image: Tensor, eps: float, refined: int, tile: int = TILE) -> None:
        self.network, self.tile = network, tile
        self.image = image.detach().cpu().double()
        self.lower = [_below(self.image - eps)]  # of value i, without a batch axis
        self.upper = [_above(self.image + eps)]
        self.unit: list[Tensor] = []  # E of node k
        self.floor: list[Tensor] = []  # underflow of node k
        self.lines: dict[int, ReluLines] = {}
        for k, node in enumerate(network.nodes):
            i = node.inputs[0]
            if isinstance(node.op, Relu):
                # The interval bound of one affine map of the input is exact already.
                if len(self.lines) < refined and i and network.nodes[i - 1].inputs != (0,):
                    self._refine(i)
                self._relu(k, i)
            elif isinstance(node.op, Add):
                self._add(*node.inputs)
            else:
                self._affine(k, node.op, i)

    def size(self, value: int) -> Tensor:
        """X with |x| <= X."""
        return torch.maximum(self.lower[value].abs(), self.upper[value].abs())

    def _relu(self, k: int, i: int) -> None:
        lines = self.lines[k] = ReluLines.around(self.lower[i], self.upper[i])
        self.lower.append(self.lower[i].clamp(min=0))
        self.upper.append(self.upper[i].clamp(min=0))
        height = gamma(lines.height.numel()) * lines.height
        self.unit.append(gamma(1) * self.size(i) + height + TINY)
        self.floor.append(TINY * (1 + self.size(i).sum()))

    def _add(self, i: int, j: int) -> None:
        self.lower.append(_below(self.lower[i] + self.lower[j]))
        self.upper.append(_above(self.upper[i] + self.upper[j]))
        # Coefficients pass as they are; a program in float32 rounds the sum.
        rounds = gamma_of_float32(0) * (self.size(i) + self.size(j)) if self.network.rounds else 0 * self.size(i)
        self.lower[-1], self.upper[-1] = _below(self.lower[-1] - rounds), _above(self.upper[-1] + rounds)
        self.unit.append(rounds)
        self.floor.append(self.image.new_zeros(()))

    def _affine(self, k: int, op: Affine, i: int) -> None:
        shape, absolute = self.network.shapes[k + 1], self.network.absolute.nodes[k].op
        low, high, size = self.lower[i], self.upper[i], self.size(i)
        self.floor.append(TINY * (1 + size.sum()))
        assert not isinstance(absolute, Relu | Add)
        centre = (low + high) / 2
        radius = torch.maximum(high - centre, centre - low) * (1 + 8 * UNIT)
        spread, mass = product(absolute, torch.stack([radius, size]), shape)
        terms = terms_of(op)
        # The bias also meets the rows in one long sum: more terms than those of the map itself.
        weight = mass_of(op, shape)
        unit = gamma(terms) * mass + gamma(max(terms, prod(shape))) * weight
        if not isinstance(op, Flatten) and op.slack is not None:  # what folding changed
            stray = op.stray * size.sum() * (1 + gamma(size.numel()))
            unit = unit + (op.off * mass + stray + beside(op, op.slack, shape)) * (1 + 8 * UNIT)
        if self.network.rounds:
            unit = unit + gamma_of_float32(terms) * (mass + weight) + TINY_32
        middle = product(op, centre[None], shape)[0] + bias_of(op, shape)
        self.lower.append(middle - (spread + unit + self.floor[k]))
        self.upper.append(middle + (spread + unit + self.floor[k]))
        self.unit.append(unit + TINY)

    def _refine(self, value: int) -> None:
        """Bound each undecided neuron of a value from both sides by substitution, and keep the better of both boxes."""
        low, high = self.lower[value].flatten().clone(), self.upper[value].flatten().clone()
        for which, unit, corner in self._units(value, (low < 0) & (high > 0)):
            both = LinearForms.of(torch.cat([unit, -unit]), corner)
            below, above = self.least(self.substitute(value, both), 0).chunk(2)
            low[which] = torch.maximum(low[which], below)
            high[which] = torch.minimum(high[which], -above)
        self.lower[value], self.upper[value] = low.view_as(self.lower[value]), high.view_as(self.upper[value])

    def _units(self, value: int, chosen: Tensor) -> Iterator[tuple[Tensor, Tensor, Corner | None]]:
        """The chosen neurons (neuron,) of a value, chunk by chunk: their numbers, and rows that are 1 at one of them.

        Where only convolutions lead to a map, tile by tile: a neuron there sees few pixels, and its rows no others.
        """
        numbers = torch.arange(len(chosen)).view(self.network.shapes[value])
        largest = self.row_of_a_tile(value)
        tiles: list[tuple[Corner | None, Tensor]] = [(None, numbers)]
        if largest is not None:
            side, starts = self.tile, [range(0, pixels, self.tile) for pixels in numbers.shape[1:]]
            tiles = [((top, left), numbers[:, top : top + side, left : left + side]) for top, left in pairs(*starts)]
        for corner, tile in tiles:
            some = tile[chosen[tile]]
            for which in some.split(max(1, CHUNK // (2 * (largest or self.network.widest)))) if len(some) else ():
                yield which, _unit_rows(tile, which), corner

    def row_of_a_tile(self, value: int) -> int | None:
        """Numbers in the largest tensor that a row over a tile needs on its way back; None: tiles do not help."""
        largest, (height, width) = 0, (self.tile, self.tile)
        while value and self.tile:
            node = self.network.nodes[value - 1]
            if not isinstance(node.op, Conv | Relu | Scale):
                return None
            value = node.inputs[0]
            if isinstance(node.op, Conv):
                largest = max(largest, columns_of(node.op, (0, height, width)))
                read, shape = pixels_read(node.op, (height, width)), self.network.shapes[value]
                height, width = min(read[0], shape[1]), min(read[1], shape[2])
        return largest or None

    def substitute(self, value: int, rows: LinearForms, lines: Mapping[int, ReluLines] | None = None) -> LinearForms:
        """Carry lower bounds over a value back to lower bounds over the input; `lines` replace the own ones."""
        pending = {value: rows.values}
        for i in range(value, 0, -1):
            if i not in pending:
                continue
            rows = self.step(i - 1, replace(rows, values=pending.pop(i)), lines)
            for j in self.network.nodes[i - 1].inputs:
                if j not in pending:
                    pending[j] = rows.values
                    continue
                pending[j] = pending[j] + rows.values
                error = rows.error + 4 * UNIT * (pending[j].abs().flatten(1) @ self.size(j).flatten())
                rows = LinearForms(rows.values, rows.offset, error)
        return replace(rows, values=pending[0])

    def step(self, k: int, rows: LinearForms, lines: Mapping[int, ReluLines] | None = None) -> LinearForms:
        """From lower bounds over the result of node k to lower bounds over what it reads."""
        op, flat = self.network.nodes[k].op, rows.values.flatten(1)
        error = flat.abs() @ rows.seen(self.unit[k]).flatten() + self.floor[k]
        if isinstance(op, Add):
            return replace(rows, error=(rows.error + error) * (1 + 8 * UNIT))
        if isinstance(op, Relu):
            around = self.lines[k] if lines is None else lines[k]
            lower, upper, height = (rows.seen(t) for t in (around.lower, around.upper, around.height))
            values = rows.values * torch.where(rows.values >= 0, lower, upper)
            return rows.adding(values, (rows.values.clamp(max=0) * height).flatten(1).sum(1), error, rows.corner)
        shape = self.network.shapes[self.network.nodes[k].inputs[0]]
        values, corner = transposed(op, rows.values, shape, rows.corner)
        bias = rows.seen(bias_of(op, self.network.shapes[k + 1]))
        return rows.adding(values, flat @ bias.flatten(), error, corner)

    def least(self, rows: LinearForms, value: int) -> Tensor:
        """The least that rows over a value can be on its box, with all errors subtracted: (row,)."""
        flat = rows.values.flatten(1)
        low, high, size = (rows.seen(t).flatten() for t in (self.lower[value], self.upper[value], self.size(value)))
        amount = flat.clamp(min=0) @ low + flat.clamp(max=0) @ high
        total = rows.adding(rows.values, amount, gamma(flat.shape[1]) * (flat.abs() @ size))
        return total.offset - total.error * (1 + 8 * UNIT)

    def margins(self, label: int, wrong: Tensor) -> LinearForms:
        """The margins z_label - z_j over the network's result, for each j in `wrong`."""
        identity = torch.eye(self.network.shapes[-1][0], dtype=torch.float64)
        return LinearForms.of(identity[label] - identity[wrong])

    def interval_margins(self, label: int, wrong: Tensor) -> Tensor:
        """Lower bounds of margins on the boxes alone, multiplied into the last linear layer: (row,)."""
        rows, last = self.margins(label, wrong), len(self.network.nodes)
        if last and isinstance(self.network.nodes[-1].op, Linear):
            return self.least(self.step(last - 1, rows), self.network.nodes[-1].inputs[0])
        return self.least(rows, last)

    @property
    def last(self) -> Ends:
        """The box that enters the last ReLUs, flat."""
        value = self.network.nodes[self.network.relus[-1]].inputs[0]
        return self.lower[value].flatten(), self.upper[value].flatten()

    def planes(
        self,
        label: int,
        wrong: Tensor,
        slopes: Tensor | None = None,
        last: Ends | None = None,
        sides: Tensor | None = None,
    ) -> LinearForms:
        """Planes of margins over the perturbation: margin_j(delta) >= values . delta + offset - error.

        `slopes` (row, neuron) are the lower slopes of undecided ReLUs; None takes the adaptive ones. Given slopes,
        `last` may hold a box of the last ReLUs, (neuron,) each: the planes then hold at those delta at which the inputs
        of these ReLUs are inside it. `sides` (row, side, 2) are neurons, counted through all ReLUs, and 1 or 0: a plane
        then holds at those delta at which their inputs are >= 0, or <= 0.
        """
        parts = []
        for which in torch.arange(len(wrong)).split(max(1, CHUNK // self.network.widest)):
            clipped = None if sides is None else sides[which]
            lines = None if slopes is None else self._lines(slopes[which], last, clipped)
            rows = self.substitute(len(self.network.nodes), self.margins(label, wrong[which]), lines)
            parts.append(self._over_delta(rows))
        return LinearForms.joined(parts)

    def neuron_planes(self, which: Tensor) -> LinearForms:
        """Planes over the perturbation of inputs z of the last ReLUs: first under each z, then under each -z."""
        value, parts = self.network.nodes[self.network.relus[-1]].inputs[0], []
        numbers = torch.arange(prod(self.network.shapes[value])).view(self.network.shapes[value])
        for sign in (1, -1):
            for some in which.split(max(1, CHUNK // self.network.widest)):
                rows = LinearForms.of(sign * _unit_rows(numbers, some))
                parts.append(self._over_delta(self.substitute(value, rows)))
        return LinearForms.joined(parts)

    def _lines(self, slopes: Tensor, last: Ends | None, sides: Tensor | None) -> dict[int, ReluLines]:
        """Lines of every ReLU for each row of slopes.

        Lines on a box inside the own one are off by no more than the own ones (`unit`), for their heights are no
        greater; a box that was emptied and made a point is decided and has no height.
        """
        lines, first = {}, 0
        for k, given in self.network.split(slopes).items():
            own = self.lines[k]
            if last is not None and k == self.network.relus[-1]:
                own = ReluLines.around(last[0].view_as(own.upper), last[1].view_as(own.upper))
            if sides is not None:
                own = self._on_sides(k, sides, first)
            lines[k] = replace(own, lower=torch.where(own.undecided, given, own.lower))
            first += given[0].numel()
        return lines

    def _on_sides(self, k: int, sides: Tensor, first: int) -> ReluLines:
        """Lines of a ReLU, whose neurons are counted from `first` on, for rows that need hold on these sides only."""
        shape, value = self.network.shapes[k + 1], self.network.nodes[k].inputs[0]
        low, high = (ends.flatten().repeat(len(sides), 1) for ends in (self.lower[value], self.upper[value]))
        neuron, on = (part - start for part, start in zip(sides.unbind(-1), (first, 0), strict=True))
        row, side = ((neuron >= 0) & (neuron < low.shape[1])).nonzero(as_tuple=True)
        neuron, on = neuron[row, side], on[row, side] > 0
        for ends, mine, limit in ((low, on, torch.maximum), (high, ~on, torch.minimum)):
            at = row[mine], neuron[mine]
            ends[at] = limit(ends[at], ends.new_zeros(()))
        return ReluLines.around(low.view(-1, *shape), high.view(-1, *shape))

    def _over_delta(self, rows: LinearForms) -> LinearForms:
        """From rows over the input to rows over delta = input - image, flat."""
        flat, centre = rows.values.flatten(1), self.image.flatten()
        return rows.adding(flat, flat @ centre, gamma(flat.shape[1]) * (flat.abs() @ centre.abs()))


def _unit_rows(numbers: Tensor, which: Tensor) -> Tensor:
    """A row for each neuron of `which`, 1 where its number is and 0 elsewhere: (neuron, *shape)."""
    return (numbers == which.view(-1, *(1 for _ in numbers.shape))).double()


def _below(x: Tensor) -> Tensor:
    return torch.nextafter(x, torch.full_like(x, -torch.inf))


def _above(x: Tensor) -> Tensor:
    return torch.nextafter(x, torch.full_like(x, torch.inf))
