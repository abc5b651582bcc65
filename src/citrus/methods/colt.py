"""COLT (Balunovic and Vechev, ICLR 2020): adversarial training inside convex relaxations, layer after layer.

Stage 0 attacks images in their eps-box. In stage l the layers up to the l-th ReLU stand still, and the adversary moves
in the zonotope that contains everything this ReLU can answer: the points a verifier has to fear, whether or not an
image leads to them. Each stage starts from the loss of the one before, stage 0 from the clean loss, and changes over
to its own:    (1 - k) L_before + k L_now,    k rising from 0 to 1 in a share `mix` of the stage.

Where the authors estimate the zonotope's bounds by random projections, here they are exact: for ConvSmall on a CPU that
took a tenth of the time of their 50 projections.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from citrus.attacks import Ascent, ascend, uniform
from citrus.bounds.zonotope import Zonotope, enclose
from citrus.errors import CitrusError
from citrus.methods.base import Batch, Method, MethodLoss
from citrus.networks import Graph
from citrus.networks.operations import Conv, Linear


@dataclass(frozen=True)
class Colt(Method):
    """Latent adversarial examples in zonotopes. Layers that stand still get no gradient from this loss."""

    name: ClassVar[str] = "colt"
    limits: ClassVar = {
        **dict.fromkeys(("stages", "mix_steps"), "[1, inf)"),
        **dict.fromkeys(("eps_growth", "stability_growth"), "(0, inf)"),
        **dict.fromkeys(("stability", "stability_images", "l1"), "[0, inf)"),
        "mix": "[0, 1]",
    }

    stages: int = 3
    """Stages of equal length: attacks on the input, behind the first ReLU, behind the second, ..."""
    mix: float = 0.3
    """Share of a stage in which its loss takes over from the one before; the authors use 60 of 200 epochs."""
    mix_steps: int = 4
    """Values that the weight of the new loss takes meanwhile."""
    eps_growth: float = 1.1
    """Each earlier stage has a radius larger by this factor; the last one has eps."""
    stability: float = 0.0
    """Weight of sum relu(-l) relu(u) over the bounds of the next stage's ReLUs, which makes its zonotope tight."""
    stability_growth: float = 1.5
    """Factor on that weight from stage to stage."""
    stability_images: int = 0
    """Images of each batch that this costly term looks at, the first ones; 0 means all."""
    l1: float = 0.0
    """Weight of the absolute values of all weights but those that stand still, which the loop's own l1 would move."""
    attack: Ascent = field(default_factory=lambda: Ascent(steps=8, step_size=0.25, decay=1.0, decay_at=()))

    def check(self, batch_size: int) -> None:
        super().check(batch_size)
        if self.stability_images > batch_size:
            raise CitrusError(f"stability_images must lie in 0..{batch_size}, the batch, got {self.stability_images}.")

    def check_graph(self, graph: Graph) -> None:
        cuts = [0, *graph.relu_results]
        if self.stages > len(cuts):
            raise CitrusError(
                f"COLT with {self.stages} stages needs {self.stages - 1} ReLU layers, the network has {len(cuts) - 1}."
            )
        used = cuts[1 : self.stages]
        if any(min(node.inputs) < cut < i for cut in used for i, node in enumerate(graph.nodes, start=1)):
            raise CitrusError("COLT freezes a network layer by layer: branches that bypass a ReLU are not supported.")
        behind = graph.nodes[used[0] :] if used else ()
        if any(not node.op.weight.is_leaf for node in behind if isinstance(node.op, Conv | Linear)):
            raise CitrusError(
                "COLT freezes a network layer by layer, which BatchNorm undoes: its statistics depend on all layers "
                "before (take convsmall, smallcnn or mlp, or one stage)."
            )

    def stage(self, share: float) -> int:
        """Stage and part of its transition as one number."""
        layer = min(int(share * self.stages), self.stages - 1)
        within = share * self.stages - layer
        part = int(within / self.mix * self.mix_steps) if within < self.mix else self.mix_steps
        return layer * (self.mix_steps + 1) + part

    def loss(self, batch: Batch) -> MethodLoss:
        layer, part = divmod(batch.stage, self.mix_steps + 1)
        share = 1.0 if part == self.mix_steps else (part + 0.5) / self.mix_steps
        cuts = [0, *batch.graph.relu_results]
        frozen = batch.graph.map(Tensor.detach)
        graph = Graph(frozen.nodes[: cuts[layer]] + batch.graph.nodes[cuts[layer] :], batch.graph.input_shape)
        centre, radius = batch.box(batch.images, batch.eps * self.eps_growth ** (self.stages - 1 - layer))
        radius = radius.expand_as(centre)
        zonotope = enclose(frozen, cuts[layer], centre, radius)
        loss = share * self._latent_loss(batch, graph, zonotope)
        if share < 1 and layer:
            before = Zonotope(frozen, cuts[layer - 1], centre, radius, zonotope.lines[:-1])
            loss = loss + (1 - share) * self._latent_loss(batch, graph, before)
        elif share < 1:
            loss = loss + (1 - share) * batch.clean_loss
        if self.stability and layer + 1 < self.stages:
            weight = share * self.stability * self.stability_growth**layer
            few = zonotope.first(self.stability_images or len(batch.images))
            loss = loss + weight * _instability(graph, few, cuts[layer + 1])
        if self.l1:
            moving = [node.op.weight for node in graph.nodes[cuts[layer] :] if isinstance(node.op, Conv | Linear)]
            loss = loss + self.l1 * torch.stack([weight.abs().sum() for weight in moving]).sum()
        return MethodLoss(loss)

    def _latent_loss(self, batch: Batch, graph: Graph, zonotope: Zonotope) -> Tensor:
        """Cross-entropy at the worst point that the attack finds in the zonotope."""
        attacked = zonotope.graph.behind(zonotope.value)

        def objective(errors: Tensor, restart: int) -> tuple[Tensor, Tensor]:
            losses = F.cross_entropy(attacked(zonotope.point(errors)), batch.labels, reduction="none")
            return losses, losses

        start = partial(uniform, (len(batch.images), zonotope.size), 1.0, batch.images, batch.generator)
        errors = ascend(start, objective, 1.0, self.attack)
        return F.cross_entropy(graph.behind(zonotope.value)(zonotope.point(errors)), batch.labels)


def _instability(graph: Graph, zonotope: Zonotope, relu: int) -> Tensor:
    """Sum of relu(-l) relu(u) over the neurons of one ReLU layer, mean over images."""
    entering = graph.nodes[relu - 1].inputs[0]
    box = Zonotope(graph, entering, zonotope.centre, zonotope.radius, zonotope.lines).box()
    return ((-box.lower).relu() * box.upper.relu()).sum() / len(zonotope.centre)
