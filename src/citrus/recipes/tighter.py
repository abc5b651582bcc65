"""Published settings of methods that are tighter than intervals: TAPS, STAPS, CROWN-IBP and COLT.

TAPS and STAPS: Mao et al. (NeurIPS 2023), as in the authors' code. Their L1 is a mean over the 7 layers, hence the
seventh, and counts biases too, which ours does not. They cut TinyImageNet to 56 pixels; here it keeps its 64. STAPS is
listed without a split: CTBench (ICML 2025) uses the one behind the last convolution. Its script for MNIST 0.1 forgets
Shi et al.'s initialisation, which is used here.
CROWN-IBP: the schedule of Shi et al. (NeurIPS 2021), whose code fuses the loss and ends in IBP. At CIFAR-10 2/255 the
linear bound stays to the end, as in Zhang et al. (ICLR 2020).
COLT: Balunovic and Vechev (ICLR 2020), as in the authors' two scripts, both for CIFAR-10; elsewhere that for 2/255
stands in. They train networks of their own without BatchNorm, which COLT cannot freeze: ConvSmall, with as many
convolutions as their network for 8/255, stands in for CNN7. Their SGD with momentum halves its learning rate every 10
epochs and starts each stage anew, a factor lower; here Adam lowers its own by that factor from stage to stage.
"""

from dataclasses import replace

from citrus.attacks import Ascent
from citrus.methods import STAPS, TAPS, AnyMethod, Colt, CrownIBP
from citrus.training.config import TrainConfig

# setting: TAPS: ReLU layers behind the split, L1; STAPS: tau/eps, ReLU shrinking, weight of the gradient, L1
TABLE: dict[str, tuple[int, float, float, float, float, float]] = {
    "mnist-0.1": (1, 0.0, 0.4, 1.0, 5.0, 2e-5),
    "mnist-0.3": (1, 0.0, 0.6, 1.0, 5.0, 2e-6),
    "cifar10-2-255": (5, 2e-6, 0.1, 0.8, 2.0, 2e-6),
    "cifar10-8-255": (1, 2e-6, 0.7, 1.0, 5.0, 2e-6),
    "tinyimagenet-1-255": (1, 0.0, 0.6, 1.0, 5.0, 1e-6),
}
# data: epochs, milestones, weight of the regularisers, seed
SCHEDULES: dict[str, tuple[int, tuple[int, int], float, int]] = {
    "mnist": (70, (50, 60), 0.5, 123),
    "cifar10": (161, (121, 141), 0.5, 1),
    "tinyimagenet": (80, (60, 70), 0.1, 1),
}
# COLT: batch, growth of eps towards earlier stages, stability, L1, factor on the learning rate per stage
COLT = {"cifar10-2-255": (100, 1.1, 0.005, 1e-5, 0.75), "cifar10-8-255": (150, 1.2, 0.003, 5e-6, 0.5)}
COLT_EPOCHS = 200  # per stage, of which 60 change over from the loss of the stage before
TEN_STEPS = Ascent(steps=10, step_size=0.4, decay_at=())
FIVE_STEPS = Ascent(steps=5, step_size=0.8, decay_at=())


def tighter(name: str, ibp: TrainConfig) -> list[TrainConfig]:
    """The three methods in one setting; they share batches, ramp and training radius with `ibp`, its recipe for IBP."""
    relus, l1, tau, shrink, scale, small_l1 = TABLE[name]
    epochs, milestones, regularizer, seed = SCHEDULES[ibp.data]
    taps = TAPS(classifier_relus=relus)
    staps = STAPS(tau_ratio=tau, shrink=shrink, gradient_scale=scale)
    if ibp.data == "tinyimagenet":
        staps = replace(staps, latent_attack=TEN_STEPS)
    common = replace(ibp, epochs=epochs, milestones=milestones, normalize=True, regularizer=regularizer, seed=seed)
    crown_ibp = CrownIBP(crown_end=1.0 if name == "cifar10-2-255" else 0.0)
    return [
        replace(common, method=taps, l1=l1 / 7),
        replace(common, method=staps, l1=small_l1 / 7),
        replace(ibp, method=crown_ibp),
    ]


def tighter_methods(tau_ratio: float, shrink: float, attack: Ascent) -> tuple[AnyMethod, ...]:
    """The three methods for a CPU: five latent steps."""
    return (
        TAPS(latent_attack=FIVE_STEPS),
        STAPS(tau_ratio=tau_ratio, shrink=shrink, attack=attack, latent_attack=FIVE_STEPS),
        CrownIBP(),
    )


def colt(name: str, common: TrainConfig) -> TrainConfig:
    """Three stages: the input, behind the first and behind the second convolution."""
    batch, growth, stability, l1, lr_factor = COLT.get(name, COLT["cifar10-2-255"])
    method = Colt(stages=3, mix=0.3, eps_growth=growth, stability=stability, stability_growth=1.5, l1=l1)
    return replace(
        common,
        network="convsmall",
        method=method,
        eps_factor=1.05,
        epochs=method.stages * COLT_EPOCHS,
        batch_size=batch,
        milestones=(COLT_EPOCHS, 2 * COLT_EPOCHS),
        lr_factor=lr_factor,
        warmup_epochs=0,
        ramp_epochs=0,
        clip_norm=0.0,
        init="default",
        regularizer=0.0,
        normalize=True,
        seed=100,
    )
