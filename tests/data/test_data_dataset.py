"""What a Dataset guarantees, and that held-out images are fixed and disjoint."""

import pytest
import torch

from citrus.data import Dataset, as_float
from citrus.data.dataset import hold_out, permutation
from citrus.errors import CitrusError


def made(n: int = 10) -> Dataset:
    images = torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1).expand(n, 3, 4, 5).contiguous()
    return Dataset("made", images, torch.arange(n) % 2, ("even", "odd"))


def test_a_dataset_knows_its_size_and_shape() -> None:
    dataset = made()
    assert len(dataset) == 10
    assert dataset.shape == (3, 4, 5)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 1, 4, 4), torch.zeros(2, dtype=torch.int64), "float32"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), r"\(2, 4, 4\)"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2), "int64"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2, 1, dtype=torch.int64), r"\(2, 1\)"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64), "2 images but 3 labels"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 2]), "0 to 2"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([-1, 0]), "-1 to 0"),
    ],
)
def test_wrong_tensors_are_refused(images: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(CitrusError, match=message):
        Dataset("bad", images, labels, ("a", "b"))


def test_an_empty_dataset_is_a_dataset() -> None:
    assert len(made().subset([])) == 0
    assert made().subset([]).shape == (3, 4, 5)


@pytest.mark.parametrize("index", [[3, 1], torch.tensor([3, 1]), slice(1, 4, 2), torch.arange(10) == 3])
def test_a_subset_takes_images_and_labels_alike(index: torch.Tensor) -> None:
    part = made().subset(index)
    assert part.images[:, 0, 0, 0].remainder(2).tolist() == part.labels.tolist()
    assert part.classes == ("even", "odd")
    expected = torch.arange(10)[index].tolist()
    assert part.images[:, 0, 0, 0].tolist() == expected


def test_to_moves_both_tensors() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    moved = made().to(device)
    assert moved.images.device.type == moved.labels.device.type == device
    assert moved.classes == made().classes


def test_as_float_is_exact_division_by_255() -> None:
    levels = torch.arange(256, dtype=torch.uint8)
    scaled = as_float(levels)
    assert scaled.dtype == torch.float32
    assert scaled.tolist() == [torch.tensor(i / 255, dtype=torch.float32).item() for i in range(256)]
    assert levels[255] == 255  # the original is left alone
    with pytest.raises(CitrusError, match="uint8"):
        as_float(scaled)


def test_the_permutation_is_the_same_for_ever() -> None:
    # These numbers decide which images are held out: a change would leak test images into training.
    assert permutation(10).tolist() == [3, 9, 7, 1, 6, 5, 2, 0, 4, 8]
    assert permutation(1000).sort().values.tolist() == list(range(1000))


def test_held_out_images_are_disjoint_fixed_and_nested() -> None:
    dataset = made(100)
    kept, held = hold_out(dataset, 20)
    values = [part.images[:, 0, 0, 0].tolist() for part in (kept, held)]
    assert sorted(values[0] + values[1]) == list(range(100))
    assert values[0] == sorted(values[0])
    again = hold_out(dataset, 20)[1].images[:, 0, 0, 0].tolist()
    more = hold_out(dataset, 30)[1].images[:, 0, 0, 0].tolist()
    assert values[1] == again == more[:20]


def test_holding_out_nothing_changes_nothing() -> None:
    dataset = made()
    kept, held = hold_out(dataset, 0)
    assert kept is dataset
    assert len(held) == 0


@pytest.mark.parametrize("count", [-1, 10, 11])
def test_an_impossible_number_of_held_out_images_is_refused(count: int) -> None:
    with pytest.raises(CitrusError, match="from 0 to 9"):
        hold_out(made(), count)
