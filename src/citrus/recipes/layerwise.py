"""COLT's settings (Balunovic and Vechev, ICLR 2020), as in the authors' two scripts, both for CIFAR-10.

They train networks of their own without BatchNorm, which COLT cannot freeze: ConvSmall, with as many convolutions as
their network for 8/255, stands in for CNN7. What differs from them: their SGD with momentum halves its learning rate
every 10 epochs and starts each stage anew, a factor lower; here Adam lowers its own by that factor from stage to stage.
MNIST's settings are not in their scripts and TinyImageNet is not in their paper: those of CIFAR-10 2/255 stand in.
"""

from dataclasses import replace

from citrus.methods import Colt
from citrus.training.config import TrainConfig

EPOCHS = 200  # per stage, of which 60 change over from the loss of the stage before
# batch, growth of eps towards earlier stages, stability, L1, factor on the learning rate per stage
PUBLISHED = {"cifar10-2-255": (100, 1.1, 0.005, 1e-5, 0.75), "cifar10-8-255": (150, 1.2, 0.003, 5e-6, 0.5)}


def colt(name: str, common: TrainConfig) -> dict[str, TrainConfig]:
    """Three stages: the input, behind the first and behind the second convolution."""
    batch, growth, stability, l1, lr_factor = PUBLISHED.get(name, PUBLISHED["cifar10-2-255"])
    method = Colt(stages=3, mix=0.3, eps_growth=growth, stability=stability, stability_growth=1.5, l1=l1)
    config = replace(
        common,
        network="convsmall",
        method=method,
        eps_factor=1.05,
        epochs=method.stages * EPOCHS,
        batch_size=batch,
        milestones=(EPOCHS, 2 * EPOCHS),
        lr_factor=lr_factor,
        warmup_epochs=0,
        ramp_epochs=0,
        clip_norm=0.0,
        init="default",
        regularizer=0.0,
        normalize=True,
        seed=100,
    )
    return {f"{name}-colt": config}
