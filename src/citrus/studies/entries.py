"""One entry of a study: a named configuration, and the rows that training and certifying its network give."""

import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from citrus.certify import CertifySettings, certify_into
from citrus.certify.result import ALONE
from citrus.certify.settings import pick_verifier
from citrus.data import Splits, as_float
from citrus.errors import CitrusError, SoundnessError
from citrus.files import read_lines
from citrus.networks import graph
from citrus.studies.rows import Row
from citrus.training import Events, Stopped, TrainConfig, to_dict, train
from citrus.training.run import pick_device

LAST = ("epoch", "loss", "clean_loss", "robust_loss", "accuracy", "seconds")  # of the last epoch
FOUND = ("images", "clean", "attacked_images", "pgd", "universal")  # by the evaluation after training
PROVED = ("images", "correct", "certified", "attacked")  # by certification


@dataclass(frozen=True)
class Entry:
    """A named configuration, and how its network is measured."""

    name: str
    config: TrainConfig
    proofs: tuple[CertifySettings, ...] = ()
    images: int = 1000
    """Certified are the first so many."""
    on: Literal["test", "validation"] = "test"
    """Images that the network is measured on; held-out training images leave the test set unseen."""
    source: Row = field(default_factory=dict)
    """Where the configuration comes from, such as a recipe and what is set in it: part of every row."""

    def measured_on(self, splits: Splits) -> Splits:
        """Data whose test part is what the network is measured on; nothing else is looked at meanwhile."""
        test = splits.test if self.on == "test" else splits.validation
        return replace(splits, test=test, validation=splits.validation.subset([]))


def asked_of(settings: CertifySettings | Row) -> tuple[Any, ...]:
    """What tells the certifications of a network apart."""
    values = settings if isinstance(settings, dict) else vars(settings)
    return values["group_size"], values["grouping"], values["verifier"]


def train_entry(
    entry: Entry, folder: Path, splits: Splits, device: str, deadline: float, events: Events
) -> tuple[nn.Module, Row]:
    """The network and the row of its run; after the deadline no epoch begins, and `Stopped` keeps its state."""
    config, begun = entry.config, (folder / "config.json").exists()

    def on_epoch(row: Row) -> None:
        events.on_epoch(row)
        if time.time() > deadline and row["epoch"] + 1 < config.epochs:
            raise Stopped(f"{entry.name}: the time is over after epoch {row['epoch'] + 1} of {config.epochs}.")

    run = train(config, folder, splits=splits, device=device, resume=begun, events=replace(events, on_epoch=on_epoch))
    metrics, found = read_lines(folder / "metrics.jsonl")[0], run.evaluation
    assert found
    return run.network, {
        "on": entry.on,
        **{name: round(getattr(found, name), 4) for name in FOUND},
        "ibp": round(found.ibp_certified, 4),
        "train_seconds": round(sum(row["seconds"] for row in metrics), 3),
        "measure_seconds": round(found.seconds, 3),
        "last": {name: metrics[-1][name] for name in LAST},
        "config": to_dict(config),
    }


def certify_entry(
    entry: Entry, settings: CertifySettings, folder: Path, network: nn.Module, splits: Splits, device: str, run: Row
) -> Row:
    """The row of a certification; rows per group are in the run folder, so that it goes on after a stop."""
    data = splits.test.subset(slice(0, entry.images)).to(pick_device(device))
    plain = graph(network.to(data.images.device), splits.info.shape)
    if data.images.is_cuda:
        torch.cuda.reset_peak_memory_stats()
    found = certify_into(folder / "certify", plain, as_float(data.images), data.labels, entry.config.eps, settings)
    if found.errors:
        raise CitrusError(f"{found.errors} groups could not be certified: {folder / 'certify'} says why.")
    alone = sum(row.stages.get(stage, 0) for row in found.rows for stage in ALONE)
    row = {
        **{name: value for name, value in asdict(settings).items() if name != "block"},
        "intermediate": pick_verifier(settings.verifier, settings.intermediate, plain).linear.intermediate,
        "eps": found.eps,
        **{name: round(getattr(found, name), 4) for name in PROVED},
        "single": round(100 * alone / found.images, 4),
        "outcomes": found.images_by_outcome(),
        "groups": [row.certified for row in found.rows],
        "stages": found.stage_seconds,
        "seconds": round(sum(row.seconds for row in found.rows), 3),  # time before a stop included
        "memory_gb": torch.cuda.max_memory_allocated() / 2**30 if data.images.is_cuda else None,
    }
    if same_groups(run, row) and found.certified > run["universal"] + 1e-6:
        raise SoundnessError(f"{folder}: {found.certified} % are certified, an attack leaves {run['universal']} %.")
    return row


def same_groups(run: Row, proof: Row) -> bool:
    """The attack after training and a certification saw the same images in the same groups."""
    attack = (run["attacked_images"], run["config"]["group_size"], "dataset")
    return attack == (proof["images"], proof["group_size"], proof["grouping"])
