"""The loss of same-input and cross-input boxes: exactly what training met in its last epoch."""

from typing import Any

import pytest
import torch
from support.synthetic import config, splits
from torch import nn

from citrus.attacks import Ascent
from citrus.errors import CitrusError
from citrus.methods import IBP, Citrus, CitrusSI
from citrus.studies.losses import last_epoch_losses
from citrus.training import TrainConfig, Trainer

ATTACK = Ascent(steps=2, step_size=0.5)
CPU = torch.device("cpu")


def standing(method: Any, network: str, **changes: Any) -> TrainConfig:
    """Two epochs at full eps in which the weights do not move."""
    plain = {"warmup_epochs": 0, "ramp_epochs": 0, "milestones": (), "epochs": 2, "lr": 1e-12}
    return config(method=method, network=network, **(plain | changes))


def robust_loss_of_the_last_epoch(setting: TrainConfig, images: int) -> tuple[float, nn.Module]:
    trainer = Trainer(setting, splits(images, 0))
    *_, row = trainer.epochs()
    return row["robust_loss"], trainer.finish()


@pytest.mark.parametrize(
    ("network", "size", "batch", "images", "clip"),
    [("mlp", 5, 10, 60, False), ("mlp", 0, 6, 57, True), ("cnn7", 3, 6, 12, False)],
)
def test_it_is_what_the_training_loop_minimised(network: str, size: int, batch: int, images: int, clip: bool) -> None:
    """CITRUS is the mean of the cross-input boxes, with same-input boxes that of all: two runs give both parts."""
    settings = {"group_size": size, "attack": ATTACK}
    cross = standing(Citrus(**settings), network, batch_size=batch, clip=clip)
    both = standing(CitrusSI(**settings), network, batch_size=batch, clip=clip)
    of_cross, trained = robust_loss_of_the_last_epoch(cross, images)
    of_both, _ = robust_loss_of_the_last_epoch(both, images)
    losses = last_epoch_losses(trained, cross, splits(images, 0), CPU)
    boxes = (size or batch) - 1
    same, cross_sum = (sum(v) / len(v) for v in (losses["same"], losses["cross_sum"]))
    assert len(losses["same"]) == images // batch
    assert cross_sum / boxes == pytest.approx(of_cross, rel=1e-4)
    assert (same + cross_sum) / (boxes + 1) == pytest.approx(of_both, rel=1e-4)
    for most, total in zip(losses["cross_max"], losses["cross_sum"], strict=True):
        assert total / boxes <= most <= total


def test_pairs_have_one_cross_input_box() -> None:
    setting = standing(Citrus(group_size=2, attack=ATTACK), "mlp")
    losses = last_epoch_losses(Trainer(setting, splits()).finish(), setting, splits(), CPU)
    assert losses["cross_max"] == pytest.approx(losses["cross_sum"])


@pytest.mark.parametrize("method", [IBP(), Citrus(group_size=5, k=3, attack=ATTACK)])
def test_methods_without_such_boxes(method: Any) -> None:
    setting = standing(method, "mlp")
    with pytest.raises(CitrusError, match="Only CITRUS with k = 2"):
        last_epoch_losses(nn.Identity(), setting, splits(), CPU)
