"""Settings of our own, with few partners and few attack steps: every method for ConvSmall on two CPU cores, in minutes
instead of hours, and what our search found for CITRUS with ConvSmall and CNN7 on a GPU.

That was tuned on held-out training images; results/runs.jsonl of the repository has every run. MEASURED in
recipes/__init__.py says what a recipe gave on the test set.
"""

from dataclasses import replace
from typing import Any, Literal

from citrus import methods
from citrus.attacks import Ascent
from citrus.methods import AnyMethod, Citrus, CitrusSI
from citrus.recipes.published import NO_RAMP, PLAIN, expressive_methods
from citrus.training.config import TrainConfig

ONE_STEP = Ascent(steps=1, step_size=2.0, decay=1.0, decay_at=(0.6,), keep="last")
"""From anywhere in the ball to one of its corners."""
LATENT_STEPS = Ascent(steps=5, step_size=0.8, decay_at=())

CPU: dict[str, Any] = {"network": "convsmall", "batch_size": 125, "lr": 2e-3, "warmup_epochs": 1, "validation": 5000}
CPU_DIGITS = CPU | {"data": "digits", "batch_size": 100, "lr": 5e-3, "validation": 500, "test_images": 500}
# data, eps, tau/eps, epochs, milestones, ramp
CPU_SETTINGS: dict[str, tuple[str, float, float, int, tuple[int, int], int]] = {
    "mnist-0.1": ("mnist", 0.1, 0.6, 24, (17, 21), 8),
    "mnist-0.3": ("mnist", 0.3, 0.6, 20, (14, 18), 10),
    "cifar10-2-255": ("cifar10", 2 / 255, 0.1, 30, (22, 27), 12),
    "cifar10-8-255": ("cifar10", 8 / 255, 0.7, 30, (22, 27), 15),
}

COMMON: dict[str, Any] = {"lr_schedule": "cosine", "warmup_epochs": 1, "validate_every": 10}
CONVSMALL = COMMON | {"network": "convsmall", "batch_size": 125, "validation": 5000, "memory_gb": 20.0}
CONVSMALL_MNIST = CONVSMALL | {"data": "mnist", "lr": 2e-3, "ramp_epochs": 15}
CONVSMALL_CIFAR = CONVSMALL | {"data": "cifar10", "batch_size": 124, "lr": 1e-3}
CONVSMALL_2 = CONVSMALL_CIFAR | {"validation": 1000, "init": "default", "regularizer": 0.0, "crop": 2}
CNN7 = COMMON | {"network": "cnn7", "precision": "half", "compile": True, "memory_gb": 40.0}
CNN7_MNIST = CNN7 | {"data": "mnist", "batch_size": 256, "lr": 1e-3, "crop": 1, "l1": 1e-6, "epochs": 30}
CNN7_CIFAR = CNN7 | {"data": "cifar10", "batch_size": 128, "lr": 7e-4, "crop": 2}


def _attack(steps: int, keep: Literal["best", "last"] = "last") -> Ascent:
    return Ascent(steps=steps, step_size=0.5, decay=0.5, decay_at=(0.6,), keep=keep)


def _one(tau_ratio: float, attack: Ascent, own: float = 0.0) -> Citrus:
    """One perturbation for each image: borrowed from anywhere in the batch, or with a chance of `own` its own."""
    return Citrus(tau_ratio=tau_ratio, group_size=0, partners=1, own=own, attack=attack)


def _pair(tau_ratio: float, linear: float = 0.0, linear_radius: float = 1.0) -> CitrusSI:
    """Each image is trained on its own perturbation and on its neighbour's."""
    method = CitrusSI(tau_ratio=tau_ratio, group_size=2, partners=1, attack=_attack(4))
    return replace(method, linear=linear, linear_radius=linear_radius)


def _recipe(common: dict[str, Any], eps: float, method: AnyMethod, **changes: Any) -> TrainConfig:
    return TrainConfig(**common | changes, eps=eps, method=method)


