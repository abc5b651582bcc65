"""The door: numbers, radii and images, and one sentence for each mistake."""

import math
import re
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import citrus
from citrus.errors import CitrusError, suggest
from citrus.inputs import check_images, check_limits, format_eps, parse_eps, parse_number


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("8/255", 8 / 255),
        ("1/3", 1 / 3),
        ("0.1", 0.1),
        ("1e-3", 0.001),
        (" 2 ", 2.0),
        ("-3/4", -0.75),
        (0.3, 0.3),
        (1, 1.0),
        ("0", 0.0),
    ],
)
def test_numbers(given: str | float, value: float) -> None:
    assert parse_number(given) == value
    assert isinstance(parse_number(given), float)


BAD_NUMBERS = [
    "abc",
    "",
    "1/0",
    "8/",
    "/255",
    "1/2/3",
    "8//255",
    "nan",
    "inf",
    "-inf",
    math.nan,
    math.inf,
    None,
    [1],
    10**400,
]


@pytest.mark.parametrize("given", [*BAD_NUMBERS, "1" + "0" * 400 + "/3"], ids=lambda g: str(g)[:8])
def test_bad_numbers(given: object) -> None:
    with pytest.raises(CitrusError, match=r"tau must be a number such as 0\.1 or a fraction such as 8/255, got "):
        parse_number(given, "tau")  # type: ignore[arg-type]


def test_bad_number_is_quoted() -> None:
    with pytest.raises(CitrusError, match=re.escape("value must be") + ".*got 'abc'"):
        parse_number("abc")


@pytest.mark.parametrize("given", ["8/255", "0.1", 0, 1, "1/1", 0.3])
def test_eps(given: str | float) -> None:
    assert parse_eps(given) == parse_number(given)


@pytest.mark.parametrize("given", [-1, 2, "-1/255", "8", 255, "1.0001", -1e-9])
def test_eps_outside_0_1(given: str | float) -> None:
    with pytest.raises(CitrusError, match=re.escape(f"must lie in [0, 1], got {given}; write 8/255")):
        parse_eps(given)


@pytest.mark.parametrize("given", ["abc", "1/0", "nan", math.nan, math.inf])
def test_eps_that_is_no_number(given: str | float) -> None:
    with pytest.raises(CitrusError, match="eps must be a number"):
        parse_eps(given)


@pytest.mark.parametrize(
    ("eps", "text"),
    [
        (8 / 255, "8/255"),
        (1 / 255, "1/255"),
        (254 / 255, "254/255"),
        (0.1, "0.1"),
        (0.3, "0.3"),
        (0.2, "0.2"),  # also 51/255
        (0.0, "0"),
        (1.0, "1"),
        (0.125, "0.125"),
        (0.01234, "0.01234"),
    ],
)
def test_format_eps(eps: float, text: str) -> None:
    assert format_eps(eps) == text
    assert parse_eps(text) == pytest.approx(eps, abs=1e-12)


@pytest.mark.parametrize("level", range(256))
def test_every_grey_level_survives_being_written(level: int) -> None:
    assert parse_eps(format_eps(level / 255)) == pytest.approx(level / 255, abs=1e-12)


# Images

X, Y = torch.rand(4, 3, 5, 5, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 1])


def changed(value: float) -> Tensor:
    images = X.clone()
    images[1, 2, 3, 4] = value
    return images


@pytest.mark.parametrize("images", [X, X.double(), X.half(), torch.zeros_like(X), torch.ones_like(X)])
def test_good_images(images: Tensor) -> None:
    check_images(images, Y, 3)
    check_images(images, Y, 10, (3, 5, 5))


@pytest.mark.parametrize(
    ("images", "labels", "classes", "shape", "message"),
    [
        (X[0], Y, 3, None, "Images must be floats of shape (n, C, H, W), got torch.float32 of (3, 5, 5)"),
        ((X * 255).byte(), Y, 3, None, "got torch.uint8 of (4, 3, 5, 5)"),
        (X, Y, 3, (1, 5, 5), "The network takes images of shape (1, 5, 5), got (3, 5, 5)"),
        (X, Y[:3], 3, None, "Labels must be int64 of shape (4,), got torch.int64 of (3,)"),
        (X, Y[:, None], 3, None, "Labels must be int64 of shape (4,), got torch.int64 of (4, 1)"),
        (X, Y.float(), 3, None, "got torch.float32 of (4,)"),
        (X, Y.int(), 3, None, "got torch.int32 of (4,)"),
        (X[:0], Y[:0], 3, None, "There are no images"),
        (changed(1.5), Y, 3, None, "Images must lie in [0, 1], got values from"),
        (changed(-0.1), Y, 3, None, "got values from -0.1 to"),
        (X * 255, Y, 3, None, "divide bytes by 255"),
        (changed(math.nan), Y, 3, None, "Images must lie in [0, 1], got values from nan to nan"),
        (changed(math.inf), Y, 3, None, "to inf"),
        (X, Y, 2, None, "Labels must lie in 0..1, got 0 to 2"),
        (X, Y - 1, 3, None, "Labels must lie in 0..2, got -1 to 1"),
    ],
)
def test_bad_images(images: Tensor, labels: Tensor, classes: int, shape: tuple[int, ...] | None, message: str) -> None:
    with pytest.raises(CitrusError, match=re.escape(message)):
        check_images(images, labels, classes, shape)


def test_suggestions() -> None:
    assert suggest("mnst", ["mnist", "cifar10"]) == "did you mean 'mnist'?"
    assert suggest("zzz", ["mnist", "cifar10"]) == "known: cifar10, mnist."
    assert suggest("", ["mnist", "cifar10"]) == "known: cifar10, mnist."
    assert suggest("method.tau", ["method.k", "method.tau_ratio"]) == "did you mean 'method.tau_ratio'?"


def test_certify_takes_images_of_another_precision() -> None:
    """Images in float64 are certified by a float32 network as their float32 versions are."""
    torch.manual_seed(0)
    network = citrus.build_network("mlp", (1, 12, 12), 3).eval()
    images = torch.rand(6, 1, 12, 12)
    labels = network(images).argmax(1)
    single = citrus.certify(network, images, labels, 0.01)
    double = citrus.certify(network, images.double(), labels, 0.01)
    assert (single.certified, single.attacked) == (double.certified, double.attacked)


LIMITS: list[tuple[str, list[float], list[float], str]] = [
    ("[0, 1]", [0, 0.5, 1], [-1e-9, 1.1, math.nan, math.inf], r"x must lie in \[0, 1\], got "),
    ("(0, 1]", [1e-9, 1], [0, -1, 1.1, math.nan], r"x must lie in \(0, 1\], got "),
    ("[1, inf)", [1, 7, 1e30], [0, -3], "x must be at least 1, got "),
    ("[1, inf)", [], [math.nan, math.inf, -math.inf], "x must be finite and at least 1, got "),
    ("(0, inf)", [1e-9], [0, -1.0], "x must be larger than 0, got "),
    ("(0, inf]", [1, math.inf], [0, -1.0], "x must be larger than 0, got "),
]


@pytest.mark.parametrize(("interval", "inside", "outside", "says"), LIMITS)
def test_numbers_outside_of_their_interval_are_refused_by_name(
    interval: str, inside: list[float], outside: list[float], says: str
) -> None:
    for value in inside:
        check_limits(SimpleNamespace(x=value), {"x": interval})
    for value in outside:
        with pytest.raises(CitrusError, match=f"{says}{value}\\.$"):
            check_limits(SimpleNamespace(x=value), {"x": interval})
