"""Tiny-ImageNet as its makers pack it: validation pictures in one folder, their classes in a list."""

from pathlib import Path

from isoproto.data.base import ImageDataset
from isoproto.data.imagefolder import dataset_of_files, read_tree
from isoproto.errors import DataError

_LIST = "val/val_annotations.txt"


def read_tiny_imagenet(root: Path, side: int) -> ImageDataset:
    """Read ``train/WNID/images/*.JPEG`` and ``val/images/*.JPEG`` with ``val/val_annotations.txt``.

    A reader that takes folder names for classes gives all validation pictures one class; this one asks the list.
    Without the list the pictures must lie as ``load_imagefolder`` wants them. The makers' test pictures have no
    labels and are left out.

    Raises:
        DataError: If the list names a picture that is missing or a class that has no training pictures.
    """
    if not (root / _LIST).is_file():
        return read_tree(root, side)
    train = sorted(root.glob("train/*/images/*.JPEG"))
    classes = [path.parts[-3] for path in train]
    val, val_classes = [], []
    for number, line in enumerate((root / _LIST).read_text("utf8").splitlines(), start=1):
        name, _, rest = line.partition("\t")
        wnid = rest.split("\t")[0]
        path = root / "val" / "images" / name
        if not path.is_file():
            raise DataError(f"{root / _LIST}, line {number}: there is no picture {path}; unpack the archive again")
        val.append(path)
        val_classes.append(wnid)
    if unknown := set(val_classes) - set(classes):
        raise DataError(
            f"{root / _LIST}: classes without training pictures in {root / 'train'}: {sorted(unknown)[:5]}; unpack "
            "the archive again"
        )
    test = [False] * len(train) + [True] * len(val)
    return dataset_of_files(root, train + val, classes + val_classes, test, side=side)
