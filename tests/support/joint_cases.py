"""Small instances of joint refinement, and ways to look for perturbations that its proofs say do not exist."""

import itertools

import numpy as np
import torch
from torch import Tensor, nn

from citrus.attacks.ascent import Ascent, ascend
from citrus.bounds import LinearSettings, crown, margin_rows
from citrus.bounds.margins import wrong_labels
from citrus.certify.refine.sets import Instance, Subset
from citrus.networks import Graph, graph
from support.helpers import CLASSES, PIXELS, Case, folded, images
from support.milp import solve

EPS = 0.1


def _deep() -> list[nn.Module]:
    body = [nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 8, 3, 2), nn.ReLU(), nn.Flatten()]
    return [*body, nn.Linear(32, 12), nn.ReLU(), nn.Linear(12, CLASSES)]


DEEP = Case("deep", _deep, 3)


def instance_of(net: Graph, x: Tensor, eps: float = EPS) -> Instance:
    """The images with the labels the network gives them."""
    labels = net(x).argmax(1)
    bounds = crown(net, x, eps, margin_rows(labels, net.classes), LinearSettings(upper=False))
    return Instance(net, x, labels, bounds.pre_activations, eps)


def small(case: Case = DEEP, count: int = 6, eps: float = EPS) -> Instance:
    return instance_of(folded(case), images(count), eps)


def mixed_subsets(instance: Instance) -> list[Subset]:
    """Subsets of one to four choices."""
    wrong = wrong_labels(instance.labels, instance.graph.classes).tolist()
    chosen = [(i, row[i % len(row)]) for i, row in enumerate(wrong)]
    other = [(i, row[(i + 1) % len(row)]) for i, row in enumerate(wrong)]
    pairs = list(itertools.combinations(chosen, 2))[:8]
    return [(chosen[0],), *pairs, tuple(chosen[:4]), (other[1],), tuple(other[2:5]), (chosen[1], other[2], chosen[3])]


def member_margins(instance: Instance, subset: Subset, deltas: Tensor) -> Tensor:
    """The margins of a subset's choices at each delta: (delta, member)."""
    columns = []
    for image, label in subset:
        scores = instance.graph(instance.images[image] + deltas)
        columns.append(scores[:, instance.labels[image]] - scores[:, label])
    return torch.stack(columns, 1)


def sampled(instance: Instance, count: int) -> Tensor:
    """Perturbations of the box, half of them corners."""
    generator = torch.Generator().manual_seed(5)
    deltas = 2 * torch.rand(count, *instance.graph.input_shape, generator=generator) - 1
    deltas[::2] = deltas[::2].sign()
    return deltas * instance.eps


def attack(instance: Instance, subset: Subset) -> Tensor:
    """Perturbations that lower the largest margin of a subset, from 20 starts."""

    def objective(delta: Tensor, restart: int) -> tuple[Tensor, Tensor]:
        worst = -member_margins(instance, subset, delta).amax(1)
        return worst, worst.detach()

    eps = instance.eps
    return ascend(lambda: sampled(instance, 20), objective, eps, Ascent(20))


def tiny(seed: int, eps: float) -> Instance:
    """Two pixels, so that a grid sees every perturbation."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Flatten(), nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)]
    net = nn.Sequential(*layers).requires_grad_(False).eval()
    for layer in (layers[1], layers[3], layers[5]):
        layer.weight *= 2.5  # type: ignore[operator]
    return instance_of(graph(net, (1, 1, 2)), torch.rand(5, 1, 1, 2, generator=generator), eps)


def triangle_program(instance: Instance, subset: Subset) -> float:
    """min over delta and hidden values of the largest margin of the subset, for a network of linear layers and ReLUs.

    Variables: delta, the outputs of both ReLU layers of every member, t.
    """
    (w1, b1), (w2, b2), (w3, b3) = (
        (n.op.weight.double().numpy(), n.op.bias.double().numpy())
        for n in instance.graph.nodes
        if hasattr(n.op, "weight") and n.op.weight.dim() == 2
    )
    widths = [len(b1), len(b2)]
    total = PIXELS + len(subset) * sum(widths) + 1
    low, high = np.zeros(total), np.full(total, np.inf)
    low[:PIXELS], high[:PIXELS], low[-1] = -instance.eps, instance.eps, -np.inf
    rows: list[np.ndarray] = []
    right: list[float] = []

    def below(row: np.ndarray, bound: float) -> None:
        rows.append(row)
        right.append(bound)

    for m, (image, label) in enumerate(subset):
        first = PIXELS + m * sum(widths)
        entering = np.zeros((widths[0], total))
        entering[:, :PIXELS] = w1
        offset = w1 @ instance.images[image].flatten().double().numpy() + b1
        for layer, start in enumerate((first, first + widths[0])):
            box = instance.boxes[layer]
            lower, upper = (t[image].double().numpy() for t in (box.lower, box.upper))
            for n in range(widths[layer]):
                out = np.zeros(total)
                out[start + n] = 1
                if upper[n] <= 0:
                    high[start + n] = 0
                    continue
                below(entering[n] - out, -offset[n])
                slope = 1.0 if lower[n] >= 0 else upper[n] / (upper[n] - lower[n])
                below(out - slope * entering[n], slope * (offset[n] - min(lower[n], 0)))
            if layer == 0:
                entering = np.zeros((widths[1], total))
                entering[:, start : start + widths[0]] = w2
                offset = b2
        row = np.zeros(total)
        truth = int(instance.labels[image])
        row[first + widths[0] : first + sum(widths)] = w3[truth] - w3[label]
        row[-1] = -1
        below(row, b3[label] - b3[truth])
    cost = np.zeros(total)
    cost[-1] = 1
    solver = solve(cost, (low, high), (np.array(rows), np.array(right)))
    return float(solver.getInfo().objective_function_value)


def pairs_of(instance: Instance) -> list[Subset]:
    wrong = wrong_labels(instance.labels, instance.graph.classes).tolist()
    choices = [(i, j) for i, row in enumerate(wrong) for j in row]
    return [pair for pair in itertools.combinations(choices, 2) if pair[0][0] != pair[1][0]]
