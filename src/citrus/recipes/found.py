"""What our own search found: CITRUS for ConvSmall and CNN7 on a GPU, few partners and few attack steps.

Tuned on held-out training images; results/runs.jsonl of the repository has every run. MEASURED in recipes/__init__.py
says what a recipe gave on the test set.
"""

from typing import Any, Literal

from citrus.attacks import Ascent
from citrus.methods import Citrus, CitrusSI
from citrus.training.config import TrainConfig


def _attack(steps: int, keep: Literal["best", "last"] = "last") -> Ascent:
    return Ascent(steps=steps, step_size=0.5, decay=0.5, decay_at=(0.6,), keep=keep)


ONE_STEP = Ascent(steps=1, step_size=2.0, decay=1.0, decay_at=(0.6,), keep="last")
"""From anywhere in the ball to one of its corners."""

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
CNN7: dict[str, Any] = COMMON | {"network": "cnn7", "precision": "half", "compile": True, "memory_gb": 40.0}
CNN7_CIFAR: dict[str, Any] = CNN7 | {"data": "cifar10", "batch_size": 128, "lr": 7e-4, "crop": 2}
CNN7_MNIST: dict[str, Any] = CNN7 | {
    "data": "mnist",
    "batch_size": 256,
    "lr": 1e-3,
    "crop": 1,
    "l1": 1e-6,
    "epochs": 30,
    "ramp_epochs": 10,
}


def _own_as_often(tau_ratio: float, attack: Ascent) -> Citrus:
    """One perturbation for each image of the batch: its own as often as a borrowed one."""
    return Citrus(tau_ratio=tau_ratio, group_size=0, partners=1, own=0.5, attack=attack)


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
    "mnist-0.1-citrus-cnn7": TrainConfig(**CNN7_MNIST, method=_own_as_often(0.4, _attack(3)), eps=0.1, eps_factor=1.15),
    "mnist-0.3-citrus-cnn7": TrainConfig(**CNN7_MNIST, method=_own_as_often(0.6, _attack(3)), eps=0.3),
    "cifar10-2-255-citrus-cnn7": TrainConfig(
        **CNN7_CIFAR,
        method=_own_as_often(0.15, _attack(3)),
        eps=2 / 255,
        eps_factor=1.5,
        epochs=80,
        ramp_epochs=30,
        l1=1e-6,
    ),
    # Large boxes keep interval bounds tight; clean images in the loss bring back the accuracy that they cost.
    "cifar10-8-255-citrus-cnn7": TrainConfig(
        **CNN7_CIFAR,
        method=_own_as_often(0.8, ONE_STEP),
        eps=8 / 255,
        clean_weight=0.3,
        epochs=300,
        ramp_epochs=60,
    ),
    # 56 more epochs from there, from half the learning rate down to zero once more.
    "cifar10-8-255-citrus-longer-cnn7": TrainConfig(
        **CNN7_CIFAR | {"warmup_epochs": 0, "lr": 3.5e-4},
        method=_own_as_often(0.8, ONE_STEP),
        start="runs/cifar10-8-255-citrus-cnn7",
        regularizer=0.0,
        eps=8 / 255,
        clean_weight=0.31,
        epochs=56,
    ),
}
