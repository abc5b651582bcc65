"""How far the values of a network on a box may be from those at its centre, and how much of that is rounding.

Backward substitution (substitution.py) is written around values x^ that were computed at the centre. With |x - x^| <= D
on the box and rows P over y = W x + w, in true arithmetic

    P (y - y^) = Q (x - x^) + (P W - Q) (x - x^) + P (W x^ + w - y^)      for the computed Q of P W and y^ of W x^ + w,

and the two last terms are at most |P| E with a vector E (rounding.py) that belongs to the image alone. `Deviations`
carries these vectors forward to the next ReLUs, whose lines are moved apart by them: where P meets the result of a
ReLU, the rows over its argument are no larger than P. So rounding costs no row anything but the distance of its lines.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from citrus.bounds.interval import Box
from citrus.bounds.rounding import TINY, beside_terms, gamma, shares, sum_share
from citrus.networks.operations import Add, Affine, Graph, Relu


class Deviations:
    """Of the values of a network for a batch of images, as far as the boxes of its ReLUs are known.

    `error[v]` bounds what all steps to value v since the last ReLUs may be off by; `apart[k]` is how far the lines of
    ReLU k are moved; `least` (batch,) is for underflow, and belongs to every row.
    """

    def __init__(self, graph: Graph, at_centre: Sequence[Tensor], radius: Tensor) -> None:
        self.graph, self.at_centre = graph, at_centre
        self.readers = Counter(j for node in graph.nodes for j in node.inputs)
        image = at_centre[0]
        self.reach: list[Tensor | None] = [radius.expand_as(image)]
        self.error = [self._of_sums(0, radius.expand_as(image))]
        self.apart: list[Tensor] = []
        self.least = image.new_zeros(len(image))

    def follow(self, boxes: Sequence[Box]) -> "Deviations":
        """Go on to the first ReLU whose box is not among these, which are all that are known by now."""
        for node in self.graph.nodes[len(self.error) - 1 :]:
            i = node.inputs[0]
            if isinstance(node.op, Relu):
                if len(self.apart) == len(boxes):
                    break
                self._relu(i, boxes[len(self.apart)])
            elif isinstance(node.op, Add):
                self._add(*node.inputs)
            else:
                self._affine(node.op, i)
        return self

    def reach_of(self, value: int) -> Tensor:
        """D: how far a value may be from the computed one. That of a ReLU's argument is known from its box."""
        found = self.reach[value]
        if found is None:
            node = self.graph.nodes[value - 1]
            assert not isinstance(node.op, Relu | Add)
            share = shares(node.op, self.graph.arithmetic, self.at_centre[0].dtype)
            found = node.op.magnitude(self.reach_of(node.inputs[0]))
            found = self.reach[value] = (found + self.error[value]) * (1 + share.backward)
        return found

    def _of_sums(self, value: int, reach: Tensor) -> Tensor:
        """Rows that come back to one value from several readers are added up, which rounds them."""
        count = self.readers[value]
        return gamma(count, reach.dtype) * reach if count > 1 else torch.zeros_like(reach)

    def _keep(self, reach: Tensor | None, error: Tensor) -> None:
        self.reach.append(reach)
        self.error.append(error)

    def _affine(self, op: Affine, i: int) -> None:
        value, reach, few = len(self.error), self.reach_of(i), gamma(0, self.at_centre[i].dtype)
        share = shares(op, self.graph.arithmetic, reach.dtype)
        self.least = self.least + share.least * (1 + reach.flatten(1).sum(1))
        # Both values at the centre were computed in float64, and rounded to the precision of the rows.
        lost = share.backward * reach + (share.forward + few) * self.at_centre[i].abs() + self.error[i]
        beside = beside_terms(op, share, reach + self.at_centre[i].abs())
        error = op.magnitude(lost) + beside + few * self.at_centre[value].abs()
        self._keep(None, error * (1 + share.backward))
        if self.readers[value] > 1:
            self.error[value] = self.error[value] + self._of_sums(value, self.reach_of(value))

    def _add(self, i: int, j: int) -> None:
        value = len(self.error)
        reach = self.reach_of(i) + self.reach_of(j)
        share = sum_share(self.graph.arithmetic, reach.dtype)
        error = self.error[i] + self.error[j] + share * (self.at_centre[value].abs() + reach)
        reach = reach + error
        self._keep(reach, error + self._of_sums(value, reach))

    def _relu(self, i: int, box: Box) -> None:
        """Where a ReLU is off, its line is 0 and true, and where it is on, nothing is computed at all."""
        z, few = self.at_centre[i], gamma(0, box.centre.dtype)
        away = ((box.centre - z).abs() + box.radius) * (1 + few)
        self.reach[i] = away
        lower, upper = box.lower, box.upper
        undecided = ~((lower >= 0) | (upper <= 0))
        own = torch.where(undecided, few * (away + z.abs()), 0.0)
        self.apart.append(torch.where(upper <= 0, 0.0, self.error[i] + own))
        self.least = self.least + TINY[away.dtype] * (1 + away.flatten(1).sum(1))
        y = z.relu()
        reach = torch.maximum(upper.relu() - y, y - lower.relu()) + few * (upper.relu() + y)
        self._keep(reach, self._of_sums(len(self.error), reach))
