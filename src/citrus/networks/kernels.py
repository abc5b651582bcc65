"""How tensors are computed: their memory layout, kernels that torch compiles, and the precision of products.

Bounds are computed in true float32: TF32 keeps 10 bits of a product, which is enough to train and not to prove.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from citrus.errors import CitrusError

F = TypeVar("F", bound=Callable[..., Any])
_COMPILER: ContextVar[str | None] = ContextVar("compiler", default=None)
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
    """Switch TF32 on or off for convolutions and matrix products on the GPU; nothing changes on the CPU."""
    try:
        convolutions, products = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    except RuntimeError as error:  # torch does not let one process use both
        raise CitrusError(
            "TF32 was set by a `fp32_precision` of torch.backends, so that Citrus cannot switch it off for proofs: use "
            "torch.set_float32_matmul_precision or allow_tf32 instead."
        ) from error
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = on
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = convolutions, products


def true_float32() -> AbstractContextManager[None]:
    """What every proof is computed in."""
    return tf32(False)


exact = tf32(False)
"""Decorates a bound that somebody may call a proof: it is in true float32, whatever torch's switches say."""
