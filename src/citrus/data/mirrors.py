"""The files that `citrus data fetch` downloads: addresses, sizes and checksums.

The sums of MNIST and of the CIFAR-10 batches were computed from the original files; the others are those which
torchvision, Keras and many projects publish. Where only an md5 sum is published it guards against damage, not
against a forger, who would gain little: images are decoded as plain bytes or by Pillow, and no code is run.
"""

from dataclasses import dataclass

MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
FASHION = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
CIFAR = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
TINY = ("https://cs231n.stanford.edu/", "http://cs231n.stanford.edu/")


@dataclass(frozen=True)
class RemoteFile:
    """One file, the addresses that serve it, and how to know it: its size and one checksum, sha256 or md5."""

    name: str
    mirrors: tuple[str, ...]
    size: int
    sha256: str = ""
    md5: str = ""

    @property
    def urls(self) -> tuple[str, ...]:
        """Where to get it, best first."""
        return tuple(mirror + self.name for mirror in self.mirrors)


@dataclass(frozen=True)
class Remote:
    """The files of one data set. An archive lists what it unpacks to: `contents` maps file names to sha256 sums."""

    files: tuple[RemoteFile, ...]
    archive: bool = False
    contents: tuple[tuple[str, str], ...] = ()


REMOTE: dict[str, Remote] = {
    "mnist": Remote(
        (
            RemoteFile(
                "train-images-idx3-ubyte.gz",
                MNIST,
                9912422,
                sha256="440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            RemoteFile(
                "train-labels-idx1-ubyte.gz",
                MNIST,
                28881,
                sha256="3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            RemoteFile(
                "t10k-images-idx3-ubyte.gz",
                MNIST,
                1648877,
                sha256="8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            RemoteFile(
                "t10k-labels-idx1-ubyte.gz",
                MNIST,
                4542,
                sha256="f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        )
    ),
    "fashion-mnist": Remote(
        (
            RemoteFile("train-images-idx3-ubyte.gz", FASHION, 26421880, md5="8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            RemoteFile("train-labels-idx1-ubyte.gz", FASHION, 29515, md5="25c81989df183df01b3e8a0aad5dffbe"),
            RemoteFile("t10k-images-idx3-ubyte.gz", FASHION, 4422102, md5="bef4ecab320f06d8554ea6380940ec79"),
            RemoteFile("t10k-labels-idx1-ubyte.gz", FASHION, 5148, md5="bb300cfdad3c16e7a12a480ee83cd310"),
        )
    ),
    "cifar10": Remote(
        (
            RemoteFile(
                "cifar-10-python.tar.gz",
                CIFAR,
                170498071,
                sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            ),
        ),
        archive=True,
        contents=(
            ("data_batch_1", "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd"),
            ("data_batch_2", "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8"),
            ("data_batch_3", "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9"),
            ("data_batch_4", "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b"),
            ("data_batch_5", "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154"),
            ("test_batch", "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831"),
        ),
    ),
    "tinyimagenet": Remote(
        (RemoteFile("tiny-imagenet-200.zip", TINY, 248100043, md5="90528d7ca1a48142e341f4ef8d21d0de"),),
        archive=True,
    ),
}
