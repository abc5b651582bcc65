"""Certification as a cascade, cheapest proof first, for many groups at a time.

    result = certify(network, images, labels, eps="8/255", settings=CertifySettings(group_size=5))
    print(result.certified, result.attacked)       # percent: proved lower bound, attacked upper bound

Stages: clean prediction, intervals, linear bounds (CROWN), optimised slopes, the universal attack (upper bound and
witnesses), exact search over (image, wrong label) choices, and joint refinement of the sets that decide the count.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from citrus.attacks import Ascent
from citrus.bounds.chunks import memory_ran_out
from citrus.certify.groups import Grouping, form_groups
from citrus.certify.result import Certification, GroupResult, Verdict, verdict_of
from citrus.certify.single import Singles, prove_alone
from citrus.certify.together import Together, prove_together
from citrus.certify.verifiers import Intermediate, Verifier, pick
from citrus.errors import CitrusError
from citrus.inputs import check_images, parse_eps
from citrus.networks import Graph, graph
from citrus.networks.precision import true_float32


@dataclass(frozen=True)
class CertifySettings:
    """How to certify."""

    group_size: int = 5
    """Images that share one perturbation; 1 is ordinary certification."""
    grouping: Grouping = "correct"
    """dataset, correct or adaptive: see citrus.certify.groups."""
    verifier: str = "citrus"
    """citrus (all stages), racoon or zeng (the published systems)."""
    intermediate: Intermediate = "auto"
    """Boxes of the inner layers by crown, by interval (large networks), or auto."""
    budget: float = 10.0
    """Seconds per group for the search and the joint refinement."""
    attack: Ascent = field(default_factory=lambda: Ascent(steps=60, restarts=12))
    """The universal attack that gives the upper bound."""
    block: int = 0
    """Images that go through the cascade together, in whole groups; 0 chooses by device and network."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.group_size < 1 or self.block < 0 or not self.budget > 0:
            raise CitrusError(
                f"group_size must be at least 1, block not negative and budget positive, got {self.group_size}, "
                f"{self.block}, {self.budget}."
            )


@dataclass(frozen=True)
class BlockProof:
    """Everything that was found out about the groups of one block: rows, and what a certificate is made of."""

    rows: tuple[GroupResult, ...]
    groups: tuple[Tensor, ...]
    """Places in the data set."""
    singles: Singles | None
    together: tuple[Together, ...]


def certify(
    network: nn.Module | Graph,
    images: Tensor,
    labels: Tensor,
    eps: float | str,
    settings: CertifySettings = CertifySettings(),  # noqa: B008 - frozen
    on_block: Callable[[BlockProof], None] | None = None,
    skip: frozenset[int] = frozenset(),
) -> Certification:
    """Prove how many images of each group survive every shared perturbation of radius eps.

    `on_block` hears of each finished block. Groups whose numbers are in `skip` are left out of the result, as when an
    interrupted run goes on.
    """
    eps = parse_eps(eps)
    plain = network if isinstance(network, Graph) else graph(network.eval(), tuple(images.shape[1:]))
    plain = plain.map(Tensor.detach)
    check_images(images, labels, plain.classes, plain.input_shape)
    check_weights(plain)
    weights = next((v for node in plain.nodes for v in vars(node.op).values() if isinstance(v, Tensor)), images)
    images = images.to(weights.dtype)
    pick(settings.verifier, settings.intermediate, plain)
    seconds: dict[str, float] = {}
    rows: list[GroupResult] = []
    with true_float32(), torch.no_grad():
        right = classified_right(plain, images, labels)
        groups = list(enumerate(groups_of(plain, images, labels, eps, settings)))
        for block in _blocks(
            [(g, index) for g, index in groups if g not in skip], block_size(settings, plain, images.device)
        ):
            proof = _certify_block(plain, (images, labels, right), eps, settings, block, seconds)
            rows += proof.rows
            if on_block:
                on_block(proof)
    kind = settings.grouping
    return Certification(tuple(rows), len(images), eps, settings.group_size, kind, settings.verifier, seconds)


def check_weights(plain: Graph) -> None:
    for node in plain.nodes:
        for value in vars(node.op).values():
            if isinstance(value, Tensor) and not bool(torch.isfinite(value).all()):
                raise CitrusError(f"Layer {node.name!r} of the network has weights that are NaN or infinite.")


