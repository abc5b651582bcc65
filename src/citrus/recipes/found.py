"""What our own search found: CITRUS for ConvSmall and CNN7 on a GPU, few partners and few attack steps.

Tuned on held-out training images; docs/results/gpu-log.md lists every run. MEASURED in recipes/__init__.py says
what a recipe gave on the test set.
"""

from typing import Any, Literal

from citrus.attacks import Ascent
from citrus.methods import Citrus, CitrusSI
from citrus.training.config import TrainConfig


def _attack(steps: int, keep: Literal["best", "last"] = "last") -> Ascent:
    return Ascent(steps=steps, step_size=0.5, decay=0.5, decay_at=(0.6,), keep=keep)


COMMON: dict[str, Any] = {"lr_schedule": "cosine", "warmup_epochs": 1, "validate_every": 10}
CONVSMALL: dict[str, Any] = COMMON | {"network": "convsmall", "batch_size": 125, "validation": 5000, "memory_gb": 20.0}
CONVSMALL_2: dict[str, Any] = CONVSMALL | {
    "data": "cifar10",
    "eps": 2 / 255,
    "batch_size": 124,
    "validation": 1000,
    "init": "default",
    "regularizer": 0.0,
    "crop": 2,
}
CNN7: dict[str, Any] = COMMON | {
    "network": "cnn7",
    "batch_size": 128,
    "lr": 7e-4,
    "epochs": 120,
    "ramp_epochs": 15,
    "crop": 1,
    "precision": "half",
    "compile": True,
    "memory_gb": 40.0,
}

FOUND_RECIPES: dict[str, TrainConfig] = {
    "mnist-0.1-citrus-convsmall": TrainConfig(
        **CONVSMALL | {"validation": 0},
        data="mnist",
        method=Citrus(tau_ratio=0.5, group_size=0, partners=1, attack=_attack(4)),
        eps=0.1,
        eps_factor=1.15,
        epochs=80,
        ramp_epochs=15,
        lr=2e-3,
        crop=1,
    ),
    "mnist-0.3-citrus-convsmall": TrainConfig(
        **CONVSMALL,
        data="mnist",
        method=Citrus(tau_ratio=0.7, group_size=0, partners=1, attack=_attack(5, "best")),
        eps=0.3,
        epochs=45,
        ramp_epochs=15,
        lr=2e-3,
    ),
    # Twice the radius, boxes of a twentieth of it, and torch's initialisation: intervals prove little, CROWN much more.
    "cifar10-2-255-citrus-convsmall": TrainConfig(
        **CONVSMALL_2,
        method=CitrusSI(tau_ratio=0.05, group_size=2, partners=1, attack=_attack(4)),
        eps_factor=2.0,
        epochs=150,
        ramp_epochs=16,
        lr=1e-3,
    ),
    # Three more epochs from there with linear bounds in the loss.
    "cifar10-2-255-citrus-linear-convsmall": TrainConfig(
        **CONVSMALL_2 | {"warmup_epochs": 0},
        method=CitrusSI(tau_ratio=0.05, group_size=2, partners=1, linear=0.3, linear_radius=1.25, attack=_attack(4)),
        start="runs/cifar10-2-255-citrus-convsmall",
        epochs=3,
        lr=5e-4,
    ),
    # An image is trained on its own perturbation as often as on its neighbour's, and without crops.
    "cifar10-8-255-citrus-convsmall": TrainConfig(
        **CONVSMALL | {"batch_size": 124},
        data="cifar10",
        method=CitrusSI(tau_ratio=0.7, group_size=2, partners=1, attack=_attack(4)),
        eps=8 / 255,
        epochs=60,
        ramp_epochs=20,
        lr=1e-3,
        crop=0,
    ),
    "cifar10-8-255-citrus-cnn7": TrainConfig(
        **CNN7,
        data="cifar10",
        method=Citrus(tau_ratio=0.47, group_size=0, partners=1, own=0.5, attack=_attack(3)),
        eps=8 / 255,
    ),
}
