"""Convolutions and their transposes, by the fastest way that is still a sum of products where something is proved.

A GPU's library takes Winograd's or Fourier's transform where it is faster, which rounds more than any sum of the
products in question, so that no proof may rest on it (kernels.py says where one is under way). There a convolution is
one matrix product: of the weights with all that they see.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from citrus.networks.kernels import plain_sums

Pair = tuple[int, int]


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Tensor:
    """What `F.conv2d` computes."""
    if not plain_sums(x):
        return F.conv2d(x, weight, bias, stride, padding, dilation, groups)
    seen = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    for axis in (0, 1):  # (n, C, height, width, kernel, kernel)
        extent = dilation[axis] * (weight.shape[2 + axis] - 1) + 1
        seen = seen.unfold(2 + axis, extent, stride[axis])[..., :: dilation[axis]]
    height, width = seen.shape[2:4]
    seen = seen.unflatten(1, (groups, -1)).permute(1, 0, 3, 4, 2, 5, 6)  # (groups, n, height, width, ...)
    found = seen.flatten(4).flatten(1, 3) @ weight.flatten(1).unflatten(0, (groups, -1)).mT
    maps = found.unflatten(1, (len(x), height, width)).permute(1, 0, 4, 2, 3).flatten(1, 2)
    return maps if bias is None else maps + bias[:, None, None]


def spread(rows: Tensor, weight: Tensor, stride: Pair, dilation: Pair, groups: int) -> Tensor:
    """Transposed convolution without padding that would cut its result.

    On a CPU by the fastest of three equal ways: oneDNN's strided one runs at a twentieth of a matrix product's speed.
    Small windows are therefore one matrix product; else pixels of equal remainder modulo the stride are output channels
    of one plain convolution.
    """
    if plain_sums(rows):
        return _by_product(rows, weight, stride, dilation, groups)
    options = (stride, 0, 0, groups, dilation)
    if rows.device.type == "cpu" and rows.numel():
        size = reach((rows.shape[2], rows.shape[3]), weight, stride, dilation)
        waste = size[0] * size[1] * groups / (weight.shape[2] * weight.shape[3])
        inputs = rows[0].numel()
        if waste <= (8 if max(stride) > 1 else 1.5) and 2 * inputs <= rows.shape[0]:
            basis = torch.eye(inputs, dtype=rows.dtype).view(inputs, *rows.shape[1:])
            matrix = F.conv_transpose2d(basis, weight, None, *options)
            return (rows.flatten(1) @ matrix.flatten(1)).view(-1, *matrix.shape[1:])
        if max(stride) > 1 and groups == 1 and dilation == (1, 1) and weight.shape[1] <= 16:
            return _by_remainders(rows, weight, stride)
    return F.conv_transpose2d(rows, weight, None, *options)


def reach(size: Pair, weight: Tensor, stride: Pair, dilation: Pair) -> Pair:
    """Height and width of what a window of a convolution's result sees."""
    height, width = (
        (n - 1) * s + d * (k - 1) + 1 for n, s, d, k in zip(size, stride, dilation, weight.shape[2:], strict=True)
    )
    return height, width


def _by_product(rows: Tensor, weight: Tensor, stride: Pair, dilation: Pair, groups: int) -> Tensor:
    """What each number of the result gives to the pixels that it saw, summed pixel by pixel."""
    count, _, height, width = rows.shape
    kernel = (weight.shape[2], weight.shape[3])
    own = rows.unflatten(1, (groups, -1)).permute(1, 0, 3, 4, 2).flatten(1, 3)
    given = own @ weight.flatten(1).unflatten(0, (groups, -1))
    columns = given.unflatten(1, (count, height * width)).permute(1, 0, 3, 2).flatten(1, 2)
    return F.fold(columns, reach((height, width), weight, stride, dilation), kernel, dilation, stride=stride)


def _by_remainders(rows: Tensor, weight: Tensor, stride: Pair) -> Tensor:
    """y[s a + p] = sum_j w[s j + p] x[a - j]: per remainder p a convolution of stride 1, interleaved at the end."""
    out, into, *kernel = weight.shape
    taps = [-(-k // s) for k, s in zip(kernel, stride, strict=True)]
    missing = [m * s - k for m, s, k in zip(taps, stride, kernel, strict=True)]
    padded = F.pad(weight, (0, missing[1], 0, missing[0]))
    split = padded.view(out, into, taps[0], stride[0], taps[1], stride[1]).flip(2, 4).permute(1, 3, 5, 0, 2, 4)
    phases = F.conv2d(rows, split.reshape(-1, out, *taps), padding=(taps[0] - 1, taps[1] - 1))
    n, _, height, width = phases.shape
    phases = phases.view(n, into, *stride, height, width).permute(0, 1, 4, 2, 5, 3)
    whole = phases.reshape(n, into, height * stride[0], width * stride[1])
    return whole[..., : whole.shape[2] - missing[0], : whole.shape[3] - missing[1]]
