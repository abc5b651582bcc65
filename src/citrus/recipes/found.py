"""What our own search found: CITRUS for ConvSmall and CNN7 on a GPU, one random partner per image, few attack steps.

Tuned on 5,000 held-out training images; docs/results/gpu-log.md lists every run. MEASURED in recipes/__init__.py says
what a recipe gave on the test set.
"""

from citrus.attacks import Ascent
from citrus.methods import Citrus
from citrus.training.config import TrainConfig

FIVE_STEPS = Ascent(steps=5, step_size=0.5, decay=0.5, decay_at=(0.6,))

# setting: data, eps, tau/eps, factor on eps, learning rate, epochs, ramp
CONVSMALL: dict[str, tuple[str, float, float, float, float, int, int]] = {
    "mnist-0.1": ("mnist", 0.1, 0.6, 1.2, 2e-3, 45, 15),
    "mnist-0.3": ("mnist", 0.3, 0.7, 1.0, 2e-3, 45, 15),
    "cifar10-8-255": ("cifar10", 8 / 255, 0.7, 1.0, 1e-3, 60, 20),
}
CNN7: dict[str, tuple[str, float, float, float, float, int, int]] = {
    "cifar10-8-255": ("cifar10", 8 / 255, 0.5, 1.0, 1e-3, 60, 20),
}


def _recipe(network: str, setting: tuple[str, float, float, float, float, int, int]) -> TrainConfig:
    data, eps, tau, factor, lr, epochs, ramp = setting
    large = network == "cnn7"
    return TrainConfig(
        data=data,
        network=network,
        method=Citrus(tau_ratio=tau, group_size=0, partners=1, attack=FIVE_STEPS),
        eps=eps,
        eps_factor=factor,
        epochs=epochs,
        batch_size=250 if large else 125,
        lr=lr,
        lr_schedule="cosine",
        warmup_epochs=1,
        ramp_epochs=ramp,
        validation=5000,
        validate_every=10,
        precision="half" if large else "tf32",
        compile=large,
        memory_gb=40.0 if large else 20.0,
    )


FOUND_RECIPES: dict[str, TrainConfig] = {
    f"{name}-citrus-{network}": _recipe(network, setting)
    for network, settings in (("convsmall", CONVSMALL), ("cnn7", CNN7))
    for name, setting in settings.items()
}
