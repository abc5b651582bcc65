"""Settings of the methods that train on attacked images: the expressive losses, PGD, and the universal ones.

Expressive losses: De Palma et al. (ICLR 2024), as in their code; they give no Exp-IBP for MNIST, where CC-IBP's numbers
stand in. PGD: CTBench (Mao et al., ICML 2025), as in its scripts. UAT, CW-UAT and shared adversarial training were
published on other networks and without CNN7's schedule: their own attack (what is known of it) with PGD's schedule.
"""

from dataclasses import replace
from typing import Any

from citrus.attacks import Ascent
from citrus.methods import CCIBP, CWUAT, MTLIBP, PGD, UAT, AnyMethod, ExpIBP, Shared
from citrus.training.config import TrainConfig

# setting: epochs, milestones, training radius / eps, (alpha, L1) of MTL-IBP, CC-IBP, Exp-IBP
EXPRESSIVE: dict[str, tuple[int, tuple[int, int], float, tuple[tuple[float, float], ...]]] = {
    "mnist-0.1": (70, (50, 60), 2.0, ((1e-2, 1e-5), (0.1, 2e-6), (0.1, 2e-6))),
    "mnist-0.3": (70, (50, 60), 1.334, ((8e-2, 1e-6), (0.3, 3e-6), (0.3, 3e-6))),
    "cifar10-2-255": (160, (120, 140), 1.0, ((4e-3, 3e-6), (1e-2, 3e-6), (9.5e-2, 4e-6))),
    "cifar10-8-255": (260, (180, 220), 1.0, ((0.5, 1e-7), (0.5, 0.0), (0.5, 0.0))),
    "tinyimagenet-1-255": (160, (120, 140), 1.0, ((1e-2, 5e-5), (1e-2, 5e-5), (4e-2, 5e-5))),
}
# setting: epochs, milestones, epochs of the ramp, training radius / eps, attack steps, L1
ADVERSARIAL: dict[str, tuple[int, tuple[int, int], int, float, int, float]] = {
    "mnist-0.1": (70, (50, 60), 20, 2.0, 10, 1e-5),
    "mnist-0.3": (70, (50, 60), 20, 1.0, 5, 5e-6),
    "cifar10-2-255": (160, (120, 140), 80, 1.0, 8, 2e-5),
    "cifar10-8-255": (240, (200, 220), 120, 1.0, 10, 1e-6),
    "tinyimagenet-1-255": (160, (120, 140), 80, 1.0, 1, 1e-5),
}
EIGHT_STEPS = Ascent(steps=8, step_size=0.25, decay_at=())


def expressive_methods(name: str) -> tuple[AnyMethod, ...]:
    """The three losses of a setting: one step to a corner of the box, or eight in a wider one at CIFAR-10 2/255."""
    attack: dict[str, Any] = {"attack_factor": 2.1, "attack": EIGHT_STEPS} if name == "cifar10-2-255" else {}
    kinds: tuple[type[MTLIBP | CCIBP | ExpIBP], ...] = (MTLIBP, CCIBP, ExpIBP)
    return tuple(kind(alpha=alpha, **attack) for kind, (alpha, _) in zip(kinds, EXPRESSIVE[name][3], strict=True))


def expressive(name: str, ibp: TrainConfig) -> list[TrainConfig]:
    """From IBP's recipe: same data, batches, warm-up and regularisers."""
    epochs, milestones, factor, numbers = EXPRESSIVE[name]
    ramp = 20 if ibp.data == "mnist" else 80
    common = replace(ibp, epochs=epochs, milestones=milestones, ramp_epochs=ramp, eps_factor=factor, seed=100)
    methods = zip(expressive_methods(name), numbers, strict=True)
    return [replace(common, method=method, l1=l1) for method, (_, l1) in methods]


def adversarial(name: str, ibp: TrainConfig) -> list[TrainConfig]:
    """PGD with three restarts, and the universal methods at the plain radius from the first step on."""
    epochs, milestones, ramp, factor, steps, l1 = ADVERSARIAL[name]
    pgd = replace(
        ibp,
        method=PGD(Ascent(steps=steps, restarts=3, step_size=max(0.25, 2 / steps), decay_at=())),
        epochs=epochs,
        milestones=milestones,
        ramp_epochs=ramp,
        eps_factor=factor,
        l1=l1,
        init="default",
        regularizer=0.0,
        normalize=True,
        seed=123,
    )
    # A universal perturbation is not clipped. Of shared training the largest heap and the middle sigma are taken.
    plain = replace(pgd, warmup_epochs=0, ramp_epochs=0, eps_factor=1.0, l1=0.0, clip=False, seed=0)
    shared = replace(plain, method=Shared(heap_size=64), clean_weight=0.5)
    return [pgd, replace(plain, method=UAT()), replace(plain, method=CWUAT()), shared]
