"""An attack that breaks a proof: a bug in Citrus, told as an error of its group or image, with both witnesses kept.

    citrus check OUT/citrus-0.1-n5-correct-broken/group-00012.safetensors     # shows them again

A file holds the images and labels of the group with their places in the data set (`index`), the perturbation `delta`,
and in its header what was claimed, at which radius, about which network. `certify_into` writes it, and `evaluate`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from torch import Tensor

from citrus.errors import CitrusError
from citrus.files import load_tensors, save_tensors
from citrus.networks.operations import Arithmetic


@dataclass(frozen=True)
class Alarm:
    """What was claimed about a group, and the perturbation that breaks it."""

    group: int
    """Its number, or the place of an image by itself."""
    claim: str
    eps: float
    index: Tensor
    images: Tensor
    labels: Tensor
    delta: Tensor
    arithmetic: Arithmetic
    network: str = ""
    """Where the network lies."""


def save_alarm(path: Path, alarm: Alarm) -> None:
    tensors = {name: getattr(alarm, name) for name in ("index", "images", "labels", "delta")}
    about = {name: getattr(alarm, name) for name in ("group", "claim", "eps", "arithmetic", "network")}
    save_tensors(path, tensors, {"kind": "alarm", **about})


def load_alarm(path: Path) -> Alarm:
    tensors, about = load_tensors(path)
    if about.pop("kind", None) != "alarm":
        raise CitrusError(f"{path} holds no broken proof.")
    try:
        alarm = Alarm(**{**about, **tensors})
        texts = all(isinstance(text, str) for text in (alarm.claim, alarm.network))
        fits = alarm.images.shape == (len(alarm.labels), *alarm.delta.shape) and alarm.index.shape == alarm.labels.shape
        if not texts or not fits or alarm.arithmetic not in get_args(Arithmetic) or not 0 <= alarm.eps <= 1:
            raise TypeError("what it holds does not fit together")
    except (TypeError, AttributeError) as error:
        raise CitrusError(f"{path} is damaged: {error}.") from error
    return alarm


def is_alarm(path: Path) -> bool:
    """Whether a file says of itself that it is one; a damaged one may be anything."""
    try:
        return path.is_file() and load_tensors(path)[1].get("kind") == "alarm"
    except CitrusError:
        return False
