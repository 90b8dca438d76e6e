"""Read DomainNet in its authors' layout: a folder and two lists of files for each domain."""

from pathlib import Path

from isoproto.data.base import ImageDataset
from isoproto.data.folders import named_below
from isoproto.data.imagefolder import dataset_of_files, folders_in, read_tree
from isoproto.data.rows import text_lines
from isoproto.errors import DataError


def read_domainnet(root: Path, side: int) -> ImageDataset:
    """Read the pictures that ``DOMAIN_train.txt`` and ``DOMAIN_test.txt`` list.

    Each line of a list is ``DOMAIN/CLASS/NAME NUMBER``. Without any list the pictures must lie as ``load_imagefolder``
    wants them.

    Raises:
        DataError: If a domain's folder lacks one of its two lists, a list cannot be read or is empty, a line does not
            have that form, or its picture is missing.
    """
    lists = sorted(root.glob("*_train.txt")) + sorted(root.glob("*_test.txt"))
    if not lists:
        return read_tree(root, side)
    for domain in folders_in(root):
        for part in ("train", "test"):
            if not (root / f"{domain.name}_{part}.txt").is_file():
                raise DataError(
                    f"{domain}: its list {domain.name}_{part}.txt is missing in {root}; get both lists of each domain, "
                    "or remove the folder"
                )
    files, test = [], []
    for path in lists:
        listed = [line.rstrip("\r\n") for line in text_lines(path)]
        if not listed:
            raise DataError(f"{path}: names no picture; get the list again")
        for number, line in enumerate(listed, start=1):
            picture = named_below(root, line.rpartition(" ")[0], depth=3)
            if picture is None:
                raise DataError(
                    f"{path}, line {number}: wanted DOMAIN/CLASS/NAME NUMBER of a picture under {root}, got {line!r}; "
                    "unpack the archive of that domain, or remove its lists"
                )
            files.append(picture)
            test.append(path.stem.endswith("_test"))
    return dataset_of_files(root, files, [f.parts[-2] for f in files], test, [f.parts[-3] for f in files], side)
