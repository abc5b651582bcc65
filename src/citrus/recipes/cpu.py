"""Settings for two CPU cores: ConvSmall, one random partner per image, few attack steps, minutes instead of hours."""

from dataclasses import replace

from citrus.attacks import Ascent
from citrus.methods import CWUAT, IBP, PGD, SABR, UAT, AnyMethod, Citrus, CitrusSI, Colt, Shared, Standard
from citrus.recipes.adversarial import expressive_methods
from citrus.recipes.tighter import tighter_methods
from citrus.training.config import TrainConfig

FEW_STEPS = Ascent(steps=5, step_size=0.5, decay=0.5, decay_at=(0.6,))

QUICKSTART = TrainConfig(
    data="digits",
    network="convsmall",
    method=Citrus(tau_ratio=0.7, group_size=0, partners=1, attack=FEW_STEPS),
    eps=0.1,
    epochs=30,
    batch_size=100,
    lr=5e-3,
    milestones=(22, 27),
    warmup_epochs=1,
    ramp_epochs=12,
    validation=500,
    test_images=500,
)

# setting: data, eps, tau/eps, epochs, milestones, ramp
SETTINGS: dict[str, tuple[str, float, float, int, tuple[int, int], int]] = {
    "mnist-0.1": ("mnist", 0.1, 0.6, 24, (17, 21), 8),
    "mnist-0.3": ("mnist", 0.3, 0.6, 20, (14, 18), 10),
    "cifar10-2-255": ("cifar10", 2 / 255, 0.1, 30, (22, 27), 12),
    "cifar10-8-255": ("cifar10", 8 / 255, 0.7, 30, (22, 27), 15),
}


def _setting(name: str) -> list[TrainConfig]:
    data, eps, tau, epochs, milestones, ramp = SETTINGS[name]
    shrink = 0.8 if name == "cifar10-2-255" else 1.0
    common = TrainConfig(
        data=data,
        network="convsmall",
        method=IBP(),
        eps=eps,
        epochs=epochs,
        batch_size=125,
        lr=2e-3,
        milestones=milestones,
        warmup_epochs=1,
        ramp_epochs=ramp,
        validation=5000,
    )
    certified: tuple[AnyMethod, ...] = (
        IBP(),
        SABR(tau_ratio=tau, shrink=shrink, attack=FEW_STEPS),
        Citrus(tau_ratio=tau, group_size=0, partners=1, attack=FEW_STEPS),
        CitrusSI(tau_ratio=tau, group_size=0, partners=1, attack=FEW_STEPS),
        *expressive_methods(name),
        *tighter_methods(tau, shrink, FEW_STEPS),
    )
    pgd = replace(common, method=PGD(FEW_STEPS), init="default", regularizer=0.0)
    colt = Colt(stability=0.005, stability_images=25, attack=FEW_STEPS)
    others: tuple[AnyMethod, ...] = (UAT(), CWUAT(), Shared(heap_size=5), colt)
    without_ramp = replace(pgd, warmup_epochs=0, ramp_epochs=0)
    return [
        replace(without_ramp, method=Standard()),
        pgd,
        *(replace(without_ramp, method=method) for method in others),
        *(replace(common, method=method) for method in certified),
    ]


CPU_RECIPES: dict[str, TrainConfig] = {
    "quickstart": QUICKSTART,
    **{f"{name}-{config.method.name}-cpu": config for name in SETTINGS for config in _setting(name)},
}