@torch.no_grad()
def classified_right(plain: Graph, images: Tensor, labels: Tensor) -> Tensor:
    """(n,)"""
    return torch.cat([plain(x).argmax(1) for x in images.split(500)]) == labels


def groups_of(plain: Graph, images: Tensor, labels: Tensor, eps: float, settings: CertifySettings) -> list[Tensor]:
    """The groups, as places in the data set. `adaptive` first asks which images are proved alone."""
    correct = classified_right(plain, images, labels)
    alone = None
    if settings.grouping == "adaptive":
        parts = []
        verifier = pick(settings.verifier, settings.intermediate, plain)
        size = block_size(settings, plain, images.device)
        for i in range(0, len(images), size):
            part = slice(i, i + size)
            parts.append(~prove_alone(plain, images[part], labels[part], eps, verifier).open.any(1))
        alone = torch.cat(parts)
    return form_groups(settings.grouping, settings.group_size, correct, alone)


CPU_BLOCK, GPU_BLOCK = 100, 1000
BYTES_PER_SLOPE = 32  # float32 slopes of every ReLU and row, their gradients and the optimiser's two moments, twice


def block_size(settings: CertifySettings, plain: Graph, device: torch.device) -> int:
    """Images of a block: as many as a quarter of a GPU's free memory holds the slopes of, a thousand at most."""
    if settings.block:
        return settings.block
    if device.type != "cuda":
        return CPU_BLOCK
    room = torch.cuda.mem_get_info(device)[0] // 4
    return max(1, min(GPU_BLOCK, room // (BYTES_PER_SLOPE * (plain.classes - 1) * plain.neurons)))


Numbered = tuple[int, Tensor]


def _blocks(groups: list[Numbered], size: int) -> Iterator[list[Numbered]]:
    """Whole groups, together at least `size` images."""
    block: list[Numbered] = []
    for entry in groups:
        block.append(entry)
        if sum(len(index) for _, index in block) >= size:
            yield block
            block = []
    if block:
        yield block


def _certify_block(
    plain: Graph,
    data: tuple[Tensor, Tensor, Tensor],
    eps: float,
    settings: CertifySettings,
    block: list[Numbered],
    seconds: dict[str, float],
) -> BlockProof:
    """All stages for some groups. Images that are misclassified count as lost and take no part."""
    started = time.perf_counter()
    images, labels, right = data
    index = torch.cat([where for _, where in block])
    x, y = images[index], labels[index]
    owner = torch.cat([torch.full_like(where, k) for k, (_, where) in enumerate(block)])
    verifier: Verifier = pick(settings.verifier, settings.intermediate, plain)
    try:
        singles = prove_alone(plain, x, y, eps, verifier, seconds, owner)
        budget = settings.budget * len(block)
        together = prove_together(plain, singles, owner, eps, verifier, settings.attack, budget, settings.seed, seconds)
    except (RuntimeError, MemoryError) as error:
        if not memory_ran_out(error):
            raise
        return _failed(block, right, f"out of memory: {error}")
    each = (time.perf_counter() - started) / len(block)
    rows = []
    for k, (number, where) in enumerate(block):
        found, mine = together[k], owner == k
        correct = int(singles.correct[mine].sum())
        stages = {**singles.stage_counts(mine), "search": found.by_search, "joint": found.by_joint}
        verdict = verdict_of(len(where), found.certified, found.attacked, found.timed_out)
        rows.append(
            GroupResult(
                *(number, tuple(where.tolist()), correct, found.certified, found.attacked, verdict),
                stages={name: count for name, count in stages.items() if count},
                seconds=round(each, 3),
            )
        )
    return BlockProof(tuple(rows), tuple(where for _, where in block), singles, tuple(together))


def _failed(block: list[Numbered], right: Tensor, note: str) -> BlockProof:
    """Nothing is proved, and nothing is known against the images that are classified right."""
    counts = [int(right[where].sum()) for _, where in block]
    rows = [
        GroupResult(number, tuple(where.tolist()), count, 0, count, Verdict.ERROR, note=note)
        for (number, where), count in zip(block, counts, strict=True)
    ]
    return BlockProof(tuple(rows), tuple(where for _, where in block), None, ())
