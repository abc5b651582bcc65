"""The VNN-LIB file says what the group property says: parsed by the reference parser and evaluated exactly."""

import itertools
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from citrus.errors import CitrusError
from citrus.networks.vnnlib import group_property, write_vnnlib

SHAPE, CLASSES, EPS = (1, 2, 2), 3, 0.1


@pytest.fixture
def group() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(4, *SHAPE, generator=generator), torch.tensor([0, 1, 2, 1])


def parse(text: str) -> Any:
    """By the parser of the VNN-LIB standard."""
    vnnlib = pytest.importorskip("vnnlib", reason="the VNN-LIB parser is not installed (pip install vnnlib)")
    return vnnlib.parse_query_string(text)


def holds(query: Any, values: dict[str, dict[tuple[int, ...], Fraction]]) -> bool:
    """Whether all assertions are true, in exact arithmetic."""

    def number(e: Any) -> Fraction:
        match type(e).__name__:
            case "Var":
                return values[e.name][tuple(e.indices)]
            case "Float":
                return Fraction(e.lexeme.strip())
            case "Plus":
                return sum(map(number, e.args), Fraction(0))
        raise AssertionError(f"an integer, or an operation we do not write: {e}")

    def truth(e: Any) -> bool:
        match type(e).__name__:
            case "And":
                return all(map(truth, e.args))
            case "Or":
                return any(map(truth, e.args))
            case "GreaterEqual":
                return number(e.lhs) >= number(e.rhs)
            case "LessEqual":
                return number(e.lhs) <= number(e.rhs)
            case "Equal":
                return number(e.lhs) == number(e.rhs)
        raise AssertionError(f"an operation we do not write: {e}")

    return all(truth(assertion.expr) for assertion in query.assertions)


def exact(values: Tensor) -> dict[tuple[int, ...], Fraction]:
    """A tensor of batch 1 as exact numbers by index."""
    places = itertools.product(*(range(n) for n in values.shape))
    return {(0, *place): Fraction(values[place].item()) for place in places}


def point(images: Tensor, deltas: list[Fraction], scores: Tensor, members: list[int]) -> dict[str, Any]:
    """What every copy reads and returns; deltas[i] is added to all pixels of image i."""
    values = {}
    for i in members:
        values[f"X{i}"] = {place: v + deltas[i] for place, v in exact(images[i].double()).items()}
        values[f"Y{i}"] = exact(scores[i])
    return values


def scores_for(labels: Tensor, violated: set[int]) -> Tensor:
    scores = torch.nn.functional.one_hot(labels, CLASSES).double()
    for i in violated:
        scores[i, (labels[i] + 1) % CLASSES] = 1.0  # a tie is a violation
    return scores


@pytest.mark.parametrize("survivors", [1, 2, 3, 4])
def test_count_means_at_least_so_many_violated(group: tuple[Tensor, Tensor], survivors: int) -> None:
    images, labels = group
    query = parse(group_property(images, labels, EPS, CLASSES, survivors=survivors))
    assert [n.equal_to for n in query.networks] == ["", "f0", "f0", "f0"]
    assert query.networks[3].inputs[0].shape == [1, *SHAPE]
    assert query.networks[3].outputs[0].shape == [1, CLASSES]
    for pattern in itertools.product([False, True], repeat=4):
        violated = {i for i, bad in enumerate(pattern) if bad}
        values = point(images, [Fraction(EPS)] * 4, scores_for(labels, violated), [0, 1, 2, 3])
        assert holds(query, values) == (4 - len(violated) < survivors)


def test_delta_is_shared_and_bounded(group: tuple[Tensor, Tensor]) -> None:
    images, labels = group
    query = parse(group_property(images, labels, EPS, CLASSES))
    scores, members, eps = scores_for(labels, {0, 1, 2, 3}), [0, 1, 2, 3], Fraction(EPS)
    tiny = Fraction(1, 2**80)
    assert holds(query, point(images, [eps] * 4, scores, members))
    assert not holds(query, point(images, [eps + tiny] * 4, scores, members))
    assert not holds(query, point(images, [-eps - tiny] * 4, scores, members))
    assert not holds(query, point(images, [eps, eps, eps - tiny, eps], scores, members))


def test_numbers_are_exact_decimals() -> None:
    images = torch.tensor([0.0, 1.0, 1e-30, 0.1]).view(4, 1, 1, 1)
    text = group_property(images, torch.zeros(4, dtype=torch.int64), "8/255", 2)
    numbers = re.findall(r"[ ](-?[0-9][^ )]*)", text.split("(assert", 1)[1])
    assert all(re.fullmatch(r"-?\d+\.\d+", n) for n in numbers if "," not in n)
    shifts = [Fraction(n) for n in re.findall(r"\(\+ X0\[0,0,0,0\] ([^)]*)\)", text)]
    assert shifts == [Fraction(v) for v in images.flatten().tolist()[1:]]


def test_written_file_is_parsed(group: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    images, labels = group
    write_vnnlib(tmp_path / "group.vnnlib", images, labels, "8/255", CLASSES, survivors=2)
    query = parse((tmp_path / "group.vnnlib").read_text())
    assert len(query.assertions) == 4 * 4 * 2 + 3 * 4 + 1
    assert [p.name for p in tmp_path.iterdir()] == ["group.vnnlib"]


def test_one_image_and_two_classes() -> None:
    text = group_property(torch.zeros(1, 1, 1, 1), torch.tensor([1]), 0, 2)
    assert text.endswith("(assert (>= Y0[0,0] Y0[0,1]))\n")
    parse(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"survivors": 0}, "survivors must lie in 1..4"),
        ({"survivors": 5}, "survivors must lie in 1..4"),
        ({"eps": 2}, "eps is in pixel units"),
        ({"classes": 1}, "at least two classes"),
        ({"classes": 2}, "Labels must lie in 0..1"),
    ],
)
def test_mistakes(group: tuple[Tensor, Tensor], options: dict[str, Any], message: str) -> None:
    with pytest.raises(CitrusError, match=re.escape(message)):
        group_property(*group, **({"eps": EPS, "classes": CLASSES} | options))


def test_too_many_subsets() -> None:
    with pytest.raises(CitrusError, match="184756 subsets, more than 5000"):
        group_property(torch.zeros(20, *SHAPE), torch.zeros(20, dtype=torch.int64), EPS, CLASSES, survivors=11)
