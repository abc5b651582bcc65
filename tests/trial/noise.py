"""A machine that rounds worse than any: every floating-point operation inside is off by as much as its model allows.

    with coarse(monkeypatch, seed=0):
        result = certify(network, images, labels, eps)     # must still be true

`bounds/rounding.py` is told the unit roundoff of this machine, and every result is moved by a random share of it: of a
sum of n products each term by up to n roundings, as a sum may be taken in any order. A proof that forgets some rounding
claims what is false within few tries, where IEEE arithmetic would need millions. What is exact in every arithmetic
stays exact: products with 0, 1 and powers of two that a program writes down, sums with 0, choices, signs, changes of
shape.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from citrus.bounds import rounding

COARSE = {torch.float32: 2.0**-13, torch.float64: 2.0**-20}
SUMS = {"sum": 1, "mean": 1}
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "convolution")
ELEMENTWISE = (
    "add",
    "sub",
    "rsub",
    "mul",
    "div",
    "addcmul",
    "addcdiv",
    "reciprocal",
    "sqrt",
    "rsqrt",
    "lerp",
    "square",
)


class Noise(TorchDispatchMode):
    """Moves results; `calls` counts them."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator, self.calls = torch.Generator().manual_seed(seed), 0
        self.way: dict[str, int] = {}  # by operation: up, down, or here and there

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.__name__.split(".")[0]
        plain = name.rstrip("_")
        if plain in PRODUCTS:
            args = self._moved_factor(plain, list(args))
        elif plain == "linalg_cholesky_ex":
            size = args[0].diagonal().abs().sqrt()
            args = (
                args[0]
                + COARSE[args[0].dtype]
                * len(size)
                * int(torch.randint(-1, 2, (), generator=self.generator))
                * size.outer(size),
                *args[1:],
            )
        elif plain in SUMS and isinstance(args[0], Tensor):
            wide = args[0].to(kwargs.get("dtype") or args[0].dtype)
            args = (self._moved(plain, wide, self._terms(args)), *args[1:])
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and result.dtype in COARSE and self._rounds(plain, args, result):
            moved = torch.where(self._exact(plain, args, result), result, self._moved(plain, result, 1))
            return result.copy_(moved) if name.endswith("_") else moved
        return result

    def _moved(self, name: str, x: Tensor, roundings: int) -> Tensor:
        if x.dtype not in COARSE:
            return x
        self.calls += 1
        share = COARSE[x.dtype] * roundings
        way = self.way.setdefault(name, int(torch.randint(-1, 2, (), generator=self.generator)))
        if way:
            return x + way * share * x.abs()
        signs = torch.rand(x.shape, generator=self.generator).sub_(0.5).mul_(2).to(x.dtype)
        # The ends are met as often as all that lies between.
        signs = torch.where(torch.rand(x.shape, generator=self.generator) < 0.5, signs.sign(), signs)
        return x * (1 + share * signs)

    def _terms(self, args: Any) -> int:
        x = args[0]
        axes = args[1] if len(args) > 1 and args[1] else range(x.dim())
        return max(1, math.prod(x.shape[a] for a in ([axes] if isinstance(axes, int) else axes)) - 1)

    def _moved_factor(self, name: str, args: list[Any]) -> list[Any]:
        place = 1 if name in ("addmm", "baddbmm", "addmv", "convolution") else 0
        factor = args[place]
        terms = factor[0].numel() if name == "convolution" else factor.shape[-1]
        args[place] = self._moved(name, factor, max(1, terms - 1))
        return args

    def _rounds(self, name: str, args: Any, result: Tensor) -> bool:
        if name in PRODUCTS or name in SUMS:
            return True
        if name == "_to_copy":
            return bool(args[0].dtype == torch.float64 and result.dtype == torch.float32)
        if name in ("mul", "div") and any(isinstance(a, float | int) and _power(a) for a in args):
            return False
        return name in ELEMENTWISE

    def _exact(self, name: str, args: Any, result: Tensor) -> Tensor:
        """Which numbers of a result no machine rounds."""
        tensors = [a for a in args if isinstance(a, Tensor) and a.dtype != torch.bool]
        exact = torch.zeros((), dtype=torch.bool)
        if name == "mul":
            for t in tensors:
                exact = exact | (t == 0) | (t.abs() == 1)
        elif name in ("add", "sub"):
            for t in tensors:
                exact = exact | (t == 0)
        elif name == "addcmul":
            exact = (tensors[1] == 0) | (tensors[2] == 0)
        return exact


def _power(value: float) -> bool:
    return value != 0 and math.isfinite(value) and abs(math.frexp(value)[0]) == 0.5


@contextmanager
def coarse(monkeypatch: pytest.MonkeyPatch, seed: int) -> Iterator[Noise]:
    with monkeypatch.context() as patch:
        for dtype, unit in COARSE.items():
            patch.setitem(rounding.UNIT, dtype, unit)
        with Noise(seed) as noise:
            yield noise
