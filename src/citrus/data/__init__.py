"""Data sets as uint8 tensors: `load("cifar10")` or `load("my_images.npz")`, augmentation, and downloads.

splits = citrus.data.load("mnist", validation=5000)
images = citrus.data.as_float(splits.test.images)    # float32 in [0, 1]
"""

from citrus.data.augment import flip_and_crop as flip_and_crop
from citrus.data.augment import shuffle as shuffle
from citrus.data.catalogue import describe as describe
from citrus.data.catalogue import known as known
from citrus.data.catalogue import load as load
from citrus.data.dataset import Dataset as Dataset
from citrus.data.dataset import DatasetInfo as DatasetInfo
from citrus.data.dataset import Splits as Splits
from citrus.data.dataset import as_float as as_float
from citrus.data.download import fetch as fetch
