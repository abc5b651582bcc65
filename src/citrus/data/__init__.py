"""Data sets as uint8 tensors: `load("cifar10")` or `load("my_images.npz")`, augmentation, and downloads.

splits = citrus.data.load("mnist", validation=5000)
images = citrus.data.as_float(splits.test.images)    # float32 in [0, 1]
"""

from citrus.data.catalogue import describe, known, load
from citrus.data.dataset import Dataset, DatasetInfo, Splits, as_float, flip_and_crop, shuffle
from citrus.data.download import fetch