def _cpu_setting(name: str) -> list[TrainConfig]:
    data, eps, tau, epochs, milestones, ramp = CPU_SETTINGS[name]
    shrink, attack = 0.8 if name == "cifar10-2-255" else 1.0, _attack(5, "best")
    certified: tuple[AnyMethod, ...] = (
        methods.SABR(tau_ratio=tau, shrink=shrink, attack=attack),
        _one(tau, attack),
        CitrusSI(tau_ratio=tau, group_size=0, partners=1, attack=attack),
        *expressive_methods(name),
        methods.TAPS(latent_attack=LATENT_STEPS),
        methods.STAPS(tau_ratio=tau, shrink=shrink, attack=attack, latent_attack=LATENT_STEPS),
        methods.CrownIBP(),
    )
    colt = methods.Colt(stability=0.005, stability_images=25, attack=attack)
    plain = methods.UAT(), methods.CWUAT(), methods.Shared(heap_size=5), colt
    ibp = _recipe(CPU, eps, methods.IBP(), data=data, epochs=epochs, milestones=milestones, ramp_epochs=ramp)
    pgd = replace(ibp, **PLAIN, method=methods.PGD(attack))
    standard = replace(pgd, **NO_RAMP, method=methods.Standard())
    others = [replace(standard, method=method) for method in plain]
    return [standard, pgd, *others, ibp, *(replace(ibp, method=method) for method in certified)]


CPU_RECIPES: dict[str, TrainConfig] = {
    "quickstart": _recipe(
        CPU_DIGITS, 0.1, _one(0.7, _attack(5, "best")), epochs=30, milestones=(22, 27), ramp_epochs=12
    ),
    **{f"{name}-{config.method.name}-cpu": config for name in CPU_SETTINGS for config in _cpu_setting(name)},
}

FOUND_RECIPES: dict[str, TrainConfig] = {
    "mnist-0.1-citrus-convsmall": _recipe(
        CONVSMALL_MNIST, 0.1, _one(0.5, _attack(4)), validation=0, eps_factor=1.15, epochs=80, crop=1
    ),
    "mnist-0.3-citrus-convsmall": _recipe(CONVSMALL_MNIST, 0.3, _one(0.7, _attack(5, "best")), epochs=45),
    # Twice the radius, boxes of a twentieth of it, and torch's initialisation: intervals prove little, CROWN much more.
    "cifar10-2-255-citrus_si-convsmall": _recipe(
        CONVSMALL_2, 2 / 255, _pair(0.05), eps_factor=2.0, epochs=150, ramp_epochs=16
    ),
    # Three more epochs from there with linear bounds in the loss.
    "cifar10-2-255-citrus_si-linear-convsmall": _recipe(
        CONVSMALL_2 | {"start": "runs/cifar10-2-255-citrus_si-convsmall"},
        2 / 255,
        _pair(0.05, linear=0.3, linear_radius=1.25),
        warmup_epochs=0,
        epochs=3,
        lr=5e-4,
    ),
    # Without crops.
    "cifar10-8-255-citrus_si-convsmall": _recipe(
        CONVSMALL_CIFAR, 8 / 255, _pair(0.7), epochs=60, ramp_epochs=20, crop=0
    ),
    "mnist-0.1-citrus-cnn7": _recipe(CNN7_MNIST, 0.1, _one(0.4, _attack(3), own=0.5), eps_factor=1.15, ramp_epochs=10),
    "mnist-0.3-citrus-cnn7": _recipe(CNN7_MNIST, 0.3, _one(0.6, _attack(3), own=0.5), ramp_epochs=10),
    "cifar10-2-255-citrus-cnn7": _recipe(
        CNN7_CIFAR, 2 / 255, _one(0.15, _attack(3), own=0.5), eps_factor=1.5, epochs=80, ramp_epochs=30, l1=1e-6
    ),
    # Large boxes keep interval bounds tight; clean images in the loss bring back the accuracy that they cost.
    "cifar10-8-255-citrus-cnn7": _recipe(
        CNN7_CIFAR, 8 / 255, _one(0.8, ONE_STEP, own=0.5), clean_weight=0.3, epochs=300, ramp_epochs=60
    ),
    # 56 more epochs from there, from half the learning rate down to zero once more.
    "cifar10-8-255-citrus-longer-cnn7": _recipe(
        CNN7_CIFAR | {"start": "runs/cifar10-8-255-citrus-cnn7"},
        8 / 255,
        _one(0.8, ONE_STEP, own=0.5),
        warmup_epochs=0,
        lr=3.5e-4,
        regularizer=0.0,
        clean_weight=0.31,
        epochs=56,
    ),
}
