"""Bounds are computed in true float32: TF32 keeps 10 bits of a product, which is enough to train and not to prove."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from citrus.errors import CitrusError


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
