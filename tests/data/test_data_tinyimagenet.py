"""TinyImageNet from small hand-made folders: both layouts of val, grey images, the cache, damage."""

import builtins
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.limits import little_memory

from citrus.data import load
from citrus.errors import CitrusError

Image = pytest.importorskip("PIL.Image", reason="needs Pillow (citrus-uap[images])")

WNIDS = ["n03", "n01", "n02"]  # out of order, as in the original wnids.txt


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CITRUS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


def save(path: Path, red: int, mode: str = "RGB", size: int = 64) -> None:
    """A picture of one colour; PNG content keeps the value exact, whatever the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = (red, 2 * red, 3) if mode == "RGB" else red
    Image.new(mode, (size, size), colour).save(path, format="PNG")


def write(root: Path, sorted_val: bool = False) -> Path:
    """Class k (in alphabetical order) has k + 1 training images of red 10 (k + 1), and one test image of red 50 + k."""
    folder = root / "tiny-imagenet-200"
    lines = []
    for k, wnid in enumerate(sorted(WNIDS)):
        for i in range(k + 1):
            save(folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", 10 * (k + 1))
        if sorted_val:
            save(folder / "val" / wnid / f"val_{k}.JPEG", 50 + k)
        else:
            save(folder / "val" / "images" / f"val_{k}.JPEG", 50 + k)
            lines.append(f"val_{k}.JPEG\t{wnid}\t0\t0\t63\t63\n")
    if not sorted_val:
        (folder / "val" / "val_annotations.txt").write_text("".join(reversed(lines)))
    (folder / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (folder / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn02\tcrane\nn03\tcrane\nn04\tdog\n")
    return folder


@pytest.mark.parametrize("sorted_val", [False, True])
def test_both_layouts_are_read(tmp_path: Path, sorted_val: bool) -> None:
    write(tmp_path, sorted_val)
    splits = load("tinyimagenet", tmp_path)
    assert splits.train.labels.tolist() == [0, 1, 1, 2, 2, 2]
    assert splits.train.images[:, 0, 9, 9].tolist() == [10, 20, 20, 30, 30, 30]
    assert splits.train.images[:, 1, 9, 9].tolist() == [20, 40, 40, 60, 60, 60]
    assert splits.test.labels.tolist() == ([0, 1, 2] if sorted_val else [2, 1, 0])
    assert (splits.test.images[:, 0, 0, 0] - 50).tolist() == splits.test.labels.tolist()
    assert splits.train.classes == ("goldfish", "crane (n02)", "crane (n03)")
    assert splits.info.classes == 3
    assert splits.info.shape == splits.train.shape == (3, 64, 64)
    assert (splits.info.flip, splits.info.pad) == (True, 4)


def test_the_lists_of_classes_may_be_missing(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "wnids.txt").unlink()
    (folder / "words.txt").unlink()
    assert load("tinyimagenet", tmp_path).train.classes == ("n01", "n02", "n03")


def test_grey_images_become_rgb_and_real_jpegs_are_decoded(tmp_path: Path) -> None:
    folder = write(tmp_path)
    save(folder / "train/n01/images/n01_0.JPEG", 77, mode="L")
    ramp = np.arange(64, dtype=np.uint8)[None, :, None].repeat(64, 0).repeat(3, 2)
    Image.fromarray(ramp).save(folder / "train/n01/images/n01_1.JPEG", format="JPEG", quality=95)
    images = load("tinyimagenet", tmp_path).train.images
    assert images[0].unique().tolist() == [77]
    assert np.abs(images[1].numpy().astype(int) - np.moveaxis(ramp, 2, 0)).max() <= 3


def test_the_second_read_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    first = load("tinyimagenet", tmp_path)

    def refuse(*_: Any) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr(Image, "open", refuse)
    again = load("tinyimagenet", tmp_path)
    assert first.train.images.equal(again.train.images)
    assert first.test.labels.equal(again.test.labels)


@pytest.mark.parametrize("change", ["added", "removed", "replaced", "damaged cache"])
def test_a_changed_folder_is_read_again(tmp_path: Path, change: str) -> None:
    folder = write(tmp_path)
    load("tinyimagenet", tmp_path)
    (cache,) = (tmp_path / "xdg" / "citrus" / "data").iterdir()
    place = folder / "train/n01/images"
    if change == "added":
        save(place / "n01_7.JPEG", 99)
    elif change == "removed":
        (folder / "train/n03/images/n03_2.JPEG").unlink()
    elif change == "replaced":
        Image.fromarray(np.full((64, 64, 3), 5, np.uint8)).save(place / "n01_0.JPEG", format="PNG", compress_level=0)
    else:
        cache.write_bytes(cache.read_bytes()[:100])
    reds = load("tinyimagenet", tmp_path).train.images[:, 0, 0, 0].tolist()
    assert (
        reds
        == {
            "added": [10, 99, 20, 20, 30, 30, 30],
            "removed": [10, 20, 20, 30, 30],
            "replaced": [5, 20, 20, 30, 30, 30],
            "damaged cache": [10, 20, 20, 30, 30, 30],
        }[change]
    )
    assert list(cache.parent.iterdir()) == [cache]  # the old cache was replaced, not left beside the new one


def test_two_folders_do_not_share_a_cache(tmp_path: Path) -> None:
    write(tmp_path / "a")
    load("tinyimagenet", tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    save(tmp_path / "b/tiny-imagenet-200/train/n01/images/n01_0.JPEG", 11)
    assert load("tinyimagenet", tmp_path / "b").train.images[0, 0, 0, 0] == 11
    assert load("tinyimagenet", tmp_path / "a").train.images[0, 0, 0, 0] == 10


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(load("tinyimagenet", tmp_path).train) == 6


def test_damage_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path)
    broken = folder / "train/n02/images/n02_1.JPEG"
    original = broken.read_bytes()
    for content in (b"", b"not an image", original[: len(original) // 2]):
        broken.write_bytes(content)
        with pytest.raises(CitrusError, match=r"n02_1\.JPEG cannot be read as an image"):
            load("tinyimagenet", tmp_path)
    save(broken, 1, size=32)
    with pytest.raises(CitrusError, match=r"n02_1\.JPEG .* 32x32 pixels instead of 64x64"):
        load("tinyimagenet", tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("val_9.JPEG\tn01\t0\t0\t1\t1\n", r"line 4 names .*val_9\.JPEG, which does not exist"),
        ("val_0.JPEG\tn99\t0\t0\t1\t1\n", "line 4: .* known class"),
        ("nonsense\n", "line 4: 'nonsense'"),
    ],
)
def test_wrong_annotations_are_named(tmp_path: Path, line: str, message: str) -> None:
    with (write(tmp_path) / "val" / "val_annotations.txt").open("a") as file:
        file.write(line)
    with pytest.raises(CitrusError, match=message):
        load("tinyimagenet", tmp_path)


def test_a_missing_class_and_empty_folders_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path)
    shutil.rmtree(folder / "train" / "n02")
    with pytest.raises(CitrusError, match="no folder for the class n02"):
        load("tinyimagenet", tmp_path)
    for path in (folder / "train").rglob("*.JPEG"):
        path.unlink()
    (folder / "train" / "n02").mkdir()
    with pytest.raises(CitrusError, match="train holds no images"):
        load("tinyimagenet", tmp_path)
    shutil.rmtree(folder)
    with pytest.raises(CitrusError, match="train, val missing"):
        load("tinyimagenet", tmp_path)


def test_without_pillow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    original = builtins.__import__

    def without_pillow(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "PIL":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_pillow)
    with pytest.raises(CitrusError, match=r"citrus-uap\[images\]"):
        load("tinyimagenet", tmp_path)


@pytest.mark.parametrize("file", ["wnids.txt", "words.txt", "val/val_annotations.txt"])
@pytest.mark.parametrize(
    "content", [b"\xff\xfe\n", b"a" * 5000 + b".JPEG\tn01\n", b"\0\tn01\n", b"../../x.JPEG\tn01\n"]
)
def test_lists_of_anything_are_refused(tmp_path: Path, file: str, content: bytes) -> None:
    """Found by `make fuzz`."""
    folder = write(tmp_path)
    (folder / file).write_bytes(content)
    if file == "words.txt" and content[:1] != b"\xff":
        assert len(load("tinyimagenet", tmp_path).train) == 6  # words about other classes
        return
    with pytest.raises(CitrusError, match="tiny-imagenet-200"):
        load("tinyimagenet", tmp_path)


@pytest.mark.parametrize("wnid", ["..", "../../..", "/etc"])
def test_classes_lie_in_the_folder(tmp_path: Path, wnid: str) -> None:
    (write(tmp_path) / "wnids.txt").write_text(f"n01\n{wnid}\n")
    with pytest.raises(CitrusError, match="no name of a folder"):
        load("tinyimagenet", tmp_path)


def test_links_to_nowhere_and_pipes_are_no_images(tmp_path: Path) -> None:
    """A pipe would keep its reader waiting for ever."""
    folder = write(tmp_path)
    place = folder / "train/n01/images/n01_9.JPEG"
    os.mkfifo(place)
    with pytest.raises(CitrusError, match=r"n01_9\.JPEG is no file"):
        load("tinyimagenet", tmp_path)
    place.unlink()
    place.symlink_to("nowhere.JPEG")
    with pytest.raises(CitrusError, match=r"n01_9\.JPEG"):
        load("tinyimagenet", tmp_path)


def test_a_name_that_is_no_text_is_one_all_the_same(tmp_path: Path) -> None:
    folder = write(tmp_path)
    save(folder / "train/n01/images/\udcff.JPEG", 99)
    assert load("tinyimagenet", tmp_path).train.labels.tolist() == [0, 0, 1, 1, 2, 2, 2]


def test_a_format_that_starts_programs_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow gives EPS files, whatever they are called, to Ghostscript."""
    folder = write(tmp_path)
    place = folder / "train/n01/images/n01_0.JPEG"
    Image.new("RGB", (64, 64)).save(place, format="EPS")
    with Image.open(place) as image:
        assert image.format == "EPS"
    with pytest.raises(CitrusError, match="cannot be read as an image"):
        load("tinyimagenet", tmp_path)


def test_a_picture_that_claims_gigapixels_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path)
    place = folder / "train/n01/images/n01_0.JPEG"
    content = bytearray(place.read_bytes())
    content[16:24] = (1 << 30).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    place.write_bytes(content)
    with little_memory(), pytest.raises(CitrusError, match="cannot be read as an image"):
        load("tinyimagenet", tmp_path)
