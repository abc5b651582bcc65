"""Every augmented image is one of the crops and mirrors it may be, drawn independently and reproducibly."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import pad as pad_images

from citrus.data import flip_and_crop, shuffle
from citrus.data.catalogue import INFO
from citrus.errors import CitrusError
from citrus.recipes import recipe
from citrus.training.step import augmentation


def generator(seed: int = 0, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def noise(n: int, height: int = 6, width: int = 7) -> torch.Tensor:
    return torch.randint(256, (n, 3, height, width), dtype=torch.uint8, generator=generator(1))


def allowed(image: torch.Tensor, pad: int, flip: bool) -> list[torch.Tensor]:
    """All crops of the edge-padded image and, with flip, their mirror images: written the slow, plain way."""
    padded = pad_images(image[None].float(), (pad, pad, pad, pad), mode="replicate")[0].to(image.dtype)
    _, height, width = image.shape
    size = 2 * pad + 1
    crops = [padded[:, y : y + height, x : x + width] for y in range(size) for x in range(size)]
    return crops + [crop.flip(2) for crop in crops] if flip else crops


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_no_padding_and_no_flip_is_the_identity(dtype: torch.dtype) -> None:
    images = noise(4).to(dtype)
    assert torch.equal(flip_and_crop(images, 0, False, generator()), images)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(("pad", "flip"), [(0, True), (1, False), (2, True), (4, True)])
def test_each_output_is_an_allowed_crop_and_all_of_them_occur(dtype: torch.dtype, pad: int, flip: bool) -> None:
    image = noise(1).to(dtype)
    choices = torch.stack(allowed(image[0], pad, flip))
    out = flip_and_crop(image.expand(len(choices) * 12, -1, -1, -1), pad, flip, generator())
    assert out.dtype == dtype
    same = (out[:, None] == choices).flatten(2).all(2)  # (output, choice)
    assert same.any(1).all()
    assert same.any(0).float().mean() > 0.99


def test_images_are_not_mixed() -> None:
    images = noise(50)
    out = flip_and_crop(images, 2, True, generator())
    for image, crop in zip(images, out, strict=True):
        assert any(torch.equal(crop, choice) for choice in allowed(image, 2, True))


def test_the_generator_decides_everything() -> None:
    images = noise(64)
    first, again, other = (flip_and_crop(images, 2, True, generator(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_floats_and_bytes_are_cut_alike() -> None:
    images = noise(20)
    assert torch.equal(
        flip_and_crop(images, 3, True, generator()).float(), flip_and_crop(images.float(), 3, True, generator())
    )


def test_no_images_and_strided_images_work() -> None:
    assert flip_and_crop(noise(0), 2, True, generator()).shape == (0, 3, 6, 7)
    strided = noise(5).permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)  # channels last in memory
    assert torch.equal(flip_and_crop(strided, 2, True, generator()), flip_and_crop(noise(5), 2, True, generator()))


def test_a_negative_pad_is_refused() -> None:
    with pytest.raises(CitrusError, match="pad=-1"):
        flip_and_crop(noise(1), -1, False, generator())


def test_shuffle_is_a_reproducible_permutation() -> None:
    order = shuffle(100, generator(5))
    assert order.sort().values.tolist() == list(range(100))
    assert torch.equal(order, shuffle(100, generator(5)))
    assert not torch.equal(order, shuffle(100, generator(6)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_either_generator_works_without_waiting() -> None:
    images = noise(64)
    expected = flip_and_crop(images, 2, True, generator())
    on_gpu = images.cuda()
    flip_and_crop(on_gpu, 2, True, generator())  # first use may wait for kernels to load
    torch.cuda.set_sync_debug_mode("error")
    try:
        from_cpu_generator = flip_and_crop(on_gpu, 2, True, generator())
        flip_and_crop(on_gpu, 2, True, generator(0, "cuda"))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(from_cpu_generator.cpu(), expected)


@pytest.mark.parametrize(
    ("augment", "crop", "expected"),
    [(True, -1, (2, True)), (True, 0, (0, True)), (True, 3, (3, True)), (False, 3, (0, False))],
)
def test_a_run_may_choose_its_crops(augment: bool, crop: int, expected: tuple[int, bool]) -> None:
    config = replace(recipe("cifar10-8-255-citrus"), augment=augment, crop=crop)
    assert augmentation(config, INFO["cifar10"]) == expected
    with pytest.raises(CitrusError, match="crop must be at least -1"):
        replace(config, crop=-2)
