"""Constants of CIFAR: its files in every distribution format with their official md5, class names, statistics."""

from __future__ import annotations

from dataclasses import dataclass

from itl.streams.base import Traits


@dataclass(frozen=True)
class Member:
    """A data file: its name, its md5 if it is published, and its number of images."""

    name: str
    md5: str | None
    images: int


@dataclass(frozen=True)
class Distribution:
    """A format in which a dataset is distributed.

    Attributes:
        archive: File name of the archive.
        md5: md5 of the archive.
        folder: Folder in the archive.
        train: Files with training images.
        test: Files with test images.
        label: Index of the label byte in a binary record, or key of the labels in a pickle.
    """

    archive: str
    md5: str
    folder: str
    train: tuple[Member, ...]
    test: tuple[Member, ...]
    label: int | str

    @property
    def members(self) -> tuple[Member, ...]:
        """All data files."""
        return self.train + self.test


def _members(md5s: dict[str, str | None], images: int) -> tuple[Member, ...]:
    return tuple(Member(name, md5, images) for name, md5 in md5s.items())


_CIFAR10_BINARY = Distribution(
    "cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530",
    "cifar-10-batches-bin",
    _members(
        {
            "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
            "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
            "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
            "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
            "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        },
        10_000,
    ),
    _members({"test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d"}, 10_000),
    label=0,
)
_CIFAR10_PYTHON = Distribution(
    "cifar-10-python.tar.gz",
    "c58f30108f718f92721af3b95e74349a",
    "cifar-10-batches-py",
    _members(
        {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        },
        10_000,
    ),
    _members({"test_batch": "40351d587109b95175f43aff81a1287e"}, 10_000),
    label="labels",
)
_CIFAR100_BINARY = Distribution(
    "cifar-100-binary.tar.gz",
    "03b5dce01913d631647c71ecec9e9cb8",
    "cifar-100-binary",
    _members({"train.bin": None}, 50_000),
    _members({"test.bin": None}, 10_000),
    label=1,  # byte 0 is the coarse label
)
_CIFAR100_PYTHON = Distribution(
    "cifar-100-python.tar.gz",
    "eb9058c3a382ffc7106e4002c42a8d85",
    "cifar-100-python",
    _members({"train": "16019d7e3df5f24257cddd939b257f8d"}, 50_000),
    _members({"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"}, 10_000),
    label="fine_labels",
)
# The binary version comes first because it is the one to download: it contains no pickle.
DISTRIBUTIONS = {
    "seq-cifar10": (_CIFAR10_BINARY, _CIFAR10_PYTHON),
    "seq-cifar100": (_CIFAR100_BINARY, _CIFAR100_PYTHON),
}

# Class names in label order. The archives contain them too, but those files would have to be checked.
_CIFAR10_NAMES = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
CLASS_NAMES = {
    "seq-cifar10": tuple(_CIFAR10_NAMES.split()),
    "seq-cifar100": tuple(_CIFAR100_NAMES.split()),
}
TRAITS = {
    "seq-cifar10": Traits((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2615), True, 4, "cifar10", tasks=5),
    "seq-cifar100": Traits((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), True, 4, "cifar10", tasks=10),
}
