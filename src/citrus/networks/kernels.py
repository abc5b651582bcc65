"""How tensors are computed: their memory layout, kernels that torch compiles, and the precision of products.

Bounds are computed in true float32: TF32 keeps 10 bits of a product, which is enough to train and not to prove. So do
bfloat16, which a CPU may take for products where torch is asked for speed, and autocast; and convolutions by Winograd's
or Fourier's transform are off by more than a sum of products is (convolution.py).
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from citrus.errors import CitrusError

F = TypeVar("F", bound=Callable[..., Any])
_COMPILER: ContextVar[str | None] = ContextVar("compiler", default=None)
_PROVING: ContextVar[bool] = ContextVar("proving", default=False)
VARIANTS = 64  # shapes and precisions that one function may be compiled for before torch gives up


def in_device_layout(x: Tensor) -> Tensor:
    """The same values as the device wants them: convolutions on a GPU are fastest with channels innermost."""
    return channels_last(x) if x.is_cuda else x


def channels_last(x: Tensor) -> Tensor:
    """Maps (batch, C, H, W) with channels innermost in memory; vectors have only one way to lie."""
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


@contextmanager
def compiling(on: bool = True, backend: str = "inductor") -> Iterator[None]:
    """Within, functions marked `compilable` run as torch.compile makes them."""
    token = _COMPILER.set(backend if on else None)
    try:
        yield
    finally:
        _COMPILER.reset(token)


def compilable(function: F) -> F:
    """Mark a function of tensors as worth compiling; it stays as it is outside of `compiling`."""

    @functools.cache
    def compiled(backend: str) -> Callable[..., Any]:
        dynamo: Any = torch._dynamo.config
        dynamo.recompile_limit = max(dynamo.recompile_limit, VARIANTS)
        return torch.compile(function, dynamic=False, backend=backend)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        backend = _COMPILER.get()
        return (compiled(backend) if backend else function)(*args, **kwargs)

    return cast(F, call)


@contextmanager
def tf32(on: bool) -> Iterator[None]:
    """Switch TF32 on or off for convolutions and matrix products on the GPU; off, a CPU takes no short cuts either."""
    with _fast() if on else _slow():
        yield


@contextmanager
def _fast() -> Iterator[None]:
    """By the switches that torch's compiler reads."""
    try:
        convolutions, products = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    except RuntimeError as error:  # torch does not let one process use both
        raise CitrusError(
            "TF32 was set by a `fp32_precision` of torch.backends, so that Citrus cannot switch it on for training: "
            "use torch.set_float32_matmul_precision or allow_tf32 instead."
        ) from error
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = convolutions, products


@contextmanager
def _slow() -> Iterator[None]:
    """By those of each library, which leave no trace of having been touched."""
    cudnn: Any = torch.backends.cudnn
    cpu: Any = torch.backends.mkldnn
    parts: list[Any] = [cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul, cpu.matmul, cpu.conv]
    before = [part.fp32_precision for part in parts]
    try:
        for part in parts:
            part.fp32_precision = "ieee"
        yield
    finally:
        for part, precision in zip(parts, before, strict=True):
            part.fp32_precision = precision


@contextmanager
def true_float32() -> Iterator[None]:
    """What every proof is computed in: sums of products, each rounded to the precision of its numbers."""
    plain = [torch.autocast(device, enabled=False) for device in ("cpu", "cuda")]
    token = _PROVING.set(True)
    try:
        with tf32(False), plain[0], plain[1], torch.backends.nnpack.flags(enabled=False):
            yield
    finally:
        _PROVING.reset(token)


@contextmanager
def searching() -> Iterator[None]:
    """Within a proof, for what only looks for something that is judged afterwards: any kernel will do."""
    token = _PROVING.set(False)
    try:
        yield
    finally:
        _PROVING.reset(token)


def plain_sums(x: Tensor) -> bool:
    """Whether convolutions of these have to be sums of products by our own hand: in a proof, and not on a CPU, where
    they are."""
    return not torch.compiler.is_compiling() and x.device.type != "cpu" and _PROVING.get()


exact = true_float32()
"""Decorates a bound that somebody may call a proof: it is in true float32, whatever torch's switches say."""
