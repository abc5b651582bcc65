"""Functions that torch compiles for whoever asks: fused kernels for a training step, plain ones for everybody else."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])
_COMPILING = ContextVar("compiling", default=False)
VARIANTS = 64  # shapes and precisions that one function may be compiled for before torch gives up


@contextmanager
def compiling(on: bool = True) -> Iterator[None]:
    """Within, functions marked `compilable` run as torch.compile makes them."""
    token = _COMPILING.set(on)
    try:
        yield
    finally:
        _COMPILING.reset(token)


def compilable(function: F) -> F:
    """Mark a function of tensors as worth compiling; it stays as it is outside of `compiling`."""
    compiled: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _COMPILING.get():
            return function(*args, **kwargs)
        if not compiled:
            dynamo: Any = torch._dynamo.config
            dynamo.recompile_limit = max(dynamo.recompile_limit, VARIANTS)
            compiled.append(torch.compile(function, dynamic=False))
        return compiled[0](*args, **kwargs)

    return cast(F, call)
