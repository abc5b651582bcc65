"""How maps lie in memory: convolutions on a GPU are fastest with the channels of a pixel side by side."""

import torch
from torch import Tensor


def in_device_layout(x: Tensor) -> Tensor:
    """The same values as the device wants them."""
    return channels_last(x) if x.is_cuda else x


def channels_last(x: Tensor) -> Tensor:
    """Maps (batch, C, H, W) with channels innermost in memory; vectors have only one way to lie."""
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
