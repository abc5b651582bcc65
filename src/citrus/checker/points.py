"""What a network answers at single points, in float64 with all rounding accounted for: who is right about an attack?"""

import torch
from torch import Tensor

from citrus.checker.arithmetic import Network
from citrus.checker.enclosure import Enclosure
from citrus.networks.operations import Graph


def margin_at(network: Graph, point: Tensor, label: int) -> tuple[float, float]:
    """Bounds of the least margin of a point (C, H, W): above 0 it is classified right, at or below 0 it is not."""
    boxes = Enclosure(Network(network), point, 0.0, refined=0)
    wrong = torch.tensor([j for j in range(network.classes) if j != label])
    low = boxes.interval_margins(label, wrong)
    high = torch.cat([-boxes.interval_margins(int(j), torch.tensor([label])) for j in wrong])
    return float(low.min()), float(high.min())
