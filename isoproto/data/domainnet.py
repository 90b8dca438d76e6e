"""DomainNet as its makers pack it: a folder and two lists for each domain."""

from pathlib import Path

from isoproto.data.base import ImageDataset
from isoproto.data.imagefolder import dataset_of_files, read_tree
from isoproto.errors import DataError


def read_domainnet(root: Path, side: int) -> ImageDataset:
    """Read what ``DOMAIN_train.txt`` and ``DOMAIN_test.txt`` list: ``DOMAIN/CLASS/NAME NUMBER``, a line each.

    Without lists the pictures must lie as ``load_imagefolder`` wants them.

    Raises:
        DataError: If a line is not of that form, or its picture is missing.
    """
    lists = sorted(root.glob("*_train.txt")) + sorted(root.glob("*_test.txt"))
    if not lists:
        return read_tree(root, side)
    files, test = [], []
    for path in lists:
        for number, line in enumerate(path.read_text("utf8").splitlines(), start=1):
            picture = root / line.rpartition(" ")[0]
            if len(picture.relative_to(root).parts) != 3 or not picture.is_file():
                raise DataError(
                    f"{path}, line {number}: wanted DOMAIN/CLASS/NAME NUMBER of a picture under {root}, got {line!r}; "
                    "unpack the archive of that domain, or remove its lists"
                )
            files.append(picture)
            test.append(path.stem.endswith("_test"))
    return dataset_of_files(root, files, [f.parts[-2] for f in files], test, [f.parts[-3] for f in files], side)
