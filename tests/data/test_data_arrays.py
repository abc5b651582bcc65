"""A user's own .npz and .safetensors files: every accepted form, and a clear sentence for every other."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors
from support.limits import little_memory

from citrus.data import load
from citrus.errors import CitrusError

RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (10, 3, 6, 8), dtype=np.uint8)
LABELS = np.arange(10) % 3


def save(path: Path, **arrays: np.ndarray) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **arrays)  # type: ignore[arg-type]  # its stub takes every keyword for allow_pickle
    else:
        save_file({key: np.ascontiguousarray(array) for key, array in arrays.items()}, path)
    return path


def split(images: np.ndarray, labels: np.ndarray = LABELS) -> dict[str, np.ndarray]:
    return {
        "train_images": images[:7],
        "train_labels": labels[:7],
        "test_images": images[7:],
        "test_labels": labels[7:],
    }


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("as_path", [str, Path])
def test_given_splits_are_kept(tmp_path: Path, suffix: str, as_path: type) -> None:
    splits = load(as_path(save(tmp_path / f"mine{suffix}", **split(BYTES))), validation=2)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (5, 2, 3)
    assert np.array_equal(splits.test.images.numpy(), BYTES[7:])
    assert splits.test.labels.tolist() == LABELS[7:].tolist()
    assert splits.info.name == splits.train.name == "mine"
    assert (splits.info.shape, splits.info.classes) == ((3, 6, 8), 3)
    assert (splits.info.mean, splits.info.std) == ((0.0,) * 3, (1.0,) * 3)
    assert (splits.info.flip, splits.info.pad) == (False, 0)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_one_set_is_split_80_20_always_alike(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"mine{suffix}", images=BYTES, labels=np.arange(10))
    first, again = load(path), load(path)
    assert (len(first.train), len(first.test)) == (8, 2)
    assert sorted(first.train.labels.tolist() + first.test.labels.tolist()) == list(range(10))
    assert first.test.labels.tolist() == again.test.labels.tolist()
    for part in (first.train, first.test):
        assert np.array_equal(part.images.numpy(), BYTES[part.labels.numpy()])


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (BYTES, BYTES),
        (BYTES.transpose(0, 2, 3, 1), BYTES),
        (BYTES[:, :1], BYTES[:, :1]),
        (BYTES[:, :1].transpose(0, 2, 3, 1), BYTES[:, :1]),
        (BYTES[:, 0], BYTES[:, :1]),
    ],
)
def test_every_layout_becomes_channels_first(tmp_path: Path, images: np.ndarray, expected: np.ndarray) -> None:
    splits = load(save(tmp_path / "mine.npz", **split(images)))
    assert np.array_equal(splits.train.images.numpy(), expected[:7])


@pytest.mark.parametrize("shape", [(10, 3, 6, 3), (10, 1, 8, 1), (10, 6, 8, 4), (10, 2, 8, 8), (10, 48), (10,)])
def test_an_unclear_layout_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(CitrusError, match="not clearly"):
        load(save(tmp_path / "mine.npz", **split(np.zeros(shape, np.uint8))))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats_that_are_bytes_over_255_come_back_exactly(tmp_path: Path, dtype: type) -> None:
    splits = load(save(tmp_path / "mine.npz", **split((BYTES / 255).astype(dtype))))
    assert np.array_equal(splits.test.images.numpy(), BYTES[7:])


def test_other_floats_are_rounded_to_the_nearest_level(tmp_path: Path) -> None:
    values = np.array([0, 0.49 / 255, 0.51 / 255, 1]).reshape(1, 2, 2).repeat(10, 0)
    splits = load(save(tmp_path / "mine.npz", **split(values)))
    assert splits.train.images[0].flatten().tolist() == [0, 0, 1, 255]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_safetensors_are_read(tmp_path: Path, dtype: torch.dtype) -> None:
    path = tmp_path / "half.safetensors"
    save_tensors({"images": torch.ones(5, 4, 4, dtype=dtype), "labels": torch.zeros(5, dtype=torch.int32)}, path)
    assert load(path).train.images.unique().tolist() == [255]


@pytest.mark.parametrize("bad", [1.001, -0.001, 255.0, np.nan, np.inf])
def test_floats_outside_0_1_are_refused(tmp_path: Path, bad: float) -> None:
    images = np.full((10, 4, 4), 0.5)
    images[3, 1, 2] = bad
    with pytest.raises(CitrusError, match=r"train_images .* must lie in \[0, 1\]"):
        load(save(tmp_path / "mine.npz", **split(images)))


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (BYTES.astype(np.int64), LABELS, "int64, but must be uint8"),
        (BYTES > 9, LABELS, "bool, but must be uint8"),
        (BYTES, LABELS.astype(np.float32), "train_labels are float32"),
        (BYTES, np.eye(10, dtype=np.int64), r"shape \(7, 10\)"),
        (BYTES, LABELS - 1, "go from -1"),
        (BYTES[:9], LABELS, "2 images but 3 labels"),
    ],
)
def test_unusable_arrays_are_refused(tmp_path: Path, images: np.ndarray, labels: np.ndarray, message: str) -> None:
    with pytest.raises(CitrusError, match=message):
        load(save(tmp_path / "mine.npz", **split(images, labels)))


def test_class_names_may_be_given(tmp_path: Path) -> None:
    names = ["ant", "bee", "cat", "dog"]
    assert load(save(tmp_path / "a.npz", **split(BYTES), classes=np.array(names))).train.classes == tuple(names)
    path = tmp_path / "a.safetensors"
    arrays = {key: np.ascontiguousarray(array) for key, array in split(BYTES).items()}
    save_file(arrays, path, metadata={"classes": json.dumps(names)})
    assert load(path).train.classes == tuple(names)
    assert load(path).info.classes == 4
    save_file(arrays, path, metadata={"classes": '"ant"'})
    with pytest.raises(CitrusError, match="JSON list"):
        load(path)
    with pytest.raises(CitrusError, match="with 2 classes"):
        load(save(tmp_path / "a.npz", **split(BYTES), classes=np.array(names[:2])))


def test_wrong_or_missing_keys_are_named(tmp_path: Path) -> None:
    with pytest.raises(CitrusError, match=r"the arrays images, train_labels, but must hold either train_images"):
        load(save(tmp_path / "a.npz", images=BYTES, train_labels=LABELS, other=LABELS))
    with pytest.raises(CitrusError, match="both kinds"):
        load(save(tmp_path / "a.npz", images=BYTES, labels=LABELS, **split(BYTES)))


def test_train_and_test_must_have_one_shape(tmp_path: Path) -> None:
    arrays = split(BYTES) | {"test_images": BYTES[7:, :, :5]}
    with pytest.raises(CitrusError, match=r"\(3, 6, 8\) but test images \(3, 5, 8\)"):
        load(save(tmp_path / "a.npz", **arrays))


def test_too_few_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CitrusError, match="one image only"):
        load(save(tmp_path / "a.npz", images=BYTES[:1], labels=LABELS[:1]))
    with pytest.raises(CitrusError, match="images is empty"):
        load(save(tmp_path / "a.npz", images=BYTES[:0], labels=LABELS[:0]))


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"broken{suffix}"
    with pytest.raises(CitrusError, match="does not exist"):
        load(path)
    content = save(path, **split(BYTES)).read_bytes()
    for damaged in (b"", b"garbage" * 9, content[:-100], content[:100]):
        path.write_bytes(damaged)
        with pytest.raises(CitrusError, match=f"broken{suffix} cannot be read"):
            load(path)


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    objects = np.array([{"a": 1}] * 10, dtype=object)
    with pytest.raises(CitrusError, match="plain arrays"):
        load(save(tmp_path / "a.npz", images=objects, labels=LABELS))


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_label_of_any_size_is_refused(tmp_path: Path, suffix: str) -> None:
    """Found by `make fuzz`: the names of 10^18 classes take a while."""
    labels = LABELS.astype(np.int64)
    labels[4] = 10**18
    with little_memory(), pytest.raises(CitrusError, match="but must be smaller than 100000"):
        load(save(tmp_path / f"mine{suffix}", **split(BYTES, labels)))
