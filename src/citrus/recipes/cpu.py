"""Settings for two CPU cores: ConvSmall, one random partner per image, few attack steps, minutes instead of hours."""

from dataclasses import replace

import citrus.methods as methods
from citrus.attacks import Ascent
from citrus.recipes.published import NO_RAMP, PLAIN, expressive_methods
from citrus.training.config import TrainConfig

FEW_STEPS = Ascent(steps=5, step_size=0.5, decay=0.5, decay_at=(0.6,))
LATENT_STEPS = Ascent(steps=5, step_size=0.8, decay_at=())

QUICKSTART = TrainConfig(
    data="digits",
    network="convsmall",
    method=methods.Citrus(tau_ratio=0.7, group_size=0, partners=1, attack=FEW_STEPS),
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

# data, eps, tau/eps, epochs, milestones, ramp
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
        method=methods.IBP(),
        eps=eps,
        epochs=epochs,
        batch_size=125,
        lr=2e-3,
        milestones=milestones,
        warmup_epochs=1,
        ramp_epochs=ramp,
        validation=5000,
    )
    certified: tuple[methods.AnyMethod, ...] = (
        methods.IBP(),
        methods.SABR(tau_ratio=tau, shrink=shrink, attack=FEW_STEPS),
        methods.Citrus(tau_ratio=tau, group_size=0, partners=1, attack=FEW_STEPS),
        methods.CitrusSI(tau_ratio=tau, group_size=0, partners=1, attack=FEW_STEPS),
        *expressive_methods(name),
        methods.TAPS(latent_attack=LATENT_STEPS),
        methods.STAPS(tau_ratio=tau, shrink=shrink, attack=FEW_STEPS, latent_attack=LATENT_STEPS),
        methods.CrownIBP(),
    )
    colt = methods.Colt(stability=0.005, stability_images=25, attack=FEW_STEPS)
    others: tuple[methods.AnyMethod, ...] = (methods.UAT(), methods.CWUAT(), methods.Shared(heap_size=5), colt)
    pgd = replace(common, **PLAIN, method=methods.PGD(FEW_STEPS))
    without_ramp = replace(pgd, **NO_RAMP)
    return [
        replace(without_ramp, method=methods.Standard()),
        pgd,
        *(replace(without_ramp, method=method) for method in others),
        *(replace(common, method=method) for method in certified),
    ]


CPU_RECIPES: dict[str, TrainConfig] = {
    "quickstart": QUICKSTART,
    **{f"{name}-{config.method.name}-cpu": config for name in SETTINGS for config in _setting(name)},
}
