"""Read Tiny-ImageNet in its authors' layout: validation pictures in one folder, and a list of their classes."""

from pathlib import Path

from isoproto.data.base import ImageDataset
from isoproto.data.folders import named_below
from isoproto.data.imagefolder import dataset_of_files, folders_in, read_tree, refuse_empty
from isoproto.data.rows import text_lines
from isoproto.errors import DataError

_LIST = "val/val_annotations.txt"


def read_tiny_imagenet(root: Path, side: int) -> ImageDataset:
    """Read ``train/WNID/images/*.JPEG`` and ``val/images/*.JPEG`` with ``val/val_annotations.txt``.

    The classes of validation pictures come from the list, since the names of their folders would give all of them one
    class. Without the list the pictures must lie as ``load_imagefolder`` wants them. The authors' test pictures have
    no labels and are left out.

    Raises:
        DataError: If a class has no training pictures. If the list cannot be read, names a picture or a class that
            does not exist, or leaves a picture out.
    """
    if not (root / _LIST).is_file():
        return read_tree(root, side)
    train = sorted(root.glob("train/*/images/*.JPEG"))
    classes = [path.parts[-3] for path in train]
    refuse_empty(folders_in(root / "train"), {path.parents[1] for path in train})
    known = set(classes)
    val, val_classes = [], []
    for number, line in enumerate(text_lines(root / _LIST), start=1):
        name, wnid, *_ = *line.rstrip("\r\n").split("\t"), ""
        path = named_below(root / "val" / "images", name, depth=1)
        if path is None or wnid not in known:
            raise DataError(
                f"{root / _LIST}, line {number}: wanted a picture in {root / 'val' / 'images'}, a tab and a class in "
                f"{root / 'train'}, got {line!r:.200}; unpack the archive again"
            )
        val.append(path)
        val_classes.append(wnid)
    if unlisted := set((root / "val" / "images").glob("*.JPEG")).difference(val):
        raise DataError(
            f"{root / _LIST}: does not name {len(unlisted)} of the pictures in {root / 'val' / 'images'}, as "
            f"{min(unlisted).name}; unpack the archive again"
        )
    test = [False] * len(train) + [True] * len(val)
    return dataset_of_files(root, train + val, classes + val_classes, test, side=side)
