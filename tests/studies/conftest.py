"""For tests of studies: blobs as a file of images, and entries that train in a moment."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.synthetic import blobs, config

from citrus.attacks import Ascent
from citrus.certify import CertifySettings
from citrus.studies import Entry


@pytest.fixture
def blobs_file(tmp_path: Path) -> str:
    """150 training and 20 test images."""
    parts = {"train": blobs(150, 1), "test": blobs(20, 3)}
    images = {f"{name}_images": part.images.numpy() for name, part in parts.items()}
    np.savez(tmp_path / "blobs.npz", **images, **{f"{name}_labels": p.labels.numpy() for name, p in parts.items()})
    return str(tmp_path / "blobs.npz")


@pytest.fixture
def make_entry(blobs_file: str) -> Callable[..., Entry]:
    """An entry by its method, certified on the groups of five that the attack after training sees."""

    def make(method: str, on: Any = "test", source: dict[str, Any] | None = None, **changes: Any) -> Entry:
        settings = CertifySettings(5, grouping="dataset", budget=0.05, attack=Ascent(steps=5, restarts=2))
        made = config(method, data=blobs_file, **changes)
        return Entry(method, made, (settings,), images=10, on=on, source=source or {})

    return make
